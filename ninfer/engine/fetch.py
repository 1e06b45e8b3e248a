"""Bringing back what is only on disk: who waits for which files, and what becomes of them in memory.

Owns the fetches under way and the host memory that they will fill.  Decides and keeps the books; whoever
reads files takes ``fresh`` fetches and says how each of them ended.  Promises that only a request that
gains by it waits, that it waits for no more than its own history, and that memory is taken when a fetch is
planned and belongs to the tree, or to nobody, when it has ended.

The one thing a reader would get wrong: a request that waits stays in line, unseen; others are admitted as
if it were not there.  What it waited for lands on the host tier, where it starts like any other request.
"""

from __future__ import annotations

import attrs

from ninfer.engine.cache import Cache, Source
from ninfer.engine.costs import disk_seconds, prefill_seconds, transfer_seconds
from ninfer.engine.device import Unit
from ninfer.engine.disk import Disk, Place, Stretch
from ninfer.engine.host import Blob
from ninfer.engine.identity import Identity
from ninfer.engine.prefix import Node
from ninfer.engine.sequence import Sequence

Files = dict[Stretch, int]  # to which token of the wanted history each of them leads


@attrs.frozen
class Load:
    """One file, and the host memory it goes to; up to ``stop`` it tells of the history that is wanted."""

    stretch: Stretch
    stop: int
    blob: Blob


@attrs.define(eq=False)
class Fetch:
    """The KV of the end of ``whole``, root side first, and the image behind it, last."""

    place: Place
    whole: Identity
    loads: tuple[Load, ...]
    waiting: list[Sequence] = attrs.field(factory=list)

    @property
    def size(self) -> int:
        """Bytes of its files."""
        return sum(load.stretch.size for load in self.loads)


@attrs.define(eq=False)
class Fetching:
    """Fetches of one engine; ``open`` says whether anybody reads files."""

    cache: Cache
    disk: Disk
    open: bool = False
    fresh: list[Fetch] = attrs.field(factory=list)
    pending: list[Fetch] = attrs.field(factory=list)
    waits: dict[Sequence, Fetch] = attrs.field(factory=dict)

    # Planning

    def look(self, seq: Sequence, units: list[Unit]) -> None:
        """Let a request wait if what it begins with is quicker read than computed."""
        if not (self.open and self.cache.reuse and seq.looks) or seq in self.waits:
            return
        whole = seq.history(seq.prompt_tokens)
        source = self.cache.find(seq, whole)
        if not seq.fetched:
            seq.spared = source.frontier
        for fetch in self.pending:
            if source.frontier < fetch.whole.stop == fetch.whole.agrees(whole):
                self._wait(seq, fetch)
                return
        files = self._choose(whole, source)
        seq.looks = seq.looks - 1 if files else 0
        if files:
            self._plan(seq, files, units)

    def _choose(self, whole: Identity, source: Source) -> Files:
        """Return the files of the image that is better to start from than ``source``, if one is."""
        costs, host = self.cache.costs, self.cache.space.host
        match = self.cache.retention.tree.match(whole)
        held = {node.frontier for node in match.nodes if node.checkpoint}
        least, best = source.seconds, -1
        places = [place for place in self.disk.match(whole) if place.frontier > source.frontier]
        taken, size, read = set[Stretch](), 0, 0  # what the KV up to a place takes
        for index, place in enumerate(places):
            if place.frontier > match.common and place.kv is not None and place.kv not in taken:
                taken.add(place.kv)
                size, read = size + self._memory(place.kv), read + place.kv.size
            if place.image is None or place.frontier in held:
                continue
            needed = size + self._memory(place.image)
            cost = transfer_seconds(costs, needed) + disk_seconds(costs, read + place.image.size)
            cost += prefill_seconds(costs, place.frontier, whole.stop - place.frontier)
            if cost < least and needed <= host.capacity:
                least, best = cost, index
        return _files(places[: best + 1], match.common)

    def _pages(self, file: Stretch) -> int:
        space = self.cache.space
        return 0 if file.image else space.pages_for(file.stop) - file.start // space.geometry.page_tokens

    def _memory(self, file: Stretch) -> int:
        return self.cache.space.host.size(file.image, self._pages(file))

    def _plan(self, seq: Sequence, files: Files, units: list[Unit]) -> None:
        """Take host memory for the files from whatever is retained there: they are wanted now."""
        retention, host, last = self.cache.retention, self.cache.space.host, list(files)[-1]
        size = sum(self._memory(file) for file in files)
        place = self.disk.at(last.whole)
        assert place is not None
        with retention.pin(*retention.tree.match(last.whole).nodes):
            room = retention.host_room(size, None, units)
        if not room:
            seq.looks = 0
            seq.missed = f"{last.stop} tokens are on disk, but there is no host memory for them"
            return
        loads = tuple(
            Load(file, stop, host.reserve(file.image, self._pages(file))) for file, stop in files.items()
        )
        fetch = Fetch(place, last.whole, loads)
        self.pending.append(fetch)
        self.fresh.append(fetch)
        self._wait(seq, fetch)

    def _wait(self, seq: Sequence, fetch: Fetch) -> None:
        self.waits[seq] = fetch
        fetch.waiting.append(seq)

    def take_fresh(self) -> list[Fetch]:
        """Return the fetches that nobody has been told of."""
        fresh, self.fresh = self.fresh, []
        return fresh

    # Ends

    def landed(self, fetch: Fetch, units: list[Unit]) -> bool:
        """Retain what has been read; False when what it hangs on was given up meanwhile."""
        host, retention = self.cache.space.host, self.cache.retention
        node: Node | None = None
        for load in fetch.loads:
            load.blob.landed = True
            kv = None if load.stretch.image else load.blob
            reached = retention.tree.graft(fetch.whole, load.stop, load.stretch.start, kv, node)
            if reached is None:
                break
            node = reached
        else:
            assert node is not None
            if not node.checkpoint:
                node.image, node.kind = host.share(fetch.loads[-1].blob), fetch.place.kind
            self.disk.hit(fetch.place)
        if node is not None:
            retention.shelve_path(node)
            retention.prune(node, units)
        self._end(fetch, units)
        self.release(fetch, None if reached else "what its state on disk hangs on was given up meanwhile")
        return reached is not None

    def failed(self, fetch: Fetch, stretch: Stretch, why: str, units: list[Unit]) -> None:
        """Give back the memory of a fetch, and forget a file that could not be read."""
        self.disk.lose(stretch)
        self._end(fetch, units)
        self.release(fetch, why)

    def no_room(self, fetch: Fetch, made: int, units: list[Unit]) -> None:
        """Give a fetch up for which the host lacks memory; its first ``made`` loads had got theirs."""
        for seq in fetch.waiting:
            seq.looks = 0
        self._end(fetch, units, made)
        self.release(fetch, "the host could not set memory aside")

    def _end(self, fetch: Fetch, units: list[Unit], made: int | None = None) -> None:
        """Drop its memory, and let the device do the same with what it knows of."""
        self.pending.remove(fetch)
        for index, load in enumerate(fetch.loads):
            known = made is None or index < made
            self.cache.space.host.drop(load.blob, units if known else [])

    def release(self, fetch: Fetch, why: str | None) -> None:
        """Let everyone go on who waits for a fetch; ``why`` it was of no use."""
        for seq in fetch.waiting:
            del self.waits[seq]
            seq.fetched = why is None
            seq.missed = why and f"{fetch.whole.stop} tokens were on disk, but {why}"
        fetch.waiting.clear()

    def late(self, fetch: Fetch) -> None:
        """Let everyone go on without it; what it reads is still of use to others."""
        for seq in fetch.waiting:
            seq.looks = 0
        self.release(fetch, "reading them took too long")

    def forget(self, seq: Sequence) -> None:
        """Hear that a request has left."""
        fetch = self.waits.pop(seq, None)
        if fetch is not None:
            fetch.waiting.remove(seq)

    # Accounting

    def claims(self) -> list[Blob]:
        """List the host memory of the fetches under way."""
        return [load.blob for fetch in self.pending for load in fetch.loads]


def _files(places: list[Place], common: int) -> Files:
    """Return the files of the image at the last of some places, root side first, and last its own."""
    files = {
        place.kv: place.frontier for place in places if place.frontier > common and place.kv is not None
    }
    for place in places[-1:]:
        if place.image is not None:
            files[place.image] = place.frontier
    return files
