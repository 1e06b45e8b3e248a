"""Retained contexts across restarts: written when the engine has come to rest, recalled before it serves.

Owns the order of copies between tree, host memory and store.  Promises that recalling stops where host
memory is full, that a stretch is only recalled below its parent, and that nothing here runs beside
requests: the caller has drained the engine, or has not started it.

The one thing a reader would get wrong: contexts come back on the host tier, not on the device; the
first request that wants one pays the copy.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Protocol, TypeVar

import attrs

from ninfer.engine.context_store import ROOT, Stretch, name_of
from ninfer.engine.device import Archive, Device, Unit
from ninfer.engine.host import Blob
from ninfer.engine.memory import Memory
from ninfer.engine.prefix import Kind, Node

T = TypeVar("T")
KINDS = tuple(Kind)  # a stretch on disk names its kind by index: append, never reorder


class Store(Protocol):
    """Where stretches are kept; all methods block."""

    def write(self, stretch: Stretch) -> None:
        """Keep a stretch."""

    def has(self, name: bytes) -> bool:
        """Whether a stretch of that name is kept."""

    def read_all(self) -> Iterator[Stretch]:
        """Yield every good stretch, parents first."""

    def keep_only(self, names: set[bytes]) -> None:
        """Forget all others."""


@attrs.frozen
class Persistence:
    """Moves contexts between one device's memory and a store; ``run_blocking`` runs I/O on a thread."""

    device: Device
    archive: Archive
    memory: Memory
    store: Store
    run_blocking: Callable[[Callable[[], object]], Awaitable[object]]

    # Out

    async def save(self) -> int:
        """Write every context that the host could hold again; return how many stretches are kept."""
        names: dict[Node, bytes] = {self.memory.retention.tree.root: ROOT}
        kept: set[bytes] = set()
        budget = self.memory.space.host.capacity
        for node in sorted(self.memory.retention.tree, key=lambda node: node.frontier):
            parent = names.get(node.parent) if node.parent else None
            size = self.memory.space.host.size(node.checkpoint, self.memory.cache.page_count(node))
            if parent is None or size > budget:
                continue
            budget -= size
            names[node] = name = name_of(parent, node.part)
            kept.add(name)
            await self._save_one(node, name, parent)
        await self.run_blocking(lambda: self.store.keep_only(kept))
        return len(kept)

    async def _save_one(self, node: Node, name: bytes, parent: bytes) -> None:
        if await self.run_blocking(lambda: self.store.has(name)):
            return
        image = await self._image(node) if node.checkpoint else b""
        stretch = Stretch(name, parent, node.part, KINDS.index(node.kind), await self._kv(node), image)
        await self.run_blocking(lambda: self.store.write(stretch))

    async def _kv(self, node: Node) -> bytes:
        if node.blob is None:
            return await self.archive.export(None, node.pages)
        count = self.memory.cache.page_count(node)
        return await self.archive.export_host(node.blob.key, node.offset, count)

    async def _image(self, node: Node) -> bytes:
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
            if parent is not None and self._fits(stretch):
                nodes[stretch.name] = await self._recall_one(parent, stretch)
        for node in nodes.values():
            self.memory.retention.shelve(node)
        await self._prune(list(nodes.values()))
        return len(nodes) - 1

    def _fits(self, stretch: Stretch) -> bool:
        host = self.memory.space.host
        return host.fits(host.size(bool(stretch.image), self._pages(stretch)))

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

    async def _put(self, blob: Blob, payload: bytes) -> None:
        await self.archive.import_host(blob.key, payload, blob.pages)
        blob.landed = True

    async def _prune(self, nodes: list[Node]) -> None:
        """Drop stretches that lead to no checkpoint because what was below did not fit."""
        units: list[Unit] = []
        for node in sorted(nodes, key=lambda node: -node.frontier):
            self.memory.retention.prune(node, units)
        for unit in units:
            await self.device.submit(unit).result()
