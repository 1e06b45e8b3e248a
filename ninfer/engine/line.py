"""Who of the waiting is admitted next, and where in its prompt it starts.

Owns the order: first come, first served, except that a request which does not fit may be overtaken by
at most C younger ones that do.  A paused request, too, is overtaken at most C times by newcomers whose
pages it could have used; one that waits for older requests loses nothing and blocks nobody.

The one thing a reader would get wrong: fitting means the whole prompt beside what the residents' own
prompts will still take; outputs are not reserved, that is what pausing is for.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from ninfer.engine.cuts import plan_cuts
from ninfer.engine.cycle import Cycle
from ninfer.engine.fetch import Fetching
from ninfer.engine.memory import Memory
from ninfer.engine.roster import Roster
from ninfer.engine.sequence import Sequence, State
from ninfer.settings import EngineOptions


@attrs.frozen
class Line:
    """Admits from the waiting line."""

    memory: Memory
    roster: Roster
    options: EngineOptions
    fetching: Fetching

    @property
    def patience(self) -> int:
        """How many younger requests may be admitted past one that does not fit."""
        return self.memory.space.geometry.lanes

    def admit(self, cycle: Cycle) -> None:
        """Give free lanes to whoever may have them now."""
        ready = self._ready(cycle)
        while self.memory.space.lanes:
            index = self._first_fitting(ready)
            if index is None:
                return
            seq = ready[index]
            for older in [*ready[:index], *self._kept_waiting_by(seq)]:
                older.bypassed += 1
            self.roster.waiting.remove(seq)
            self._seat(seq, cycle)
            ready = self._ready(cycle)

    def _ready(self, cycle: Cycle) -> list[Sequence]:
        """Return the head of the line, without those that wait for the disk."""
        found: list[Sequence] = []
        for seq in self.roster.waiting:
            if len(found) > self.patience:
                break
            self.fetching.look(seq, cycle.before)
            if seq not in self.fetching.waits:
                found.append(seq)
        return found

    def _first_fitting(self, ready: list[Sequence]) -> int | None:
        for index, seq in enumerate(ready):
            may_pass = all(other.bypassed < self.patience for other in self._kept_waiting_by(seq))
            if may_pass and self._fits(seq):
                return index
            if seq.bypassed >= self.patience:
                return None
        return None

    def _kept_waiting_by(self, seq: Sequence) -> Iterator[Sequence]:
        """Yield the paused request that admitting ``seq`` would keep waiting."""
        for first in self.roster.paused[:1]:
            older = sum(len(other.pages) for other in self.roster.older(first))
            needed = self.memory.space.pages_for(first.reached + 1)
            if first.order < seq.order and older + needed <= self.memory.space.geometry.pages:
                yield first

    def _fits(self, seq: Sequence) -> bool:
        if not self.roster.residents:
            return True
        space = self.memory.space
        promised = sum(space.missing(other, other.feed_stop + 1) for other in self.roster.residents)
        upto = min(seq.prompt_tokens + 1, space.geometry.max_context)
        return self.memory.needs(seq, seq.prompt_tokens, upto) + promised <= self.memory.available

    def _seat(self, seq: Sequence, cycle: Cycle) -> None:
        """Give a request its lane and start it where most is known."""
        source = self.memory.affordable_source(seq, seq.prompt_tokens)
        seq.tally.preferred_tokens = self.memory.source_for(seq, seq.prompt_tokens).frontier
        since = len(cycle.before)
        self.memory.take_lane(seq, source, cycle.before)
        self.roster.settle_in(seq)
        tally = seq.tally
        tally.cached_tokens, tally.miss_reason = source.frontier, source.reason
        if seq.fetched:
            tally.disk_tokens = max(source.frontier - seq.spared, 0)
        elif seq.missed and source.reason:
            tally.miss_reason = f"{source.reason}; {seq.missed}"
        tally.path = "checkpoint" if source.nodes else "root"
        if self.memory.cache.reuse:
            seq.cuts = plan_cuts(seq.job.prompt, source.frontier, source.common, self.options)
        seq.move(State.RESTORING if cycle.waits(seq, since) else State.PREFILLING)
