"""Decides what the device does next; pure, so that property tests can drive it.

Owns the waiting line, the residents and the paused.  One cycle holds at most one chunk (prompt,
replay or control tokens) and one compact decode batch.  Promises: requests are admitted in order
with at most C overtakings of any one; memory is acquired per unit; when it runs short the oldest
resident is served first and younger ones are paused, so the oldest always advances.

The one thing a reader would get wrong: ``plan`` moves frontiers at once, before the device has run
anything; ``settle`` accounts for what came back.  A request with units in flight is never paused.
"""

from __future__ import annotations

import attrs

from ninfer.engine.device import Bind, Clear, Decode, Prefill, Result, Row, Unit
from ninfer.engine.sequence import FEEDING, Sequence, State
from ninfer.engine.space import Space
from ninfer.engine.stats import Counters
from ninfer.faults import Broken


@attrs.frozen(eq=False)
class Flight:
    """A unit and whose rows it carries; ``control`` are forced tokens, ``role`` why it feeds."""

    unit: Unit
    rows: tuple[Sequence, ...] = ()
    control: tuple[int, ...] = ()
    role: State = State.DECODING


@attrs.frozen
class Landed:
    """What one request got from a unit: control tokens first, then tokens the model chose.

    ``processed`` is how many prompt tokens have state now, when the unit computed some of them.
    """

    seq: Sequence
    processed: int | None = None
    control: tuple[int, ...] = ()
    tokens: tuple[int, ...] = ()


@attrs.define(eq=False)
class Scheduler:
    """The pure half of the engine; ``chunk`` bounds the tokens of a feeding unit."""

    space: Space
    chunk: int
    counters: Counters = attrs.field(factory=Counters)
    waiting: list[Sequence] = attrs.field(factory=list)
    residents: list[Sequence] = attrs.field(factory=list)  # by ticket
    paused: list[Sequence] = attrs.field(factory=list)  # by ticket

    @property
    def bypass_limit(self) -> int:
        """How many younger requests may be admitted past one that does not fit."""
        return self.space.geometry.lanes

    def admit(self, seq: Sequence) -> None:
        """Put an arrival at the end of the line."""
        self.waiting.append(seq)

    def evict(self, seq: Sequence) -> None:
        """Forget a request wherever it stands and take back all it has."""
        for group in (self.waiting, self.residents, self.paused):
            if seq in group:
                group.remove(seq)
        self.space.release(seq)
        seq.move(State.DONE)

    def check(self) -> None:
        """Raise ``Broken`` unless lanes, slots and pages are exactly what the requests claim."""
        claimed = sorted([*self.space.lanes, *(seq.lane for seq in self.residents)])
        if claimed != list(range(self.space.geometry.lanes)):
            raise Broken(f"lanes are lost or doubled: {claimed}")
        self.space.slots.check(seq.slot for seq in self.residents)
        self.space.pages.check(page for seq in self.residents for page in seq.pages)

    # Planning

    def plan(self) -> list[Flight]:
        """Choose the next cycle; empty when nothing can run before something lands."""
        units: list[Unit] = []
        self._restore(units)
        self._enter(units)
        work = self._work(units)
        return [Flight(unit) for unit in units] + work

    def _work(self, units: list[Unit]) -> list[Flight]:
        """Serve residents oldest first; once one lacks pages no younger one may take any."""
        feeder = self._feeder()
        rows: list[Sequence] = []
        chunk: list[Flight] = []
        short = False
        for seq in list(self.residents):
            if not seq.resident or not (seq is feeder or seq.decodable):
                continue
            upto = self._feed_upto(seq) if seq is feeder else seq.frontier + 1
            if short and self.space.missing(seq, upto):
                continue
            if not self._secure(seq, upto, units):
                short = True
            elif seq is feeder:
                chunk.append(self._feed(seq, upto))
            else:
                rows.append(seq)
        return [self._decode(rows), *chunk] if rows else chunk

    def _feeder(self) -> Sequence | None:
        """Pick whose chunk runs: control tokens first (short, and a reader waits), then by age."""
        ready = [seq for seq in self.residents if self._feedable(seq)]
        return min(ready, key=lambda seq: (seq.state is not State.STEERING, seq.ticket), default=None)

    def _feedable(self, seq: Sequence) -> bool:
        if seq.state not in FEEDING:
            return False
        return seq.state is not State.PREFILLING or seq.frontier < seq.prompt_tokens or seq.capacity > 0

    def _feed_upto(self, seq: Sequence) -> int:
        if seq.state is State.STEERING:
            return seq.known + len(self._control(seq))
        return min(seq.feed_stop, seq.frontier + self.chunk)

    def _control(self, seq: Sequence) -> tuple[int, ...]:
        if seq.job.thinking is None:
            raise Broken("steering without a thinking plan")
        return seq.job.thinking.control

    def _secure(self, seq: Sequence, upto: int, units: list[Unit]) -> bool:
        """Get the pages of one unit, pausing younger residents (not yet planned) as needed."""
        while not self.space.grow(seq, upto, units):
            victim = self.residents[-1]
            if victim.ticket <= seq.ticket or victim.flying:
                return False
            self._pause(victim)
        return True

    def _feed(self, seq: Sequence, upto: int) -> Flight:
        """Build the feeding unit ``frontier .. upto`` and move the sequence past it."""
        prompt, start = seq.job.prompt, seq.frontier
        control = self._control(seq) if seq.state is State.STEERING else ()
        ids = seq.ids(start, min(upto, seq.known)) + control
        sample = bool(control) or (
            seq.state is State.PREFILLING and upto == seq.prompt_tokens and seq.capacity > 0
        )
        unit = Prefill(
            lane=seq.lane,
            slot=seq.slot,
            start=start,
            ids=ids,
            pages=seq.pages,
            positions=_positions(seq, start, upto),
            rope_delta=prompt.rope_delta,
            next_id=None if sample or upto >= seq.known else seq.ids(upto, upto + 1)[0],
            sample=sample,
            media=tuple(span for span in prompt.media if span.start < upto and span.stop > start),
        )
        seq.frontier = upto
        seq.flying += 1
        seq.unread += sample + len(control)
        role = seq.state
        self._fed(seq)
        return Flight(unit, (seq,), control, role)

    def _fed(self, seq: Sequence) -> None:
        """Move on when the last chunk of a feeding has been planned."""
        if seq.state is State.REPLAYING:
            if seq.frontier == seq.reached:
                seq.move(seq.resumes_as())
        elif seq.unread:
            seq.move(State.DECODING)
        seq.reached = max(seq.reached, seq.frontier)

    def _decode(self, rows: list[Sequence]) -> Flight:
        """Build one compact batch and move its sequences past it."""
        batch = Decode(tuple(_row(seq) for seq in rows))
        for seq in rows:
            seq.frontier += 1
            seq.reached = seq.frontier
            seq.flying += 1
            seq.unread += 1
        return Flight(batch, tuple(rows))

    # Admission, pause, recovery

    def _enter(self, units: list[Unit]) -> None:
        """Admit waiting requests in order; one that does not fit may be overtaken C times."""
        while self.space.lanes:
            index = self._first_fitting()
            if index is None:
                return
            for older in self.waiting[:index]:
                older.bypassed += 1
            self._seat(self.waiting.pop(index), units)

    def _first_fitting(self) -> int | None:
        for index, seq in enumerate(self.waiting[: self.bypass_limit + 1]):
            if self._fits(seq, seq.prompt_tokens + 1):
                return index
            if seq.bypassed >= self.bypass_limit:
                return None
        return None

    def _fits(self, seq: Sequence, tokens: int) -> bool:
        """Whether ``tokens`` fit beside what the residents' own prompts will still take."""
        promised = sum(self.space.missing(other, other.feed_stop + 1) for other in self.residents)
        needed = self.space.pages_for(min(tokens, self.space.geometry.max_context))
        return not self.residents or needed + promised <= self.space.pages.free

    def _seat(self, seq: Sequence, units: list[Unit]) -> None:
        """Give a request its lane and slot."""
        self._take_lane(seq, units)
        seq.move(State.PREFILLING)

    def _take_lane(self, seq: Sequence, units: list[Unit]) -> None:
        slot = self.space.slots.take(1)
        if slot is None:
            raise Broken("a free lane without a free slot")
        seq.lane, seq.slot = self.space.take_lane(), slot[0]
        units += [Bind(seq.lane, seq.job.sampling, seq.sampled), Clear(seq.slot)]
        self.residents.append(seq)
        self.residents.sort(key=lambda other: other.ticket)

    def _pause(self, seq: Sequence) -> None:
        """Give up the device state of a resident; it is recomputed later."""
        self.residents.remove(seq)
        self.space.release(seq)
        seq.frontier = 0
        seq.move(State.PAUSED)
        seq.tally.preemptions += 1
        self.counters.preemptions += 1
        self.paused.append(seq)
        self.paused.sort(key=lambda other: other.ticket)

    def _restore(self, units: list[Unit]) -> None:
        """Bring paused requests back, oldest first, each with room for one unit beyond its frontier."""
        while self.paused and self.space.lanes:
            seq = self.paused[0]
            if not self._fits(seq, seq.reached + 1):
                return
            self.paused.remove(seq)
            self._take_lane(seq, units)
            seq.tally.replay_restores += 1
            self.counters.replay_restores += 1
            seq.move(State.REPLAYING)
            if not seq.reached:
                seq.move(State.PREFILLING)

    # Results

    def settle(self, flight: Flight, result: Result) -> list[Landed]:
        """Account for a unit that has run; requests that have ended meanwhile get nothing."""
        self._count(flight)
        landed = []
        for index, seq in enumerate(flight.rows):
            tokens = result.rows[index].tokens if result.rows else ()
            seq.flying -= 1
            seq.unread -= len(tokens) + len(flight.control)
            if seq.state is not State.DONE:
                landed.append(Landed(seq, _processed(flight), flight.control, tokens))
        return landed

    def _count(self, flight: Flight) -> None:
        if isinstance(flight.unit, Prefill):
            self._count_feed(flight, len(flight.unit.ids))
        elif flight.rows:
            self.counters.decode_rounds += 1
            self.counters.decode_row_rounds += len(flight.rows)
            for seq in flight.rows:
                seq.tally.decode_rounds += 1

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


def _processed(flight: Flight) -> int | None:
    unit = flight.unit
    if isinstance(unit, Prefill) and unit.ids and flight.role is State.PREFILLING:
        return unit.start + len(unit.ids)
    return None


def _row(seq: Sequence) -> Row:
    token = None if seq.unread else seq.outputs[-1]
    return Row(seq.lane, seq.slot, seq.frontier, seq.pages, token, seq.job.prompt.rope_delta)


def _positions(
    seq: Sequence, start: int, stop: int
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]] | None:
    """Slice the three axes; tokens behind the prompt go on counting with the prompt's delta."""
    prompt, length = seq.job.prompt, seq.prompt_tokens
    if prompt.positions is None or start >= length:
        return None
    tail = tuple(i + prompt.rope_delta for i in range(length, stop))
    x, y, z = (axis[start:stop] + tail for axis in prompt.positions)
    return x, y, z
