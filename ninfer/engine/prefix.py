"""The retained histories: a tree of exact token paths, with KV along them and images at checkpoints.

Owns the nodes and every keep they have on pages, slots and host blobs.  A node covers the tokens
between its parent's frontier and its own; it is a *checkpoint* when it also has an image.  Promises
exact matching (see ``identity``), that a node never ends inside a media item, and that KV lives on
the device from the root down to some point and on the host below it.

The one thing a reader would get wrong: a page that two nodes meet in the middle of belongs to both;
the upper one reads its first tokens, the lower one has all of it.  ``table`` lets the lower one win.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator

import attrs

from ninfer.engine.device import Unit
from ninfer.engine.host import Blob, Host
from ninfer.engine.identity import Identity, TokenKey
from ninfer.engine.pages import Pool


class Kind(enum.Enum):
    """Why a checkpoint was captured; the value is how likely it is to be asked for again."""

    ENDPOINT = 4.0
    INPUT = 3.9
    EXPLICIT = 3.8
    JUNCTION = 3.0
    IMPLICIT = 2.0
    INTERVAL = 1.0
    SUPERSEDED = 0.25
    PATH = 0.0  # no checkpoint: tokens on the way to one


@attrs.define(eq=False)
class Node:
    """A stretch of a retained history.

    Its KV is in ``pages`` or, ``count`` pages from ``offset`` on, in ``blob``.  Its image is in
    ``slot`` or in ``image``, or it has none.
    """

    parent: Node | None
    part: Identity
    pages: tuple[int, ...] = ()
    blob: Blob | None = None
    offset: int = 0
    slot: int = -1
    image: Blob | None = None
    kind: Kind = Kind.PATH
    hits: int = 0
    session: str | None = None
    lost: str = ""  # why the image that once was here is gone
    warm: int = 0  # children whose KV is on the device
    children: dict[TokenKey, Node] = attrs.field(factory=dict)

    @property
    def frontier(self) -> int:
        """How many tokens the history up to here has."""
        return self.part.stop

    @property
    def checkpoint(self) -> bool:
        """Whether state at this frontier can be had."""
        return self.slot >= 0 or self.image is not None

    @property
    def on_device(self) -> bool:
        """Whether its KV needs no copy from the host."""
        return self.blob is None

    @property
    def leaf(self) -> bool:
        """Whether nothing below it has KV on the device."""
        return not self.warm

    def path(self) -> list[Node]:
        """Return the nodes from below the root down to this one."""
        found: list[Node] = []
        node: Node | None = self
        while node is not None and node.parent is not None:
            found.append(node)
            node = node.parent
        return found[::-1]

    def base(self) -> int:
        """Return the frontier of the nearest checkpoint above."""
        node = self.parent
        while node is not None and not node.checkpoint:
            node = node.parent
        return node.frontier if node else 0


@attrs.frozen
class Match:
    """``nodes`` are matched whole, root side first; ``common`` tokens are the same as some history."""

    nodes: tuple[Node, ...]
    common: int


@attrs.define(eq=False)
class Tree:
    """All retained histories.  ``version`` changes whenever a match may come out differently."""

    page_tokens: int
    pages: Pool
    slots: Pool
    host: Host
    root: Node = attrs.field(factory=lambda: Node(None, Identity(0, b"")))
    version: int = 0

    def __iter__(self) -> Iterator[Node]:
        todo = list(self.root.children.values())
        while todo:
            node = todo.pop()
            todo += node.children.values()
            yield node

    # Reading

    def match(self, whole: Identity) -> Match:
        """Follow a history as far as it is retained."""
        node = self.root
        nodes: list[Node] = []
        while node.frontier < whole.stop:
            child = node.children.get(whole.key(node.frontier))
            if child is None:
                break
            common = child.part.agrees(whole)
            if common < child.frontier:
                return Match(tuple(nodes), common)
            node = child
            nodes.append(node)
        return Match(tuple(nodes), node.frontier)

    # Growing

    def insert(self, whole: Identity, table: tuple[int, ...], units: list[Unit]) -> Node:
        """Retain a history whose KV is in ``table``; return the node at its end.

        Stretches that are retained already keep their own pages; those on the host move up.
        """
        self.version += 1
        node = self.root
        while node.frontier < whole.stop:
            child = node.children.get(whole.key(node.frontier))
            if child is None:
                return self._append(node, whole, table)
            common = child.part.agrees(whole)
            if common < child.frontier:
                child = self._split(child, common)
            self._promote(child, table, units)
            node = child
        return node

    def graft(
        self, whole: Identity, stop: int, start: int, kv: Blob | None, above: Node | None = None
    ) -> Node | None:
        """Retain the first ``stop`` tokens, those from ``start`` on in host memory ``kv``; return the end.

        None if what lies before is not retained.  Stretches that are retained already stay as they are.
        ``above`` is a node on the way, which spares going there.
        """
        node = above or self.root
        if node.frontier < start and self.match(whole).common < start:
            return None
        self.version += 1
        while node.frontier < stop:
            child = node.children.get(whole.key(node.frontier))
            if child is None:
                assert kv is not None
                child = Node(node, whole.part(node.frontier, stop), blob=self.host.share(kv))
                child.offset = child.part.start // self.page_tokens - start // self.page_tokens
                node.children[whole.key(node.frontier)] = child
            elif (common := min(child.part.agrees(whole), stop)) < child.frontier:
                child = self._split(child, common)
            node = child
        return node

    def _append(self, parent: Node, whole: Identity, table: tuple[int, ...]) -> Node:
        node = Node(parent, whole.part(parent.frontier, whole.stop))
        node.pages = self._stretch(node, table)
        self.pages.keep(node.pages)
        parent.children[whole.key(parent.frontier)] = node
        parent.warm += 1
        return node

    def _stretch(self, node: Node, table: tuple[int, ...]) -> tuple[int, ...]:
        return table[node.part.start // self.page_tokens : -(-node.frontier // self.page_tokens)]

    def _split(self, lower: Node, at: int) -> Node:
        """Cut a node in two at frontier ``at``; a page that the cut goes through belongs to both."""
        parent, part = lower.parent, lower.part
        upper = Node(parent, part.part(part.start, at))
        first = part.start // self.page_tokens
        end, begin = -(-at // self.page_tokens) - first, at // self.page_tokens - first
        if lower.blob is None:
            upper.pages, lower.pages = lower.pages[:end], lower.pages[begin:]
            self.pages.keep(upper.pages[begin:])
        else:
            upper.blob, upper.offset = self.host.share(lower.blob), lower.offset
            lower.offset += begin
        lower.parent, lower.part = upper, part.part(at, part.stop)
        assert parent is not None
        parent.children[part.key(part.start)] = upper
        upper.children[part.key(at)] = lower
        upper.warm = int(lower.on_device)
        return upper

    def _promote(self, node: Node, table: tuple[int, ...], units: list[Unit]) -> None:
        if node.blob is not None:
            self.place(node, self._stretch(node, table), units)

    def place(self, node: Node, pages: tuple[int, ...], units: list[Unit]) -> None:
        """Move a node's KV from the host to device pages that hold (or will hold) it."""
        assert node.blob is not None and node.parent is not None
        self.host.drop(node.blob, units)
        node.blob, node.pages = None, pages
        node.parent.warm += 1
        self.pages.keep(pages)
        self.version += 1

    # Shrinking

    def spill(self, node: Node, units: list[Unit]) -> None:
        """Move a leaf's KV to the host; the caller has made room there."""
        node.blob, node.offset = self.host.save(None, node.pages, units), 0
        self.pages.forget(node.pages)
        node.pages = ()
        assert node.parent is not None
        node.parent.warm -= 1
        self.version += 1

    def strip(self, node: Node, why: str, units: list[Unit]) -> None:
        """Give up a node's image, wherever it is."""
        if node.slot >= 0:
            self.slots.forget((node.slot,))
            node.slot = -1
        if node.image is not None:
            self.host.drop(node.image, units)
            node.image = None
        node.kind, node.lost = Kind.PATH, why
        self.version += 1

    def remove(self, node: Node, units: list[Unit]) -> list[Node]:
        """Drop a node and all below it; return them, lowest first."""
        assert node.parent is not None
        del node.parent.children[node.part.key(node.part.start)]
        node.parent.warm -= node.on_device
        gone = [node]
        for above in gone:
            gone += above.children.values()
        gone.reverse()
        for each in gone:
            self.strip(each, "given up", units)
            if each.blob is not None:
                self.host.drop(each.blob, units)
                each.blob = None
            self.pages.forget(each.pages)
            each.pages = ()
            each.children.clear()
            each.parent, each.session = None, None
        return gone

    # Accounting

    def claims(self) -> tuple[list[int], list[int], list[Blob]]:
        """List every page, slot and blob that the nodes keep, once for each keep."""
        pages: list[int] = []
        slots: list[int] = []
        blobs: list[Blob] = []
        for node in self:
            pages += node.pages
            slots += [node.slot] if node.slot >= 0 else []
            blobs += [blob for blob in (node.blob, node.image) if blob is not None]
        return pages, slots, blobs


def table(nodes: tuple[Node, ...], page_tokens: int) -> tuple[int, ...]:
    """Return the device pages of a path, for all tokens up to its last frontier."""
    pages: tuple[int, ...] = ()
    for node in nodes:
        pages = pages[: node.part.start // page_tokens] + node.pages
    return pages
