"""Retained contexts between memory and files: written while the engine rests, read when a request asks.

Owns the order of copies between tree, host memory and store.  Promises that what is written is what is
worth most within the bound of the disk, that writing steps aside as soon as there is work, and that what
has been read is only believed whole: every file of a fetch, or none.

The one thing a reader would get wrong: nothing is read at start-up but the heads of files.  The first
request that wants a context pays for reading it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence, Set
from contextlib import contextmanager
from functools import partial
from typing import Protocol, TypeVar

import anyio.lowlevel
import attrs

from ninfer.engine.context_store import Damaged, file_bytes
from ninfer.engine.costs import disk_seconds, transfer_seconds
from ninfer.engine.device import Archive, DeviceFailed, Raw
from ninfer.engine.disk import KINDS, Disk, Foreign, Stretch
from ninfer.engine.fetch import Fetch
from ninfer.engine.identity import Identity
from ninfer.engine.loop import Engine
from ninfer.engine.prefix import Node

T = TypeVar("T")
PIECE = 64 << 20  # bytes that the device gives out at a time
SLICE = 200  # nodes that are looked at before others have their turn
FILE = 256 << 20  # bytes of KV in a file, which lie in memory while it is written; an image has what it has


class Store(Protocol):
    """Where state is kept; all methods block."""

    def scan(self) -> tuple[list[Stretch], list[Foreign]]:
        """Find what may be used, and what only takes room, oldest first."""

    def write(
        self, whole: Identity, start: int, kind: int, state: Sequence[Raw], instead_of: Iterable[str] = ()
    ) -> Stretch:
        """Keep the state of the tokens from ``start`` on; raises ``OSError``."""

    def read(self, stretch: Stretch, into: memoryview) -> None:
        """Fill memory; raises ``Damaged`` or ``OSError``."""

    def remove(self, names: Iterable[str]) -> None:
        """Forget files."""


@attrs.define(eq=False)
class Persistence:
    """Moves contexts between an engine's memory and a store; ``run_blocking`` runs I/O on a thread.

    ``saved`` is the version of the tree that the store has, ``file_bytes`` how much KV goes into a file.
    One call at a time.
    """

    engine: Engine
    archive: Archive
    store: Store
    run_blocking: Callable[[Callable[[], object]], Awaitable[object]]
    saved: int = -1
    file_bytes: int = FILE

    @property
    def version(self) -> int:
        """Changes with what there is to save."""
        return self.engine.scheduler.memory.retention.tree.version

    @property
    def disk(self) -> Disk:
        """What is where."""
        return self.engine.scheduler.memory.disk

    async def open(self) -> int:
        """Find out what is there; return how many files are of use."""
        found: list[tuple[list[Stretch], list[Foreign]]] = []
        await self.run_blocking(lambda: found.append(self.store.scan()))
        stretches, foreign = found[0]
        for file in foreign:
            self.disk.add_foreign(file)
        stretches.sort(key=lambda one: (one.start, one.stop))  # the way to each before it
        async for stretch in _unhurried(stretches):
            self.disk.add(stretch)
        self.disk.make_room(0, None)
        await self._sweep()
        return len(self.disk)

    async def _sweep(self) -> None:
        with self._removed() as names:
            if names:
                await self.run_blocking(lambda: self.store.remove(names))

    @contextmanager
    def _removed(self) -> Iterator[list[str]]:
        """Hand out the names of rubbish; it is tried again next time if it could not be removed."""
        names = self.disk.take_rubbish()
        try:
            yield names
        except OSError:
            self.disk.rubbish += names
            raise

    # Out

    async def save(self) -> None:
        """Write what is worth keeping.  Stops early when the engine has work.

        Raises ``OSError``, ``DeviceFailed`` and ``MemoryError``.
        """
        version = self.version
        for node in sorted(await self._chosen(), key=lambda node: node.frontier):
            await anyio.lowlevel.checkpoint()  # there may be thousands, and nothing to write
            if not await self._save_one(node):
                return
        self.saved = version
        await self._sweep()

    async def _chosen(self) -> list[Node]:
        """Take checkpoints, most worth a byte first, with the way to each, while there is room.

        What changes meanwhile may be chosen still; ``_save_one`` looks again.
        """
        retention, room = self.engine.scheduler.memory.retention, self.disk.capacity
        host = retention.tree.host
        chosen: list[Node] = []
        ways: set[Node] = set()
        worth = [(retention.image_worth(node), node) async for node in _unhurried(retention.tree)]
        worth.sort(key=lambda one: one[0], reverse=True)
        async for _, node in _unhurried(worth):
            way = _way(node, ways)
            size = host.size(True, sum(map(self._page_count, way)))
            gain = retention.loss(node) - transfer_seconds(retention.costs, size)
            if node.checkpoint and size <= room and disk_seconds(retention.costs, size) < gain:
                room -= size
                chosen.append(node)
                ways.update(way)
        return chosen

    def _page_count(self, node: Node) -> int:
        return self.engine.scheduler.memory.cache.page_count(node)

    async def _save_one(self, node: Node) -> bool:
        """Write what of a checkpoint is not there; False when something came in between."""
        part = node.part
        if not self._stands(node, part):
            return False
        whole = _history(node)
        while (known := self.disk.way(whole)[1]) < whole.stop:
            if not await self._write(node, whole.part(0, self._reach(whole, known)), known):
                return False
            if self.disk.way(whole)[1] == known:
                return True  # it does not fit; the next one may
        place = self.disk.at(whole)
        if place is None or place.image is None:
            return await self._write(node, whole, whole.stop)
        self.disk.value(place, node.kind, node.hits)
        return True

    def _reach(self, whole: Identity, start: int) -> int:
        """Return where a file ends whose KV begins at ``start``: at a page's end, never inside an item."""
        geometry = self.engine.device.geometry
        pages = max(1, self.file_bytes // geometry.page_bytes)
        stop = min((start // geometry.page_tokens + pages) * geometry.page_tokens, whole.stop)
        return next((item[1] for item in whole.media if item[0] < stop < item[1]), stop)

    async def _write(self, node: Node, whole: Identity, start: int) -> bool:
        """Write the KV from ``start`` on, or the image where nothing is left; False if disturbed.

        ``whole`` is what ``node`` ends, or its beginning.
        """
        part, state, image = node.part, list[Raw](), start == whole.stop
        for export in self._image(node) if image else self._kv(node, start, whole.stop):
            # What is exported is decided and queued without a pause in between, so no unit can change it.
            if not self._stands(node, part):
                return False
            state.append(await export())
        keep, _ = self.disk.way(whole)
        size = file_bytes(whole, sum(map(len, state)))
        retention = self.engine.scheduler.memory.retention
        worth = retention.image_worth(node) if image else retention.worth(node)
        if not self._stands(node, part) or not self.disk.make_room(size, worth, set(keep)):
            return self._stands(node, part)  # it may not fit where the next one does
        kind, written, write = KINDS.index(node.kind), list[Stretch](), self.store.write
        with self._removed() as names:
            await self.run_blocking(lambda: written.append(write(whole, start, kind, state, names)))
        self.disk.add(written[0])
        self.engine.scheduler.counters.disk_written_bytes += written[0].size
        return True

    def _stands(self, node: Node, part: Identity) -> bool:
        return self.engine.resting and node.parent is not None and node.part is part

    def _image(self, node: Node) -> Iterator[Callable[[], Awaitable[Raw]]]:
        if node.image is None:
            yield partial(self.archive.export, node.slot, ())
        else:
            yield partial(self.archive.export_host, node.image.key, 0, 0)

    def _kv(self, node: Node, start: int, stop: int) -> Iterator[Callable[[], Awaitable[Raw]]]:
        """Export the pages that hold the tokens ``start .. stop``, some at a time."""
        geometry = self.engine.device.geometry
        path, size = node.path(), geometry.page_tokens
        ends = [below.part.start // size for below in path[1:]] + [-(-node.frontier // size)]
        last = -(-stop // size)
        for each, end in zip(path, ends, strict=True):
            first = each.part.start // size
            end = min(end, last)
            for begin in range(max(first, start // size), end, max(1, PIECE // geometry.page_bytes)):
                count = min(end - begin, max(1, PIECE // geometry.page_bytes))
                yield partial(self._pages, each, begin - first, count)

    def _pages(self, node: Node, at: int, count: int) -> Awaitable[Raw]:
        if node.blob is None:
            return self.archive.export(None, node.pages[at : at + count])
        return self.archive.export_host(node.blob.key, node.offset + at, count)

    # In

    async def read(self, fetch: Fetch) -> str | None:
        """Read the files of a fetch into host memory, and let the engine go on with what became of it.

        Returns what went wrong, if anything did.
        """
        scheduler, began = self.engine.scheduler, self.engine.clock()
        rooms: list[memoryview] = []
        try:
            for load in fetch.loads:
                rooms.append(await self.archive.room(load.blob.key, load.blob.pages))
        except (MemoryError, DeviceFailed) as problem:
            scheduler.no_room(fetch, len(rooms))
            self.engine.wake()
            why = "the host has no memory for it" if isinstance(problem, MemoryError) else str(problem)
            return f"of {fetch.size} bytes cannot be read: {why}"
        bad: list[tuple[Stretch, str]] = []
        for load, room in zip(fetch.loads, rooms, strict=True):
            if not bad:
                await self.run_blocking(partial(self._fill, load.stretch, room, bad))
        scheduler.counters.disk_read_seconds += self.engine.clock() - began
        if bad:
            scheduler.not_fetched(fetch, *bad[0])
        else:
            scheduler.fetched(fetch)
        self.engine.wake()
        return f"{bad[0][0].name} is ignored: {bad[0][1]}" if bad else None

    def _fill(self, stretch: Stretch, room: memoryview, bad: list[tuple[Stretch, str]]) -> None:
        """Runs on a thread."""
        try:
            self.store.read(stretch, room)
        except Damaged as problem:
            bad.append((stretch, str(problem)))
        except OSError as problem:
            bad.append((stretch, problem.strerror or "it cannot be read"))


async def _unhurried(things: Iterable[T]) -> AsyncIterator[T]:
    """Let others have their turn now and then: there may be thousands."""
    for number, thing in enumerate(things):
        if number % SLICE == 0:
            await anyio.lowlevel.checkpoint()
        yield thing


def _way(node: Node, known: Set[Node]) -> list[Node]:
    """Return the nodes that lead to this one, up to the first that is known, as all above it are."""
    found: list[Node] = []
    each: Node | None = node
    while each is not None and each.parent is not None and each not in known:
        found.append(each)
        each = each.parent
    return found


def _history(node: Node) -> Identity:
    """Describe all tokens up to the end of a node."""
    return Identity(0, b"").joined(*(each.part for each in node.path()))
