"""All memory of one device together: lanes, pages, slots, host bytes, retained contexts, snapshots.

Owns nothing of its own; it builds the parts, answers questions about fit, and proves the ledger.  The
one thing a reader would get wrong: ``available`` counts pages that are free or that only the cache
keeps, so what fits may still need the cache to give something up first.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from ninfer.engine.cache import Cache, Source
from ninfer.engine.device import Bind, Geometry, Unit
from ninfer.engine.disk import Disk
from ninfer.engine.host import Blob
from ninfer.engine.pause import Snapshots
from ninfer.engine.prefix import Tree
from ninfer.engine.retention import Retention
from ninfer.engine.sequence import Sequence
from ninfer.engine.space import Space
from ninfer.faults import Broken, StartupError
from ninfer.settings import EngineOptions


@attrs.frozen
class Memory:
    """The parts; see their own modules."""

    space: Space
    cache: Cache
    retention: Retention
    snapshots: Snapshots
    disk: Disk

    @classmethod
    def of(cls, geometry: Geometry, options: EngineOptions) -> Memory:
        """Build everything for one device.  Raises ``StartupError`` if one request could not run alone."""
        _check(geometry)
        space = Space(geometry)
        tree = Tree(geometry.page_tokens, space.pages, space.slots, space.host)
        retention = Retention(tree, options.costs)
        cache = Cache(space, retention, options.prefix_reuse)
        return cls(space, cache, retention, Snapshots(space, retention), Disk(options.costs))

    @property
    def available(self) -> int:
        """How many pages are free or could be given up by the cache."""
        return self.space.pages.free + self.space.pages.idle

    @property
    def checkpoints(self) -> int:
        """How many images are retained, on the device and on the host."""
        return len(self.retention.images) + self.space.host.statistics().images - len(self.snapshots.kept)

    def source_for(self, seq: Sequence, stop: int) -> Source:
        """Choose where ``seq`` starts to get state for its first ``stop`` tokens."""
        return self.cache.find(seq, seq.history(stop))

    def needs(self, seq: Sequence, stop: int, upto: int) -> int:
        """Return the pages it takes to give ``seq`` its first ``stop`` tokens and go on to ``upto``."""
        if seq in self.snapshots.kept:
            return self.snapshots.needs(seq, upto)
        return self.cache.pages_needed(self.source_for(seq, stop), upto)

    def affordable_source(self, seq: Sequence, stop: int) -> Source:
        """Choose the same, or the root where the pages on the way could not be had."""
        source = self.source_for(seq, stop)
        if self.cache.pages_needed(source, stop) > self.available:
            return Source(common=source.common, reason="no room for its retained prefix")
        return source

    def take_lane(self, seq: Sequence, source: Source | None, units: list[Unit]) -> None:
        """Bind a lane and fill its slot from ``source``, or from the snapshot when there is none."""
        seq.lane = self.space.take_lane()
        units.append(Bind(seq.lane, seq.job.sampling, seq.sampled))
        if source is None:
            self.retention.free_slot(units)
            seq.slot = self.space.take_slot()
            self.retention.free_pages(self.snapshots.kept[seq].blob.pages, units)
            self.snapshots.load(seq, units)
        else:
            self.cache.seat(seq, source, units)
        self.cache.forget(seq)
        seq.bypassed = 0

    def grow(self, seq: Sequence, upto: int, units: list[Unit]) -> bool:
        """Make room for tokens ``frontier .. upto``, at the cost of the cache alone."""
        while not self.space.grow(seq, upto, units):
            if not self.retention.free_pages(self.space.missing(seq, upto), units):
                return False
        return True

    def squeeze(self, seq: Sequence, upto: int, units: list[Unit]) -> bool:
        """Make that room by giving up even what only shares pages with ``seq``, piece by piece."""
        while not self.space.grow(seq, upto, units):
            if not self.retention.give_up_one(units):
                return False
        return True

    def release(self, seq: Sequence, units: list[Unit]) -> None:
        """Take back everything ``seq`` has anywhere."""
        self.cache.forget(seq)
        self.snapshots.revoke(seq, units)
        self.space.release(seq)

    def check(self, residents: Iterable[Sequence], coming: Iterable[Blob] = ()) -> None:
        """Raise ``Broken`` unless everything is exactly where its owners say; ``coming`` is being read."""
        residents = list(residents)
        shots = list(self.snapshots.kept.values())
        claimed = sorted([*self.space.lanes, *(seq.lane for seq in residents)])
        if claimed != list(range(self.space.geometry.lanes)):
            raise Broken(f"lanes are lost or doubled: {claimed}")
        pages, slots, blobs = self.retention.tree.claims()
        held = [page for seq in residents for page in seq.pages]
        held += [page for shot in shots for page in shot.held]
        self.space.pages.check(held, pages)
        self.space.slots.check([seq.slot for seq in residents], slots)
        self.space.host.check([*blobs, *coming, *(shot.blob for shot in shots)])


def _check(geometry: Geometry) -> None:
    needed = -(-geometry.max_context // geometry.page_tokens)
    if geometry.pages < max(needed, geometry.lanes):
        raise StartupError(
            f"{geometry.pages} KV pages cannot hold one context of {geometry.max_context} tokens "
            f"({needed} pages) on {geometry.lanes} lanes; raise --kv-capacity or lower --max-context"
        )
    if geometry.slots < geometry.lanes:
        raise StartupError(f"{geometry.slots} state slots are fewer than {geometry.lanes} lanes")
