"""Reuse of what was computed before: finding it, taking it over, and keeping more of it.

Owns the choice where a request starts, the capture of checkpoints, and which endpoint belongs to which
session.  Promises that a request only ever starts from state that is exactly its own prefix, at the
point that costs least in copying and recomputing together, and that every miss has a reason.

The one thing a reader would get wrong: recurrent state exists only where an image was captured.  A
prompt may agree with a retained history for thousands of tokens and still have to start far earlier;
that point of disagreement (a *junction*) is then captured, so the next sibling starts there.
"""

from __future__ import annotations

import attrs

from ninfer.engine.costs import prefill_seconds, transfer_seconds
from ninfer.engine.device import Clear, CopyImage, HostLoad, Unit
from ninfer.engine.identity import Identity
from ninfer.engine.prefix import Kind, Match, Node, table
from ninfer.engine.retention import Retention
from ninfer.engine.sequence import Sequence
from ninfer.engine.space import Space
from ninfer.settings import ContextCosts


@attrs.frozen
class Source:
    """Where a request starts: the path to a checkpoint, or nothing for the root.

    ``common`` tokens agree with some retained history; ``reason`` says why it is not more.  ``seconds``
    is what copying and computing the rest will take.
    """

    nodes: tuple[Node, ...] = ()
    common: int = 0
    reason: str | None = None
    seconds: float = 0.0

    @property
    def frontier(self) -> int:
        """How many tokens need not be computed."""
        return self.nodes[-1].frontier if self.nodes else 0


@attrs.define(eq=False)
class Cache:
    """The retained contexts of one device; ``reuse`` False keeps and finds nothing."""

    space: Space
    retention: Retention
    reuse: bool
    sessions: dict[str, Node] = attrs.field(factory=dict)
    captures: int = 0
    _found: dict[Sequence, tuple[int, Source]] = attrs.field(factory=dict)

    @property
    def costs(self) -> ContextCosts:
        """The scale on which sources are compared."""
        return self.retention.costs

    # Finding

    def find(self, seq: Sequence, whole: Identity) -> Source:
        """Choose where to start with the tokens of ``whole``; remembered until the tree changes."""
        if not self.reuse:
            return Source(reason="prefix reuse is off")
        tree = self.retention.tree
        version, source = self._found.get(seq, (-1, Source()))
        if version != tree.version:
            match = tree.match(whole)
            source = self._cheapest(match, whole.stop)
            source = attrs.evolve(source, reason=_reason(match, source, whole.stop))
            self._found[seq] = tree.version, source
        if self._can_load(source):
            return source
        return Source((), source.common, source.reason, prefill_seconds(self.costs, 0, whole.stop))

    def forget(self, seq: Sequence) -> None:
        """Drop what was remembered for a request."""
        self._found.pop(seq, None)

    def _cheapest(self, match: Match, stop: int) -> Source:
        host, pages = self.space.host, 0
        best = Source((), match.common, seconds=prefill_seconds(self.costs, 0, stop))
        for index, node in enumerate(match.nodes):
            pages += 0 if node.on_device else self.page_count(node)
            if not node.checkpoint:
                continue
            copied = transfer_seconds(self.costs, host.size(False, pages))
            copied += transfer_seconds(self.costs, host.image_bytes if node.slot < 0 else 0)
            cost = copied + prefill_seconds(self.costs, node.frontier, stop - node.frontier)
            if cost <= best.seconds:
                best = Source(match.nodes[: index + 1], match.common, seconds=cost)
        return best

    def _can_load(self, source: Source) -> bool:
        """Whether the pages that must come back from the host can be had without touching the path."""
        loads = self._loads(source)
        pages = self.space.pages
        return not loads or loads <= pages.free + pages.idle - self._idle(source)

    def page_count(self, node: Node) -> int:
        """Return how many pages the KV of a node takes."""
        return self.space.pages_for(node.frontier) - node.part.start // self.space.geometry.page_tokens

    def _loads(self, source: Source) -> int:
        return sum(self.page_count(node) for node in source.nodes if not node.on_device)

    def _idle(self, source: Source) -> int:
        """Count the pages along a path that only the cache keeps."""
        pages = {page for node in source.nodes for page in node.pages}
        return sum(not self.space.pages.held(page) for page in pages)

    def pages_needed(self, source: Source, tokens: int) -> int:
        """Return how many free or idle pages it takes to start there and hold ``tokens`` tokens.

        The idle pages of the path itself are counted: they stop being idle.
        """
        whole = source.frontier // self.space.geometry.page_tokens
        fresh = max(self.space.pages_for(tokens) - whole, 0)
        return fresh + self._loads(source) + self._idle(source)

    # Taking over

    def seat(self, seq: Sequence, source: Source, units: list[Unit]) -> None:
        """Give ``seq`` a slot with the state at the end of ``source``, and the pages of that path.

        When every other slot runs, the checkpoint's own slot is taken over instead of copied.
        """
        last = seq.source = source.nodes[-1] if source.nodes else None
        with self.retention.pin(*source.nodes[-1:]):
            free = self.retention.free_slot(units)
            if free:
                seq.slot = self.space.take_slot()
            if last is None:
                units.append(Clear(seq.slot))
            else:
                self._adopt(seq, source, last, units)
        if not free and last is not None:
            self._take_over_slot(seq, last, units)

    def _adopt(self, seq: Sequence, source: Source, last: Node, units: list[Unit]) -> None:
        with self.retention.pin(*source.nodes):
            for node in source.nodes:
                if not node.on_device:
                    self._load(node, units)
        seq.pages = table(source.nodes, self.space.geometry.page_tokens)
        self.space.pages.hold(seq.pages)
        last.hits += 1
        self.retention.shelve(last, again=True)
        if last.slot >= 0 and seq.slot >= 0:
            units.append(CopyImage(last.slot, seq.slot))
        elif last.image is not None:
            units.append(HostLoad(last.image.key, seq.slot, ()))
        seq.frontier = source.frontier
        seq.reached = max(seq.reached, seq.frontier)

    def _load(self, node: Node, units: list[Unit]) -> None:
        """Bring a node's KV back to the device; ``find`` made sure that there is room."""
        count = self.page_count(node)
        self.retention.free_pages(count, units)
        pages = self.space.take_pages(count)
        assert node.blob is not None
        units.append(HostLoad(node.blob.key, None, pages, skip=node.offset))
        self.retention.tree.place(node, pages, units)
        self.space.pages.release(pages)
        self.retention.shelve(node)
        self.retention.shelve(node.parent)

    def _take_over_slot(self, seq: Sequence, last: Node, units: list[Unit]) -> None:
        seq.slot = last.slot
        self.space.slots.hold((seq.slot,))
        self.retention.strip(last, "a request went on in its slot", units)

    # Keeping

    def capture(self, seq: Sequence, whole: Identity, kind: Kind, units: list[Unit]) -> Node | None:
        """Keep a copy of the state at the end of ``whole``, where ``seq`` stands; None if it won't fit."""
        if not self.reuse:
            return None
        node = self._insert(seq, whole, kind, units)
        if node.checkpoint:
            return node
        node.kind = kind
        with self.retention.pin(node):
            if self.retention.free_slot(units, self.retention.image_worth(node)):
                self._copy_to_slot(seq, node, units)
            else:
                self.retention.host_image(node, seq.slot, units)
        self._settle(node, units)
        return node if node.checkpoint else None

    def _copy_to_slot(self, seq: Sequence, node: Node, units: list[Unit]) -> None:
        slot = self.space.take_slot()
        units.append(CopyImage(seq.slot, slot))
        self.space.slots.keep((slot,))
        self.space.slots.release((slot,))
        node.slot = slot

    def keep_endpoint(self, seq: Sequence, whole: Identity, units: list[Unit]) -> None:
        """Keep the state a finished request leaves behind; its own slot becomes the image."""
        if not self.reuse:
            return
        node = self._insert(seq, whole, Kind.ENDPOINT, units)
        if not node.checkpoint:
            node.kind = Kind.ENDPOINT
            node.slot = seq.slot
            self.space.slots.keep((seq.slot,))
        self._settle(node, units)
        if seq.job.session and seq.job.session_write:
            self._advance_session(seq.job.session, node)
        source = seq.source
        if source is not None and source is not node and source.session is None:
            self.supersede(source)

    def _insert(self, seq: Sequence, whole: Identity, kind: Kind, units: list[Unit]) -> Node:
        node = self.retention.tree.insert(whole, seq.pages, units)
        if node.checkpoint and kind.value > node.kind.value:
            node.kind = kind
        self.retention.shelve_path(node)
        return node

    def _settle(self, node: Node, units: list[Unit]) -> None:
        self.captures += node.checkpoint
        self.retention.shelve(node, again=True)
        if not node.checkpoint:
            node.kind, node.lost = Kind.PATH, "there was no room for its image"
            self.retention.prune(node, units)

    def _advance_session(self, session: str, node: Node) -> None:
        """Make a node its session's endpoint; the one before will hardly be asked for again."""
        before = self.sessions.get(session)
        self.sessions[session] = node
        node.session = session
        if before is not None and before is not node:
            self.supersede(before)
        if len(self.sessions) > 64 + 2 * len(self.retention):
            self.sessions = {name: node for name, node in self.sessions.items() if node.session == name}

    def supersede(self, node: Node) -> None:
        """Let a checkpoint go early: its conversation has moved on."""
        if node.kind is Kind.ENDPOINT:
            node.kind, node.session = Kind.SUPERSEDED, None
            self.retention.shelve(node, again=True)


def _reason(match: Match, source: Source, stop: int) -> str | None:
    """Say why a request could not start further on; None when nothing was left to compute."""
    if source.frontier >= stop:
        return None
    if match.common == 0:
        return "nothing retained begins like this prompt"
    where = f"first difference at token {match.common}, nearest checkpoint at {source.frontier}"
    if match.common == source.frontier:
        return f"{where}: nothing retained goes on"
    passed = [node for node in match.nodes if node.frontier > source.frontier]
    if any(node.checkpoint for node in passed):
        return f"{where}: recomputing was cheaper than copying from the host"
    lost = next((node.lost for node in reversed(passed) if node.lost), "")
    return f"{where}: {lost or 'nobody had branched off there before'}"
