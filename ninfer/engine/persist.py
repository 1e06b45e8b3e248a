"""Retained contexts across restarts: written while the engine rests, recalled before it serves.

Owns the order of copies between tree, host memory and store.  Promises that what is written is what is
worth most within the bounds of disk and host, that saving steps aside as soon as ``resting`` says that
there is work, that recalling stops where host memory is full, and that a stretch is only recalled below
its parent.

The one thing a reader would get wrong: contexts come back on the host tier, not on the device; the
first request that wants one pays the copy.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Set
from typing import Protocol

import attrs

from ninfer.engine.context_store import ROOT, Stretch, name_of, stretch_bytes
from ninfer.engine.costs import transfer_seconds
from ninfer.engine.device import Archive, Device, Raw, Unit
from ninfer.engine.host import Blob
from ninfer.engine.identity import Identity
from ninfer.engine.memory import Memory
from ninfer.engine.prefix import Kind, Node

KINDS = tuple(Kind)  # a stretch on disk names its kind by index: append, never reorder


class Store(Protocol):
    """Where stretches are kept; all methods but ``has`` block."""

    @property
    def capacity(self) -> int:
        """Bytes in all."""

    def write(self, stretch: Stretch, keep: Set[bytes]) -> bool:
        """Keep a stretch, at the cost of others but ``keep``; False when it does not fit."""

    def has(self, name: bytes) -> bool:
        """Whether a stretch of that name is kept."""

    def read_all(self) -> Iterator[Stretch]:
        """Yield every good stretch, parents first."""

    def keep_only(self, names: Set[bytes]) -> None:
        """Forget all others."""


@attrs.define(eq=False)
class Persistence:
    """Moves contexts between one device's memory and a store; ``run_blocking`` runs I/O on a thread.

    ``resting`` says whether the engine has nothing to do; ``saved`` is the version of the tree that the
    store has.
    """

    device: Device
    archive: Archive
    memory: Memory
    store: Store
    run_blocking: Callable[[Callable[[], object]], Awaitable[object]]
    resting: Callable[[], bool] = lambda: True
    saved: int = -1

    @property
    def version(self) -> int:
        """Changes with what there is to save."""
        return self.memory.retention.tree.version

    # Out

    async def save(self) -> int:
        """Write what is worth keeping, forget what went; return how many stretches are kept.

        Stops early, and forgets nothing, when the engine has work.  Raises ``OSError``.
        """
        version, names = self.version, self._names()
        keep = set(names.values())
        for node, name in names.items():
            parent = names.get(node.parent, ROOT) if node.parent else ROOT
            if not await self._save_one(node, name, parent, keep):
                return len(keep)
        await self.run_blocking(lambda: self.store.keep_only(keep))
        self.saved = version
        return len(keep)

    def _names(self) -> dict[Node, bytes]:
        """Choose what to keep, and name it, parents first."""
        names: dict[Node, bytes] = {}
        for node in sorted(self._chosen(), key=lambda node: node.frontier):
            names[node] = name_of(names.get(node.parent, ROOT) if node.parent else ROOT, node.part)
        return names

    def _chosen(self) -> set[Node]:
        """Take checkpoints, most worth a byte first, each with the way to it, while there is room."""
        retention, room = self.memory.retention, min(self.store.capacity, self.memory.space.host.capacity)
        chosen: set[Node] = set()
        for node in sorted(filter(self._worthy, retention.tree), key=retention.image_worth, reverse=True):
            way = [each for each in node.path() if each not in chosen]
            size = sum(map(self._size, way))
            if size <= room:
                room -= size
                chosen.update(way)
        return chosen

    def _worthy(self, node: Node) -> bool:
        """Whether a checkpoint is one that copying brings back quicker than recomputing."""
        retention = self.memory.retention
        return node.checkpoint and transfer_seconds(retention.costs, self._size(node)) < retention.loss(
            node
        )

    def _size(self, node: Node) -> int:
        payload = self.memory.space.host.size(node.checkpoint, self.memory.cache.page_count(node))
        return stretch_bytes(node.part, payload)

    async def _save_one(self, node: Node, name: bytes, parent: bytes, keep: Set[bytes]) -> bool:
        """Write one stretch unless it is there; False when something came in between."""
        if self.store.has(name):
            return True
        part, image = node.part, b""
        # What is exported is decided and queued without a pause in between, so no unit can change it.
        if not self._stands(node, part):
            return False
        kv = await self._kv(node)
        if not self._stands(node, part):
            return False
        if node.checkpoint:
            image = bytes(await self._image(node))
        stretch = Stretch(name, parent, part, KINDS.index(node.kind), bytes(kv), image)
        return bool(await self.run_blocking(lambda: self.store.write(stretch, keep)))

    def _stands(self, node: Node, part: Identity) -> bool:
        return self.resting() and node.parent is not None and node.part is part

    async def _kv(self, node: Node) -> Raw:
        if node.blob is None:
            return await self.archive.export(None, node.pages)
        count = self.memory.cache.page_count(node)
        return await self.archive.export_host(node.blob.key, node.offset, count)

    async def _image(self, node: Node) -> Raw:
        if node.image is None:
            return await self.archive.export(node.slot, ())
        return await self.archive.export_host(node.image.key, 0, 0)

    # In

    async def recall(self) -> int:
        """Bring stored contexts to the host as far as they fit; return how many stretches came back."""
        stretches = iter(self.store.read_all())
        nodes: dict[bytes, Node] = {ROOT: self.memory.retention.tree.root}
        while True:
            stretch = await self.run_blocking(lambda: next(stretches, None))
            if not isinstance(stretch, Stretch):
                break
            parent = nodes.get(stretch.parent)
            if parent is not None and self._fits(parent, stretch):
                nodes[stretch.name] = await self._recall_one(parent, stretch)
        for node in nodes.values():
            self.memory.retention.shelve(node)
        await self._prune(list(nodes.values()))
        self.saved = self.version
        return len(nodes) - 1

    def _fits(self, parent: Node, stretch: Stretch) -> bool:
        """Whether there is host memory, and nothing in its place (a stretch as it was before a split)."""
        host, part = self.memory.space.host, stretch.part
        free = host.fits(host.size(bool(stretch.image), self._pages(stretch)))
        return free and part.key(part.start) not in parent.children

    def _pages(self, stretch: Stretch) -> int:
        first = stretch.part.start // self.memory.space.geometry.page_tokens
        return self.memory.space.pages_for(stretch.part.stop) - first

    async def _recall_one(self, parent: Node, stretch: Stretch) -> Node:
        host = self.memory.space.host
        kv, image = host.reserve(False, self._pages(stretch)), None
        await self._put(kv, stretch.kv)
        if stretch.image:
            image = host.reserve(True, 0)
            await self._put(image, stretch.image)
        kind = KINDS[stretch.kind] if stretch.image else Kind.PATH
        return self.memory.retention.tree.attach(parent, stretch.part, kv, image, kind)

    async def _put(self, blob: Blob, payload: Raw) -> None:
        """Fill a blob; raises ``ValueError`` for bytes of another size."""
        room = await self.archive.room(blob.key, blob.pages)
        room[:] = payload
        blob.landed = True

    async def _prune(self, nodes: list[Node]) -> None:
        """Drop stretches that lead to no checkpoint because what was below did not fit."""
        units: list[Unit] = []
        for node in sorted(nodes, key=lambda node: -node.frontier):
            self.memory.retention.prune(node, units)
        for unit in units:
            await self.device.submit(unit).result()
