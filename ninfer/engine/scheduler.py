"""Decides what the device does next; pure, so that property tests can drive it.

Owns the waiting line, the residents and the paused.  One cycle holds at most one chunk (prompt,
replay or control tokens) and one compact decode batch.  Promises: requests are admitted in order
with at most C overtakings of any one; memory is acquired per unit; when it runs short the cache gives
first, then snapshots of younger requests, then a younger resident is paused, so the oldest resident
always advances.

The one thing a reader would get wrong: ``plan`` moves frontiers at once, before the device has run
anything; ``settle`` accounts for what came back.  A request with units in flight is never paused.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from ninfer.engine import transfers
from ninfer.engine.cache import Source
from ninfer.engine.cuts import plan_cuts
from ninfer.engine.cycle import Cycle, Flight, Landed, feed, processed, row
from ninfer.engine.device import Bind, Decode, HostSave, Prefill, Result, Unit
from ninfer.engine.job import Finish
from ninfer.engine.memory import Memory
from ninfer.engine.sequence import FEEDING, Sequence, State
from ninfer.engine.stats import Counters
from ninfer.settings import EngineOptions


@attrs.frozen
class News:
    """A step of a pause or a recovery; ``route`` is "snapshot", "replay" or None."""

    seq: Sequence
    transition: str
    route: str | None = None


@attrs.define(eq=False)
class Scheduler:
    """The pure half of the engine; ``chunk`` bounds the tokens of a feeding unit."""

    memory: Memory
    options: EngineOptions
    chunk: int
    counters: Counters = attrs.field(factory=Counters)
    waiting: list[Sequence] = attrs.field(factory=list)
    residents: list[Sequence] = attrs.field(factory=list)  # by ticket
    paused: list[Sequence] = attrs.field(factory=list)  # by ticket
    news: list[News] = attrs.field(factory=list)
    _loose: list[Unit] = attrs.field(factory=list)  # to be submitted ahead of the next cycle

    @property
    def bypass_limit(self) -> int:
        """How many younger requests may be admitted past one that does not fit."""
        return self.memory.space.geometry.lanes

    def admit(self, seq: Sequence) -> None:
        """Put an arrival at the end of the line."""
        self.waiting.append(seq)

    def evict(self, seq: Sequence, finish: Finish | None = None) -> None:
        """Forget a request wherever it stands; one that finished leaves its endpoint to the cache."""
        if finish not in {None, Finish.CANCELLED} and seq.slot >= 0 and seq.frontier <= seq.known:
            self.memory.cache.keep_endpoint(seq, seq.history(seq.frontier), self._loose)
        for group in (self.waiting, self.residents, self.paused):
            if seq in group:
                group.remove(seq)
        self.memory.release(seq, self._loose)
        seq.move(State.DONE)

    def check(self) -> None:
        """Raise ``Broken`` unless every lane, slot, page and host byte has exactly its owners."""
        self.memory.check(self.residents)

    def snapshot(self) -> Counters:
        """Return the counters as they stand."""
        counters = self.counters.copy()
        counters.captures = self.memory.cache.captures
        counters.tail_copies = self.memory.space.tail_copies
        counters.spilled_pages = self.memory.retention.spilled_pages
        return counters

    # Planning

    def plan(self) -> list[Flight]:
        """Choose the next cycle; empty when nothing can run before something lands."""
        cycle = Cycle(before=self._loose)
        self._loose = []
        self._restore(cycle)
        self._enter(cycle)
        self._work(cycle)
        revoked = self.memory.snapshots.revoked
        self.news += [News(seq, "snapshot_revoked", "replay") for seq in revoked]
        revoked.clear()
        return cycle.flights()

    def _work(self, cycle: Cycle) -> None:
        """Serve residents oldest first; behind one that lacks pages nobody younger takes any.

        Control tokens go first: they are short, come once a request, and a reader waits for them.
        """
        rows: list[Sequence] = []
        short: int | None = None
        for seq in sorted(self.residents, key=lambda s: (s.state is not State.STEERING, s.ticket)):
            feeds = self._feedable(seq)
            if not seq.resident or not (seq.decodable or (feeds and not cycle.work)):
                continue
            upto = self._feed_upto(seq) if feeds else seq.frontier + 1
            if short is not None and seq.ticket > short and self.memory.space.missing(seq, upto):
                continue
            if not self._secure(seq, upto, cycle.before):
                short = seq.ticket
            elif feeds:
                self._feed(seq, upto, cycle)
            else:
                rows.append(seq)
        if rows:
            cycle.work.insert(0, self._decode(rows))
        self._capture(cycle)

    def _capture(self, cycle: Cycle) -> None:
        """Keep what this cycle's chunk reaches; planned last, because it is submitted last."""
        for flight in cycle.work:
            seq = flight.rows[0]
            if flight.role is State.PREFILLING and seq.frontier in seq.cuts:
                kind = seq.cuts.pop(seq.frontier)
                self.memory.cache.capture(seq, seq.history(seq.frontier), kind, cycle.after)

    def _feedable(self, seq: Sequence) -> bool:
        if seq.state not in FEEDING:
            return False
        return seq.state is not State.PREFILLING or seq.frontier < seq.prompt_tokens or seq.capacity > 0

    def _feed_upto(self, seq: Sequence) -> int:
        if seq.state is State.STEERING:
            return seq.known + len(seq.control)
        upto = min(seq.feed_stop, seq.frontier + self.chunk)
        return min(upto, seq.next_cut()) if seq.state is State.PREFILLING else upto

    def _secure(self, seq: Sequence, upto: int, units: list[Unit]) -> bool:
        """Get the pages of one unit in the order of pressure: cache, snapshots, younger residents."""
        while not self.memory.grow(seq, upto, units):
            if not (self._revoke_younger(seq, units) or self._pause_younger(seq, units)):
                return len(self.residents) == 1 and self.memory.squeeze(seq, upto, units)
        return True

    def _feed(self, seq: Sequence, upto: int, cycle: Cycle) -> None:
        """Plan a feeding unit and move the sequence past it."""
        flight = feed(seq, upto)
        seq.frontier = upto
        seq.flying += 1
        seq.unread += isinstance(flight.unit, Prefill) and flight.unit.sample
        seq.unread += len(flight.control)
        cycle.work.append(flight)
        if seq.state is State.REPLAYING:
            if seq.frontier == seq.reached:
                seq.move(seq.resumes_as())
        elif seq.unread:
            seq.move(State.DECODING)
        seq.reached = max(seq.reached, seq.frontier)

    def _decode(self, rows: list[Sequence]) -> Flight:
        """Build one compact batch and move its sequences past it."""
        batch = Decode(tuple(row(seq) for seq in rows))
        for seq in rows:
            seq.frontier += 1
            seq.reached = seq.frontier
            seq.flying += 1
            seq.unread += 1
        return Flight(batch, tuple(rows))

    # Admission

    def _enter(self, cycle: Cycle) -> None:
        """Admit waiting requests in order; one that does not fit may be overtaken C times."""
        while self.memory.space.lanes:
            index = self._first_fitting()
            if index is None:
                return
            seq = self.waiting[index]
            for older in [*self.waiting[:index], *self._passed_by(seq)]:
                older.bypassed += 1
            self.waiting.pop(index)
            self._seat(seq, cycle)

    def _first_fitting(self) -> int | None:
        for index, seq in enumerate(self.waiting[: self.bypass_limit + 1]):
            may_pass = all(other.bypassed < self.bypass_limit for other in self._passed_by(seq))
            if may_pass and self._fits(seq):
                return index
            if seq.bypassed >= self.bypass_limit:
                return None
        return None

    def _passed_by(self, seq: Sequence) -> Iterator[Sequence]:
        """Yield the paused request that admitting ``seq`` would keep waiting.

        One that waits for requests older than itself loses nothing.
        """
        for first in self.paused[:1]:
            older = sum(len(other.pages) for other in self.residents if other.ticket < first.ticket)
            needed = self.memory.space.pages_for(first.reached + 1)
            if first.ticket < seq.ticket and older + needed <= self.memory.space.geometry.pages:
                yield first

    def _fits(self, seq: Sequence) -> bool:
        """Whether the whole prompt fits beside what the residents' own prompts will still take."""
        if not self.residents:
            return True
        space = self.memory.space
        promised = sum(space.missing(other, other.feed_stop + 1) for other in self.residents)
        upto = min(seq.prompt_tokens + 1, space.geometry.max_context)
        return self.memory.needs(seq, seq.prompt_tokens, upto) + promised <= self.memory.available

    def _seat(self, seq: Sequence, cycle: Cycle) -> None:
        """Give a request its lane and start it where most is known."""
        source = self._affordable_source(seq, seq.prompt_tokens)
        since = len(cycle.before)
        self._take_lane(seq, source, cycle.before)
        tally = seq.tally
        tally.cached_tokens, tally.miss_reason = source.frontier, source.reason
        tally.path = "checkpoint" if source.nodes else "root"
        seq.cuts = plan_cuts(
            seq.job.prompt,
            source.frontier,
            source.common,
            self.options.checkpoint_every,
            self.options.junction_tokens,
        )
        seq.move(State.RESTORING if cycle.waits(seq, since) else State.PREFILLING)

    def _affordable_source(self, seq: Sequence, stop: int) -> Source:
        source = self.memory.source_for(seq, stop)
        if self.memory.cache.pages_needed(source, stop) > self.memory.available:
            return Source(common=source.common, reason="no room for its retained prefix")
        return source

    def _take_lane(self, seq: Sequence, source: Source | None, units: list[Unit]) -> None:
        """Bind a lane and fill its slot from ``source``, or from the snapshot when there is none."""
        seq.lane = self.memory.space.take_lane()
        units.append(Bind(seq.lane, seq.job.sampling, seq.sampled))
        if source is None:
            self.memory.retention.free_slot(units)
            seq.slot = self.memory.space.take_slot()
            self.memory.retention.free_pages(self.memory.snapshots.kept[seq].blob.pages, units)
            self.memory.snapshots.load(seq, units)
        else:
            self.memory.cache.seat(seq, source, units)
        self.memory.cache.forget(seq)
        seq.bypassed = 0
        self.residents.append(seq)
        self.residents.sort(key=lambda other: other.ticket)

    # Pause

    def _revoke_younger(self, seq: Sequence, units: list[Unit]) -> bool:
        return self.memory.snapshots.revoke_younger(seq, units, holding=True) is not None

    def _pause_younger(self, seq: Sequence, units: list[Unit]) -> bool:
        """Pause the youngest resident that may be; not one that has only just been brought back."""
        for victim in reversed(self.residents):
            if victim.ticket <= seq.ticket:
                return False
            if not victim.recovering:
                return not victim.flying and self._pause(victim, units)
        return False

    def _pause(self, seq: Sequence, units: list[Unit]) -> bool:
        """Give up the device state of a resident, to the host if it fits and pays."""
        self.news.append(News(seq, "pause_started"))
        saved = self.memory.snapshots.save(seq, units)
        self.residents.remove(seq)
        self.memory.space.release(seq)
        seq.frontier = 0
        seq.move(State.PAUSED)
        seq.tally.preemptions += 1
        self.counters.preemptions += 1
        self.paused.append(seq)
        self.paused.sort(key=lambda other: other.ticket)
        self.news.append(News(seq, "paused", "snapshot" if saved else "replay"))
        return True

    # Recovery

    def _restore(self, cycle: Cycle) -> None:
        """Bring paused requests back, oldest first, each with room for one unit beyond its frontier."""
        while self.paused and self.memory.space.lanes and self._permitted(self.paused[0], cycle.before):
            self._resume(self.paused.pop(0), cycle)

    def _permitted(self, seq: Sequence, units: list[Unit]) -> bool:
        """Whether ``seq`` can rebuild its frontier and run one unit while older ones go on."""
        if not self.residents:
            return True
        older = [other for other in self.residents if other.ticket < seq.ticket]
        if any(other.state in FEEDING for other in older):
            return False  # its own feeding would wait behind theirs
        memory = self.memory
        short = self._recovery_needs(seq, older) - memory.available
        if 0 < short <= memory.snapshots.held_by_younger(seq):
            while short > 0 and self._revoke_younger(seq, units):
                short = self._recovery_needs(seq, older) - memory.available
        return short <= 0

    def _recovery_needs(self, seq: Sequence, older: list[Sequence]) -> int:
        ahead = self._cycles_ahead(seq)
        pages = self.memory.needs(seq, seq.reached, self._first_unit(seq))
        return pages + sum(self.memory.space.missing(o, self._ahead(o, ahead)) for o in older)

    def _first_unit(self, seq: Sequence) -> int:
        """Return the frontier that the first new unit of a paused request reaches."""
        if seq.reached < seq.prompt_tokens:
            return min(seq.reached + self.chunk, seq.prompt_tokens)
        if seq.must_steer():
            return seq.known + len(seq.control)
        return min(seq.reached + 1, self.memory.space.geometry.max_context)

    def _cycles_ahead(self, seq: Sequence) -> int:
        """Bound the cycles that a recovery takes, others' control units and run-ahead included."""
        known = seq.reached if seq in self.memory.snapshots.kept else 0
        return (seq.reached - known) // self.chunk + 3 + self.memory.space.geometry.lanes

    def _ahead(self, seq: Sequence, cycles: int) -> int:
        return min(seq.frontier + cycles, self.memory.space.geometry.max_context)

    def _resume(self, seq: Sequence, cycle: Cycle) -> None:
        """Take a lane again, with all pages that rebuilding and one unit need."""
        units, since = cycle.before, len(cycle.before)
        ahead = self._cycles_ahead(seq)
        if not self._can_load(seq):
            self.memory.snapshots.revoke(seq, units)
        snapshot = seq in self.memory.snapshots.kept
        self.news.append(News(seq, "restore_started", "snapshot" if snapshot else "replay"))
        self._take_lane(seq, None if snapshot else self._affordable_source(seq, seq.reached), units)
        for other in self.residents:
            if other.ticket < seq.ticket:
                self.memory.grow(other, self._ahead(other, ahead), units)
        self.memory.grow(seq, self._first_unit(seq), units)
        seq.recovering, seq.replay_stop = True, seq.reached
        seq.route = "snapshot" if snapshot else "replay"
        seq.tally.snapshot_restores += snapshot
        seq.tally.replay_restores += not snapshot
        self.counters.snapshot_restores += snapshot
        self.counters.replay_restores += not snapshot
        if cycle.waits(seq, since):
            seq.move(State.RESTORING)
        else:
            self._restored(seq)

    def _can_load(self, seq: Sequence) -> bool:
        shot = self.memory.snapshots.kept.get(seq)
        return shot is not None and shot.blob.pages <= self.memory.available

    def _restored(self, seq: Sequence) -> None:
        seq.move(seq.resumes_as())
        if seq.recovering:
            self.news.append(News(seq, "restored", seq.route))

    # Results

    def settle(self, flight: Flight, result: Result) -> list[Landed]:
        """Account for a unit that has run; requests that have ended meanwhile get nothing."""
        if isinstance(flight.unit, HostSave):
            self.memory.space.host.landed(flight.unit.key)
        self._count(flight, result.seconds)
        landed = []
        for index, seq in enumerate(flight.rows):
            tokens = result.rows[index].tokens if result.rows else ()
            seq.flying -= 1
            seq.unread -= len(tokens) + len(flight.control)
            if seq.state is not State.DONE:
                self._advance(seq, flight)
                landed.append(Landed(seq, processed(flight), flight.control, tokens))
        return landed

    def _advance(self, seq: Sequence, flight: Flight) -> None:
        """Note what a landed unit means for a request that is being brought back."""
        if flight.role is State.RESTORING:
            self._restored(seq)
        elif isinstance(flight.unit, Prefill) and flight.role is State.REPLAYING:
            if flight.unit.start + len(flight.unit.ids) == seq.replay_stop:
                self.news.append(News(seq, "replay_complete", seq.route))
        elif seq.recovering:
            seq.recovering = False
            self.news.append(News(seq, "recovery_complete", seq.route))

    def _count(self, flight: Flight, seconds: float) -> None:
        if isinstance(flight.unit, Prefill):
            self._count_feed(flight, len(flight.unit.ids))
        elif isinstance(flight.unit, Decode):
            self.counters.decode_rounds += 1
            self.counters.decode_row_rounds += len(flight.rows)
            for seq in flight.rows:
                seq.tally.decode_rounds += 1
        else:
            transfers.count(self.counters, flight.unit, self.memory.space.geometry, seconds)

    def _count_feed(self, flight: Flight, tokens: int) -> None:
        tally = flight.rows[0].tally
        if flight.role is State.REPLAYING:
            tally.replayed_tokens += tokens
            self.counters.replayed_tokens += tokens
        elif flight.role is State.STEERING:
            tally.control_units += 1
        else:
            tally.prefill_units += 1
            tally.computed_prefill_tokens += tokens
            self.counters.prefill_tokens += tokens
