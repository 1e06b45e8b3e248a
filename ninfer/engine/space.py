"""The device memory of running requests: page tables that grow, slots, lanes.

Owns the page and slot pools and the free lanes.  Promises that a page somebody else also has is
never written: a tail about to grow is copied first, and the copy is queued ahead of the writer.

The one thing a reader would get wrong: ``grow`` takes everything it needs or nothing; it never
pauses anybody, that is the scheduler's decision.
"""

from __future__ import annotations

import heapq

import attrs

from ninfer.engine.device import CopyPage, Geometry, Unit
from ninfer.engine.pages import Pool
from ninfer.engine.sequence import Sequence


@attrs.define(eq=False)
class Space:
    """Lanes, slots and pages of one device."""

    geometry: Geometry
    pages: Pool = attrs.field(init=False)
    slots: Pool = attrs.field(init=False)
    lanes: list[int] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.pages = Pool(self.geometry.pages)
        self.slots = Pool(self.geometry.slots)
        self.lanes = list(range(self.geometry.lanes))

    def take_lane(self) -> int:
        """Take the lowest free lane."""
        return heapq.heappop(self.lanes)

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
            units.append(CopyPage(seq.pages[-1], taken[0]))
            self.pages.release(seq.pages[-1:])
            seq.pages = seq.pages[:-1]
        seq.pages += taken
        return True

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
