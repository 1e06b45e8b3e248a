"""What is kept when memory is short: leaves first, least loss per byte first, device before host.

Owns the three orders of giving up (KV leaves on the device, images on the device, anything on the
host).  Promises that room is made with the smallest expected loss, that what is worth its transfer
moves to the host instead of vanishing, and that nobody's running state is ever touched.

The one thing a reader would get wrong: giving up a node's image does not free pages, and giving up
pages takes the images above nothing but that leaf with it; a node that is left with neither image nor
children is removed at once.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import attrs

from ninfer.engine.costs import prefill_seconds, transfer_seconds
from ninfer.engine.device import Unit
from ninfer.engine.prefix import Node, Tree
from ninfer.engine.shelf import Shelf
from ninfer.settings import ContextCosts

T = TypeVar("T", bound=Hashable)
HostItem = tuple[Node, bool]  # (node, True: its KV, False: its image)


@attrs.define(eq=False)
class Retention:
    """Makes room in pages, slots and host bytes by giving up retained state."""

    tree: Tree
    costs: ContextCosts
    leaves: Shelf[Node] = attrs.field(factory=Shelf)
    images: Shelf[Node] = attrs.field(factory=Shelf)
    hosted: Shelf[HostItem] = attrs.field(factory=Shelf)
    pinned: set[Node] = attrs.field(factory=set)
    spilled_pages: int = 0
    given_up: int = 0

    def __len__(self) -> int:
        """Return how many images are kept."""
        return len(self.images) + len(self.hosted)

    # Worth

    def loss(self, node: Node) -> float:
        """Return the seconds of recomputation that losing this checkpoint is expected to cost."""
        if not node.kind.value:
            return 0.0
        base = node.base()
        return (
            node.kind.value
            * (1 + node.hits)
            * prefill_seconds(self.costs, base, max(node.frontier - base, 0))
        )

    def worth(self, node: Node) -> float:
        """Return the loss per byte of a node's KV and image together."""
        size = self.tree.host.size(node.checkpoint, self._page_count(node))
        return self.loss(node) / max(size, 1)

    def image_worth(self, node: Node) -> float:
        """Return the loss per byte of a node's image."""
        return self.loss(node) / max(self.tree.host.image_bytes, 1)

    def shelve(self, node: Node | None, *, again: bool = False) -> None:
        """Put a node where its present state belongs; ``again`` renews its age."""
        if node is None or node.parent is None:  # the root, or removed meanwhile
            return
        kv, image = self.worth(node), self.image_worth(node)
        _place(self.leaves, node, node.on_device and node.leaf, kv, again)
        _place(self.images, node, node.slot >= 0, image, again)
        _place(self.hosted, (node, False), node.image is not None, image, again)
        _place(self.hosted, (node, True), not node.on_device and not node.children, kv, again)

    def shelve_path(self, node: Node) -> None:
        """Do the same for all nodes down to one that was just put in its place."""
        for each in node.path():
            self.shelve(each)
            for child in each.children.values() if len(each.children) == 1 else ():
                self.shelve(child)  # the lower half of a stretch that was split

    def _page_count(self, node: Node) -> int:
        size = self.tree.page_tokens
        return -(-node.frontier // size) - node.part.start // size

    @contextmanager
    def pin(self, *nodes: Node) -> Iterator[None]:
        """Keep nodes from being given up while they are being worked on."""
        fresh = set(nodes) - self.pinned
        self.pinned |= fresh
        try:
            yield
        finally:
            self.pinned -= fresh

    # Device pages

    def free_pages(self, count: int, units: list[Unit]) -> bool:
        """Give up cached pages until ``count`` are free; False when none could be given up."""
        pages, moved = self.tree.pages, False
        while pages.free < count and pages.idle:
            node = self.leaves.lowest(self._frees_pages)
            if node is not None:
                self._give_up_leaf(node, units)
            elif not self.give_up_one(units):
                break
            moved = True
        return moved

    def give_up_one(self, units: list[Unit]) -> bool:
        """Give up the least valuable leaf even if its pages are in use elsewhere; False if none is left."""
        node = self.leaves.lowest(self._is_free_to_go)
        if node is not None:
            self._give_up_leaf(node, units)
        return node is not None

    def _is_free_to_go(self, node: Node) -> bool:
        return node not in self.pinned

    def _frees_pages(self, node: Node) -> bool:
        return node not in self.pinned and any(not self.tree.pages.held(page) for page in node.pages)

    def _give_up_leaf(self, node: Node, units: list[Unit]) -> None:
        size = self.tree.host.size(False, len(node.pages))
        with self.pin(node):
            kept = self._is_worth_moving(node, size) and self.host_room(size, self.worth(node), units)
        if not kept or not (node.checkpoint or node.children):
            self._remove(node, units)
            return
        self.spilled_pages += len(node.pages)
        self.tree.spill(node, units)
        self.shelve(node)
        assert node.parent is not None
        self.shelve(node.parent)

    def _is_worth_moving(self, node: Node, size: int) -> bool:
        """Whether copying is quicker than recomputing; a node on the way to others always is."""
        return bool(node.children) or transfer_seconds(self.costs, size) < self.loss(node)

    # Slots

    def free_slot(self, units: list[Unit], worth: float | None = None) -> bool:
        """Make a slot free; with ``worth``, only at the cost of images worth less per byte."""
        if self.tree.slots.free:
            return True
        node = self.images.lowest(self._is_free_to_go, worth)
        if node is None:
            return False
        if self.host_image(node, node.slot, units):
            self.tree.slots.forget((node.slot,))
            node.slot = -1
            self.shelve(node)
        else:
            self.strip(node, "its image was given up for a slot", units)
        return True

    # Host bytes

    def host_image(self, node: Node, slot: int, units: list[Unit]) -> bool:
        """Copy the image in ``slot`` to the host for ``node``, if that pays and fits."""
        size = self.tree.host.image_bytes
        if transfer_seconds(self.costs, size) >= self.loss(node):
            return False
        with self.pin(node):
            room = self.host_room(size, self.image_worth(node), units)
        if room:
            node.image = self.tree.host.save(slot, (), units)
        return room

    def host_room(self, size: int, worth: float | None, units: list[Unit]) -> bool:
        """Make ``size`` host bytes free; with ``worth``, only at the cost of what is worth less."""
        host = self.tree.host
        if size > host.capacity:
            return False
        while not host.fits(size):
            item = self.hosted.lowest(lambda item: item[0] not in self.pinned, worth)
            if item is None:
                return False
            node, is_kv = item
            if is_kv:
                self._remove(node, units)
            else:
                self.strip(node, "its image was given up for host memory", units)
        return True

    # Structure

    def strip(self, node: Node, why: str, units: list[Unit]) -> None:
        """Give up a checkpoint's image, and the node with it when nothing else needs it."""
        self.given_up += 1
        self.tree.strip(node, why, units)
        self.shelve(node)
        self.prune(node, units)

    def prune(self, node: Node, units: list[Unit]) -> None:
        """Remove a node, and those above it, that lead to no checkpoint any more."""
        while node.parent is not None and not node.checkpoint and not node.children:
            if node in self.pinned:
                return
            above = node.parent
            self._forget(self.tree.remove(node, units))
            node = above
        self.shelve(node)

    def _remove(self, node: Node, units: list[Unit]) -> None:
        self.given_up += 1
        above = node.parent
        self._forget(self.tree.remove(node, units))
        assert above is not None
        self.prune(above, units)

    def _forget(self, gone: list[Node]) -> None:
        for node in gone:
            self.leaves.drop(node)
            self.images.drop(node)
            self.hosted.drop((node, False))
            self.hosted.drop((node, True))


def _place(shelf: Shelf[T], thing: T, belongs: bool, worth: float, again: bool) -> None:
    if not belongs:
        shelf.drop(thing)
    elif again or thing not in shelf:
        shelf.put(thing, worth)
