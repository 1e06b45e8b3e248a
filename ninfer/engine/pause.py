"""Snapshots of paused requests: saved to the host, brought back, or revoked.

Owns every snapshot: a host blob with image and pages, plus the leading pages that are shared with the
cache and simply stay held.  Promises that a snapshot only ever displaces cached state and snapshots
of younger requests, and that revoking one loses nothing but time (the request replays instead).

The one thing a reader would get wrong: a snapshot of a request whose pages are all shared may save
no page at all, yet keeps device pages held; revoking it is what sets those free.
"""

from __future__ import annotations

import attrs

from ninfer.engine.costs import prefill_seconds, transfer_seconds
from ninfer.engine.device import HostLoad, Unit
from ninfer.engine.host import Blob
from ninfer.engine.retention import Retention
from ninfer.engine.sequence import Sequence
from ninfer.engine.space import Space


@attrs.frozen
class Snapshot:
    """``held`` are the first pages of the table, still on the device; ``blob`` has the rest."""

    blob: Blob
    held: tuple[int, ...]


@attrs.define(eq=False)
class Snapshots:
    """All paused state that need not be recomputed."""

    space: Space
    retention: Retention
    kept: dict[Sequence, Snapshot] = attrs.field(factory=dict)
    revoked: list[Sequence] = attrs.field(factory=list)  # for the scheduler to report

    def save(self, seq: Sequence, units: list[Unit]) -> bool:
        """Save a resident that is being paused; False when it must replay instead."""
        pages = seq.pages[: self.space.pages_for(seq.frontier)]
        shared = next((i for i, page in enumerate(pages) if not self.space.pages.shared(page)), len(pages))
        held, own = pages[:shared], pages[shared:]
        size = self.space.host.size(True, len(own))
        again = prefill_seconds(self.retention.costs, 0, seq.frontier)
        if transfer_seconds(self.retention.costs, 2 * size) >= again or not self._room(seq, size, units):
            return False
        blob = self.space.host.save(seq.slot, own, units)
        self.space.pages.hold(held)
        self.kept[seq] = Snapshot(blob, held)
        return True

    def _room(self, seq: Sequence, size: int, units: list[Unit]) -> bool:
        older = sum(shot.blob.size for other, shot in self.kept.items() if other.order < seq.order)
        if older + size > self.space.host.capacity:
            return False
        while not self.retention.host_room(size, None, units):
            if not self.revoke_younger(seq, units):
                return False
        return True

    def needs(self, seq: Sequence, upto: int) -> int:
        """Return how many free or idle pages it takes to bring ``seq`` back and go on to ``upto``."""
        shot = self.kept[seq]
        have = len(shot.held) + shot.blob.pages
        tail_is_shared = shot.blob.pages == 0 and seq.reached % self.space.geometry.page_tokens > 0
        return shot.blob.pages + max(self.space.pages_for(upto) - have, 0) + tail_is_shared

    def load(self, seq: Sequence, units: list[Unit]) -> None:
        """Bring a snapshot back into the slot of ``seq``; its pages are known to be free."""
        shot = self.kept.pop(seq)
        pages = self.space.take_pages(shot.blob.pages)
        units.append(HostLoad(shot.blob.key, seq.slot, pages))
        self.space.host.drop(shot.blob, units)
        seq.pages = shot.held + pages
        seq.frontier = seq.reached

    def revoke(self, seq: Sequence, units: list[Unit]) -> bool:
        """Give up the snapshot of ``seq``, if it has one."""
        shot = self.kept.pop(seq, None)
        if shot is None:
            return False
        self.space.pages.release(shot.held)
        self.space.host.drop(shot.blob, units)
        return True

    def revoke_younger(self, seq: Sequence, units: list[Unit], *, holding: bool = False) -> Sequence | None:
        """Give up the youngest snapshot that is younger than ``seq``; return whose it was.

        ``holding`` asks for one that also holds device pages.
        """
        younger = [other for other in self.kept if other.order > seq.order]
        if holding:
            younger = [other for other in younger if self.kept[other].held]
        victim = max(younger, key=lambda other: other.order, default=None)
        if victim is not None:
            self.revoke(victim, units)
            self.revoked.append(victim)
        return victim

    def owner(self, key: int) -> Sequence | None:
        """Say whose snapshot a host blob is, if it still is one."""
        return next((seq for seq, shot in self.kept.items() if shot.blob.key == key), None)

    def held_by_younger(self, seq: Sequence) -> int:
        """Count the device pages that only revoking younger snapshots would set free, at most."""
        return sum(len(shot.held) for other, shot in self.kept.items() if other.order > seq.order)
