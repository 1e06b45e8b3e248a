"""The device memory of running requests: page tables that grow, slots, lanes.

Owns the page and slot pools, the host budget and the free lanes.  Promises that a page somebody else
also has is never written: a tail about to grow is copied first, and the copy is queued ahead of the
writer.

The one thing a reader would get wrong: ``grow`` takes everything it needs or nothing; it never
pauses anybody, that is the scheduler's decision.
"""

from __future__ import annotations

import heapq

import attrs

from ninfer.engine.device import CopyPage, Geometry, Unit
from ninfer.engine.host import Host
from ninfer.engine.pages import Pool
from ninfer.engine.sequence import Sequence
from ninfer.faults import Broken


@attrs.define(eq=False)
class Space:
    """Lanes, slots and pages of one device."""

    geometry: Geometry
    pages: Pool = attrs.field(init=False)
    slots: Pool = attrs.field(init=False)
    host: Host = attrs.field(init=False)
    lanes: list[int] = attrs.field(init=False)
    tail_copies: int = 0

    def __attrs_post_init__(self) -> None:
        self.pages = Pool(self.geometry.pages)
        self.slots = Pool(self.geometry.slots)
        self.host = Host(self.geometry.host_bytes, self.geometry.image_bytes, self.geometry.page_bytes)
        self.lanes = list(range(self.geometry.lanes))

    def take_lane(self) -> int:
        """Take the lowest free lane."""
        return heapq.heappop(self.lanes)

    def take_pages(self, count: int) -> tuple[int, ...]:
        """Take pages that are known to be free."""
        pages = self.pages.take(count)
        if pages is None:
            raise Broken(f"{count} pages were promised, {self.pages.free} are free")
        return pages

    def take_slot(self) -> int:
        """Take a slot that is known to be free."""
        slot = self.slots.take(1)
        if slot is None:
            raise Broken("a slot was promised and none is free")
        return slot[0]

    def pages_for(self, tokens: int) -> int:
        """How many pages hold ``tokens`` tokens."""
        return -(-tokens // self.geometry.page_tokens)

    def missing(self, seq: Sequence, upto: int) -> int:
        """How many pages must be taken before tokens ``frontier .. upto`` can be written."""
        fresh = max(self.pages_for(upto) - len(seq.pages), 0)
        return fresh + (upto > seq.frontier and self._must_copy(seq))

    def grow(self, seq: Sequence, upto: int, units: list[Unit]) -> bool:
        """Make the table ready for tokens ``frontier .. upto``; False when pages are short."""
        taken = self.pages.take(self.missing(seq, upto))
        if taken is None:
            return False
        if upto > seq.frontier and self._must_copy(seq):
            taken = self._copy_tail(seq, taken, units)
        seq.pages += taken
        return True

    def _copy_tail(self, seq: Sequence, taken: tuple[int, ...], units: list[Unit]) -> tuple[int, ...]:
        tail = seq.frontier // self.geometry.page_tokens
        shared = seq.pages[tail]
        units.append(CopyPage(shared, taken[0]))
        self.pages.release((shared,))
        seq.pages = (*seq.pages[:tail], taken[0], *seq.pages[tail + 1 :])
        self.tail_copies += 1
        return taken[1:]

    def release(self, seq: Sequence) -> None:
        """Take back everything ``seq`` has on the device."""
        self.pages.release(seq.pages)
        seq.pages = ()
        if seq.slot >= 0:
            self.slots.release((seq.slot,))
            seq.slot = -1
        if seq.lane >= 0:
            heapq.heappush(self.lanes, seq.lane)
            seq.lane = -1

    def _must_copy(self, seq: Sequence) -> bool:
        """Whether the next token falls into a page that somebody else also has."""
        tail = seq.frontier // self.geometry.page_tokens
        return tail < len(seq.pages) and self.pages.shared(seq.pages[tail])
