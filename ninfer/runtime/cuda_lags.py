"""Which slots lag behind their sequences: their last tokens wait in the notes of a lane.

Writing recurrent states is what a decode step of many sequences spends most on beside its weights, so such
a step writes a slot's only once in ``depth`` times and leaves what the token brings in the lane's notes
otherwise.
Owns the host's count of what waits; pure, no device memory.  Promises that whoever else reads a slot finds
it caught up.

The one thing a reader would get wrong: a lag belongs to a slot, but lies in the notes of a lane, so
binding the lane anew is a reason to catch up, and so is a step in which either has another partner.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import attrs

from ninfer.engine.device import (
    Bind,
    Clear,
    CopyImage,
    Decode,
    HostLoad,
    HostSave,
    Prefill,
    Remember,
    Row,
    Settle,
    Unit,
)


@attrs.frozen
class Lag:
    """The first ``count`` notes of ``lane`` are still to enter ``slot``."""

    lane: int
    slot: int
    count: int


@attrs.define(eq=False)
class Lags:
    """What waits, by slot; ``depth`` is how many tokens a slot takes at once, less than that may wait."""

    depth: int
    _waiting: dict[int, Lag] = attrs.field(factory=dict)

    def before(self, unit: Unit, may_lag: Callable[[int], bool]) -> list[Lag]:
        """Give up what must be caught up before ``unit`` runs; forget what it overwrites.

        ``may_lag`` tells whether a decode step of so many sequences may find slots behind.
        """
        if isinstance(unit, Decode):
            return self._before_rows(unit.rows, may_lag)
        lanes = (unit.lane,) if isinstance(unit, Bind | Prefill | Settle | Remember) else ()
        slots = (unit.slot,) if isinstance(unit, Prefill | Settle | Remember | HostSave) else ()
        found = self._give_up(lanes, (unit.source,) if isinstance(unit, CopyImage) else slots)
        if isinstance(unit, Clear | HostLoad):
            self._waiting.pop(-1 if unit.slot is None else unit.slot, None)
        elif isinstance(unit, CopyImage):
            self._waiting.pop(unit.target, None)
        return found

    def of(self, slot: int) -> list[Lag]:
        """Give up what waits for one slot."""
        return self._give_up((), (slot,))

    def advance(self, rows: Sequence[Row]) -> list[int]:
        """Count a step of ``rows`` that may lag.  -> ``lags`` of the step, see ``Step``.

        Lanes at the same token take turns in being brought up, so that steps cost alike.
        """
        found = []
        for row in rows:
            waiting = self._waiting.pop(row.slot, None)
            count = waiting.count if waiting else 0
            due = count + 1 == self.depth or (row.frontier + row.lane + 1) % self.depth == 0
            found.append(2 * count + due)
            if not due:
                self._waiting[row.slot] = Lag(row.lane, row.slot, count + 1)
        return found

    def clear(self) -> None:
        """Forget everything."""
        self._waiting.clear()

    def _before_rows(self, rows: Sequence[Row], may_lag: Callable[[int], bool]) -> list[Lag]:
        plain = [row for row in rows if not row.draft]
        together = {(row.lane, row.slot) for row in plain} if may_lag(len(plain)) else set()
        return self._give_up([row.lane for row in rows], [row.slot for row in rows], together)

    def _give_up(
        self, lanes: Collection[int], slots: Collection[int | None], but: Collection[tuple[int, int]] = ()
    ) -> list[Lag]:
        """Take out what waits in these lanes' notes or for these slots, except for some pairs of both."""
        touched = (lag for lag in self._waiting.values() if lag.lane in lanes or lag.slot in slots)
        found = [lag for lag in touched if (lag.lane, lag.slot) not in but]
        for lag in found:
            del self._waiting[lag.slot]
        return found
