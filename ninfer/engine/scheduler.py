"""Decides what the device does next; pure, so that property tests can drive it.

Owns the cycle: at most one chunk (prompt, replay or control tokens) and one compact decode batch.
Promises that memory is acquired per unit, oldest resident first, in the order of pressure: the cache
gives, then snapshots of younger requests, then a younger resident is paused; so the oldest always
advances.  Admission is in ``line``, pausing and returning in ``recovery``.

The one thing a reader would get wrong: ``plan`` moves frontiers at once, before the device has run
anything; ``settle`` accounts for what came back.  Only a verification's frontier waits for its result.
"""

from __future__ import annotations

import attrs

from ninfer.engine.accounting import count
from ninfer.engine.cycle import Cycle, Flight, Landed, feed, processed, row, settle
from ninfer.engine.device import Decode, HostSave, Prefill, Remember, Result, RowResult, Unit
from ninfer.engine.disk import Stretch
from ninfer.engine.drafting import Drafting
from ninfer.engine.fetch import Fetch, Fetching
from ninfer.engine.job import Finish
from ninfer.engine.line import Line
from ninfer.engine.memory import Memory
from ninfer.engine.recovery import Recovery
from ninfer.engine.roster import Roster
from ninfer.engine.sequence import FEEDING, Sequence, State
from ninfer.engine.stats import Counters
from ninfer.settings import EngineOptions


@attrs.define(eq=False)
class Scheduler:
    """The pure half of the engine; ``chunk`` bounds the tokens of a feeding unit beside decoding."""

    memory: Memory
    options: EngineOptions
    chunk: int
    counters: Counters = attrs.field(factory=Counters)
    roster: Roster = attrs.field(factory=Roster)
    fetching: Fetching = attrs.field(init=False)
    line: Line = attrs.field(init=False)
    recovery: Recovery = attrs.field(init=False)
    drafting: Drafting = attrs.field(init=False)
    _loose: list[Unit] = attrs.field(factory=list)  # to be submitted ahead of the next cycle
    _verifying: int = 0  # batches with drafts in flight

    def __attrs_post_init__(self) -> None:
        drafts = self.memory.space.geometry.drafts
        self.drafting = Drafting(min(self.options.draft_tokens, drafts), self.options.draft_auto)
        self.fetching = Fetching(self.memory.cache, self.memory.disk)
        self.line = Line(self.memory, self.roster, self.options, self.fetching)
        stride = self.drafting.widest + 1
        self.recovery = Recovery(self.memory, self.roster, self.counters, self.chunk, stride)

    def admit(self, seq: Sequence) -> None:
        """Put an arrival at the end of the line."""
        self.roster.waiting.append(seq)

    def evict(self, seq: Sequence, finish: Finish | None = None) -> None:
        """Forget a request wherever it stands; one that finished leaves its endpoint to the cache."""
        if finish not in {None, Finish.CANCELLED} and seq.slot >= 0:
            self._keep_endpoint(seq)
        self.roster.remove(seq)
        self.fetching.forget(seq)
        self.memory.release(seq, self._loose)
        seq.move(State.DONE)

    def _keep_endpoint(self, seq: Sequence) -> None:
        seq.cut_round()
        if seq.frontier <= seq.known:  # control tokens may have run on behind a stop
            settle(seq, self._loose)
            if self.drafting.widest:
                self._loose.append(Remember(seq.lane, seq.slot, seq.pages))
            self.memory.cache.keep_endpoint(seq, seq.history(seq.frontier), self._loose)

    def check(self) -> None:
        """Raise ``Broken`` unless every lane, slot, page and host byte has exactly its owners."""
        self.memory.check(self.roster.residents, self.fetching.claims())

    @property
    def owes(self) -> bool:
        """Whether the device has yet to be told of something that the books already count on."""
        return bool(self._loose)

    def snapshot(self) -> Counters:
        """Return the counters as they stand."""
        counters = self.counters.copy()
        counters.captures = self.memory.cache.captures
        counters.tail_copies = self.memory.space.tail_copies
        counters.spilled_pages = self.memory.retention.spilled_pages
        return counters

    # The disk

    def fetched(self, fetch: Fetch) -> None:
        """Retain what has been read from disk, and let go on who waited for it."""
        self.counters.disk_reads += 1
        self.counters.disk_read_bytes += fetch.size
        self.fetching.landed(fetch, self._loose)

    def not_fetched(self, fetch: Fetch, stretch: Stretch, why: str) -> None:
        """Forget a file that could not be read, and let go on who waited for it."""
        self.counters.disk_failures += 1
        self.fetching.failed(fetch, stretch, why, self._loose)

    def no_room(self, fetch: Fetch, made: int) -> None:
        """Give a fetch up for which the host lacks memory behind its first ``made`` loads."""
        self.counters.disk_failures += 1
        self.fetching.no_room(fetch, made, self._loose)

    # Planning

    def plan(self) -> list[Flight]:
        """Choose the next cycle; empty when nothing can run before something lands."""
        cycle = Cycle(before=self._loose)
        self._loose = []
        self.recovery.restore(cycle)
        self.line.admit(cycle)
        self._work(cycle)
        self._capture(cycle)
        self.recovery.tell_revoked()
        return cycle.flights()

    def _work(self, cycle: Cycle) -> None:
        """Serve residents oldest first; behind one that lacks pages nobody younger takes any.

        Control tokens go first: they are short, come once a request, and a reader waits for them.
        """
        residents = sorted(self.roster.residents, key=lambda s: (s.state is not State.STEERING, s.order))
        ready, width = self._ready(residents)
        rows: list[tuple[Sequence, int]] = []
        short: int | None = None  # the oldest so far that lacks pages
        for seq in residents:
            behind = short is not None and seq.order > short
            if seq in ready and seq.decodable:  # it may have been paused for one older
                draft = self._row(seq, width, behind, cycle.before)
                if draft is None:
                    short = seq.order if short is None else min(short, seq.order)
                else:
                    rows.append((seq, draft))
            elif self._feedable(seq) and not cycle.work and not self._feed(seq, behind, cycle):
                short = seq.order if short is None else min(short, seq.order)
        if rows:
            cycle.work.insert(0, self._decode(rows, width))

    def _ready(self, residents: list[Sequence]) -> tuple[list[Sequence], int]:
        """Say who gets a row, and how wide.

        Drafts begin behind what has been read, and a verification must be read before its batch goes on;
        plain steps run ahead of what has been read.
        """
        ready = [seq for seq in residents if seq.decodable and not self._verifying]
        width = self.drafting.width(ready)
        return [seq for seq in ready if not (width and seq.unread)], width

    def _feedable(self, seq: Sequence) -> bool:
        if seq.state not in FEEDING:
            return False
        return seq.state is not State.PREFILLING or seq.frontier < seq.prompt_tokens or seq.capacity > 0

    def _row(self, seq: Sequence, width: int, behind: bool, units: list[Unit]) -> int | None:
        """Get the pages of a decode row; return its drafts, None if there are no pages.

        An automatic width gives way to memory.  A fixed one does not, because sampled text depends on
        where rounds begin, and nobody's text may depend on how much memory others take.
        """
        draft = self.drafting.useful(seq, width)
        if draft and self.drafting.auto:
            affordable = not behind and self.memory.grow(seq, seq.frontier + 1 + draft, units)
            draft = draft if affordable else 0
        upto = seq.frontier + 1 + draft
        if behind and self.memory.space.missing(seq, upto):
            return None
        return draft if self._secure(seq, upto, units) else None

    def _secure(self, seq: Sequence, upto: int, units: list[Unit]) -> bool:
        """Get the pages of one unit in the order of pressure: cache, snapshots, younger residents."""
        while not self.memory.grow(seq, upto, units):
            if not self.recovery.relieve(seq, units):
                return len(self.roster.residents) == 1 and self.memory.squeeze(seq, upto, units)
        return True

    def _feed(self, seq: Sequence, behind: bool, cycle: Cycle) -> bool:
        """Plan a feeding unit and move the sequence past it; False when its pages cannot be had."""
        upto = self._feed_upto(seq)
        if behind and self.memory.space.missing(seq, upto):
            return False
        if not self._secure(seq, upto, cycle.before):
            return False
        settle(seq, cycle.before)
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
        return True

    def _feed_upto(self, seq: Sequence) -> int:
        if seq.state is State.STEERING:
            return seq.known + len(seq.control)
        upto = min(seq.feed_stop, seq.frontier + self._chunk_beside(seq))
        if seq.frontier < seq.tail < upto:
            upto = seq.tail
        elif seq.tail <= seq.frontier < seq.prompt_tokens:
            upto = min(upto, seq.prompt_tokens)
        return min(upto, seq.next_cut()) if seq.state is State.PREFILLING else upto

    def _chunk_beside(self, seq: Sequence) -> int:
        """Bound a chunk: short while others decode, as large as the device takes them otherwise."""
        if any(other.state is State.DECODING for other in self.roster.residents if other is not seq):
            return self.chunk
        return self.memory.space.geometry.prefill_chunk

    def _decode(self, rows: list[tuple[Sequence, int]], width: int) -> Flight:
        """Build one compact batch and move its plain rows past it."""
        batch = Decode(tuple(row(seq, draft) for seq, draft in rows))
        for seq, draft in rows:
            seq.keep = None
            seq.flying += 1
            if not draft:
                seq.frontier += 1
                seq.reached = seq.frontier
                seq.unread += 1
                seq.tally.fallback_steps += width > 0
                self.counters.spec_fallbacks += width > 0
        drafts = tuple(draft for _, draft in rows) if self.drafting.widest else ()
        self._verifying += any(drafts)
        return Flight(batch, tuple(seq for seq, _ in rows), drafts=drafts)

    def _capture(self, cycle: Cycle) -> None:
        """Keep what this cycle's chunk reaches; planned last, because it is submitted last."""
        for flight in cycle.work:
            seq = flight.rows[0]
            if flight.role is State.PREFILLING and seq.frontier in seq.cuts:
                kind = seq.cuts.pop(seq.frontier)
                self.memory.cache.capture(seq, seq.history(seq.frontier), kind, cycle.after)

    # Results

    def settle(self, flight: Flight, result: Result, seconds: float | None = None) -> list[Landed]:
        """Account for a unit that has run; requests that have ended meanwhile get nothing.

        ``seconds`` is what a round cost where that is more than the device's own time.
        """
        if isinstance(flight.unit, HostSave):
            self.memory.space.host.landed(flight.unit.key)
            flight = attrs.evolve(flight, owner=self.memory.snapshots.owner(flight.unit.key))
        count(self.counters, flight, result, self.memory.space.geometry)
        if flight.drafts:
            self._learn(flight, result, result.seconds if seconds is None else seconds)
        nothing = (RowResult(()),) * len(flight.rows)
        landed = [
            self._land(seq, i, flight, (result.rows or nothing)[i]) for i, seq in enumerate(flight.rows)
        ]
        return [one for one in landed if one.seq.state is not State.DONE]

    def _learn(self, flight: Flight, result: Result, seconds: float) -> None:
        self._verifying -= any(flight.drafts)
        accepted = [len(one.tokens) - 1 for one in result.rows]
        self.drafting.learn(flight.rows, accepted, flight.drafts, seconds)

    def _land(self, seq: Sequence, index: int, flight: Flight, got: RowResult) -> Landed:
        seq.flying -= 1
        if flight.drafts and flight.drafts[index]:
            seq.verified(len(got.tokens), got.drafted)
        else:
            seq.unread -= len(got.tokens) + len(flight.control)
        if seq.state is not State.DONE:
            self._advance(seq, flight)
        return Landed(seq, processed(flight), flight.control, got.tokens)

    def _advance(self, seq: Sequence, flight: Flight) -> None:
        """Note what a landed unit means for a request that is being brought back."""
        if flight.role is State.RESTORING:
            self.recovery.restored(seq)
        elif isinstance(flight.unit, Prefill) and flight.role is State.REPLAYING:
            self.recovery.replayed(seq, flight.unit.start + len(flight.unit.ids))
        else:
            self.recovery.committed(seq)
