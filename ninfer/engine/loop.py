"""The engine: one task that owns every request, one device that runs its units.

Owns the open requests and their channels.  The rest of the server talks to it through ``seat``,
``submit`` and the receive end that ``submit`` returns; closing that end *is* cancellation and is
noticed at the next unit boundary.  Promises exactly one terminal event for each submitted job, and
that a slow reader never holds up a batch (a channel has room for the whole answer).

The one thing a reader would get wrong: the next unit is submitted before the previous one has been
read, so whatever a unit turns out to mean, one more row may already be running behind it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress

import anyio
import attrs

from ninfer.engine import admission
from ninfer.engine.admission import Seat, Seats
from ninfer.engine.channel import Channel, Reader
from ninfer.engine.cycle import Flight, Landed
from ninfer.engine.device import Decode, Device, Result, Ticket
from ninfer.engine.fetch import Fetch
from ninfer.engine.job import Admitted, Committed, Done, Event, Failed, Finish, Job, Progress, Shifted, Work
from ninfer.engine.memory import Memory
from ninfer.engine.meter import Meter
from ninfer.engine.roster import News
from ninfer.engine.scheduler import Scheduler
from ninfer.engine.sequence import Sequence, State
from ninfer.engine.stats import Phase, Selection, Statistics
from ninfer.faults import Broken, Fault, Refused
from ninfer.settings import EngineOptions

RUN_AHEAD = 1  # work units that may be unread when the next cycle is planned


@attrs.define(eq=False)
class Engine:
    """Admits, plans, submits, reads and publishes.  ``clock`` gives seconds."""

    device: Device
    options: EngineOptions
    clock: Callable[[], float] = anyio.current_time
    failure: Exception | None = None
    last_selection: Selection | None = None
    seats: Seats = attrs.field(init=False)
    scheduler: Scheduler = attrs.field(init=False)
    _open: dict[Sequence, Channel[Event]] = attrs.field(factory=dict)
    _flights: deque[tuple[Flight, Ticket]] = attrs.field(factory=deque)
    _bell: anyio.Event = attrs.field(factory=anyio.Event)  # wakes the loop
    _alarm: anyio.Event = attrs.field(factory=anyio.Event)  # wakes the watch over deadlines
    _rested: anyio.Event = attrs.field(factory=anyio.Event)  # set when nothing is left to do
    _reader: Callable[[Fetch], None] | None = None  # begins to read what requests wait for
    _arrivals: int = 0
    _last_round: float | None = None  # when a decode round was read, if nothing else has been since
    _draining: bool = False  # who has a seat may still submit
    _closed: bool = False
    meter: Meter = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        geometry = self.device.geometry
        chunk = min(self.options.prefill_chunk, geometry.prefill_chunk)
        capacity = geometry.lanes + self.options.max_pending
        self.seats = Seats(capacity, self.options.pending_timeout, self.clock)
        self.scheduler = Scheduler(Memory.of(geometry, self.options), self.options, chunk)
        self.meter = Meter(self.scheduler.counters, self.clock)

    # The door

    def seat(self) -> AbstractContextManager[Seat]:
        """Take a place for the life of one request.  Raises ``Refused`` at once when there is none."""
        if self.failure or self._closed or self._draining:
            raise Refused(admission.unavailable())
        return self.seats.take()

    def submit(self, job: Job) -> Reader[Event]:
        """Queue a job; closing the returned end cancels it.  Raises ``Refused``."""
        if self.failure or self._closed:
            raise Refused(admission.unavailable())
        geometry = self.device.geometry
        capacity = admission.check(job, geometry.max_context, geometry.vocab)
        # No token, and no unit, gives rise to more than a handful of events.
        room = 8 * (len(job.prompt.ids) + capacity + 1)
        channel = Channel[Event](room)
        self._arrivals += 1
        seq = Sequence(job, self._arrivals, capacity, submitted=self.clock())
        self._open[seq] = channel
        self.scheduler.admit(seq)
        self._bell.set()
        self._alarm.set()
        return channel.reader

    async def run(self) -> None:
        """Serve until cancelled; when the device fails, tell everyone and return."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._watch_deadlines)
            try:
                await self._serve()
            except Exception as failure:  # noqa: BLE001 - the engine supervisor: all else is a fault value
                self.failure = failure
            finally:
                self._closed = True
                self._close_all()
                self._rested.set()
                tasks.cancel_scope.cancel()

    async def drain(self) -> None:
        """Refuse new requests and wait until every seat has been given back."""
        self._draining = True
        while self.seats.taken:
            await self.seats.left()

    @property
    def resting(self) -> bool:
        """Whether nothing is open, in flight, being read, or still to be submitted."""
        scheduler = self.scheduler
        return not (self._open or self._flights or scheduler.owes or scheduler.fetching.pending)

    async def rest(self) -> None:
        """Wait until it is resting, or has ended."""
        while not (self.resting or self._closed):
            self._rested = anyio.Event()
            await self._rested.wait()

    def read_with(self, reader: Callable[[Fetch], None] | None) -> None:
        """Let requests wait for files, which ``reader`` begins to read; None: no more of them."""
        self._reader, self.scheduler.fetching.open = reader, reader is not None

    def wake(self) -> None:
        """Look for something to do: a fetch has ended, or takes too long."""
        self._bell.set()

    def stats(self) -> Statistics:
        """Take a snapshot of counters and gauges."""
        roster, memory = self.scheduler.roster, self.scheduler.memory
        states = [seq.state for seq in roster.residents]
        return Statistics(
            running=len(states),
            waiting=len(roster.waiting),
            paused=len(roster.paused),
            prefilling=states.count(State.PREFILLING),
            decode_ready=states.count(State.DECODING),
            replaying=states.count(State.REPLAYING),
            materializing=states.count(State.RESTORING),
            pages=memory.space.pages.statistics(),
            slots=memory.space.slots.statistics(),
            host=memory.space.host.statistics(),
            disk=memory.disk.statistics(),
            checkpoints=memory.checkpoints - len(self.scheduler.fetching.pending),
            seats_taken=self.seats.taken,
            seats_capacity=self.seats.capacity,
            counters=self.scheduler.snapshot(),
            last_selection=self.last_selection,
        )

    def check(self) -> None:
        """Raise ``Broken`` unless every lane, slot, page and host byte is accounted for."""
        self.scheduler.check()

    # The loop

    async def _serve(self) -> None:
        self.meter.restart()
        while True:
            self._drop_cancelled()
            self._expire()
            self.meter.spend(Phase.MAINTENANCE)
            while self._under_way <= RUN_AHEAD and self._submit_cycle():
                pass
            if self._flights:
                await self._land()
            else:
                await self._rest()

    @property
    def _under_way(self) -> int:
        return sum(bool(flight.rows) for flight, _ in self._flights)

    def _submit_cycle(self) -> bool:
        """Plan and submit; False when there was nothing to do."""
        began = self.clock()
        cycle = self.scheduler.plan()
        self.meter.spend(Phase.BOUNDARY, cycle)
        for flight in cycle:
            self._flights.append((flight, self.device.submit(flight.unit)))
            self.meter.spend(Phase.SUBMIT, (flight,))
        for seq in [seq for seq in self.scheduler.roster.residents if seq.tally.admitted is None]:
            self._announce(seq, began)
        for fetch in self.scheduler.fetching.take_fresh():
            assert self._reader is not None
            self._reader(fetch)
        self._tell_news()
        self.meter.spend(Phase.COMMIT, cycle)
        return bool(cycle)

    async def _land(self) -> None:
        """Read the oldest unit and commit what it brought."""
        flight, ticket = self._flights.popleft()
        result = await ticket.result()
        self.meter.spend(None, (flight,))
        self.meter.landed(flight, result.seconds - result.vision_seconds)
        landed = self.scheduler.settle(flight, result, self._cost(flight, result))
        self._tell_news()
        self.meter.spend(Phase.POST, (flight,))
        for one in landed:
            self._commit(one)
        self.meter.spend(Phase.COMMIT, (flight,))

    def _cost(self, flight: Flight, result: Result) -> float:
        """Return what a round took: the time since the last one, where one followed the other."""
        now, last = self.clock(), self._last_round
        self._last_round = now if isinstance(flight.unit, Decode) else None
        return result.seconds if last is None else max(now - last, result.seconds)

    async def _rest(self) -> None:
        """Sleep until someone submits; a request that nothing can move is a broken invariant."""
        spent = [seq for seq in self.scheduler.roster.residents if seq.spent]
        for seq in spent:
            self._finish(seq, seq.limit())
        if spent:
            return
        if self._open and not self.scheduler.fetching.pending:
            raise Broken("requests are open, none can move and nothing is in flight")
        self._rested.set()
        self._bell = anyio.Event()
        await self._bell.wait()
        self.meter.restart()

    # Publishing

    def _announce(self, seq: Sequence, began: float) -> None:
        """Tell a request that it has a lane and what of its prompt was known."""
        seq.tally.queued_until, seq.tally.admitted = began, self.clock()
        self.last_selection = Selection(seq.tally.path, seq.prompt_tokens, seq.tally.cached_tokens)
        self._bind(seq)
        counters = self.scheduler.counters
        counters.prompt_tokens += seq.prompt_tokens
        counters.prompt_tokens_cached += seq.tally.cached_tokens
        counters.prompt_tokens_disk += seq.tally.disk_tokens
        counters.root_selections += seq.tally.path == "root"
        counters.checkpoint_selections += seq.tally.path != "root"
        self._publish(
            seq, Admitted(seq.tally.admitted, seq.prompt_tokens, seq.tally.cached_tokens, seq.tally.path)
        )

    def _bind(self, seq: Sequence) -> None:
        """Charge a request from now on, unless its state is still on its way."""
        if seq.state is not State.RESTORING:
            seq.tally.bound = self.clock()
            self.meter.bind(seq)

    def _tell_news(self) -> None:
        """Publish the steps of pauses and recoveries."""
        news = self.scheduler.roster.news[:]
        self.scheduler.roster.news.clear()
        for item in news:
            now = self.clock()
            if item.transition == "pause_started":
                item.seq.paused_at = now
                self.meter.pause(item.seq)
            elif item.transition == "restored":
                item.seq.tally.paused_seconds += now - (item.seq.paused_at or now)
                item.seq.paused_at = None
                self.meter.bind(item.seq)
            if item.seq in self._open:
                self._publish(item.seq, self._shifted(item, now))

    def _shifted(self, item: News, now: float) -> Shifted:
        counters, tally = self.scheduler.counters, item.seq.tally
        everyone = Work(counters.prefill_tokens, counters.decode_tokens, counters.replayed_tokens)
        decoded = max(len(item.seq.outputs) - 1, 0)
        own = Work(tally.computed_prefill_tokens, decoded, tally.replayed_tokens)
        return Shifted(now, item.transition, item.route, tally.preemptions, everyone, own)

    def _commit(self, landed: Landed) -> None:
        """Give the judge each new token in order, and publish what it sets free."""
        seq = landed.seq
        if seq.tally.bound is None:
            self._bind(seq)
        if landed.processed is not None and seq in self._open:
            self._publish(seq, Progress(self.clock(), landed.processed))
        going = seq in self._open  # its reader may have been found gone meanwhile
        for index, token in enumerate((*landed.control, *landed.tokens)):
            going = going and self._take(seq, token, forced=index < len(landed.control))
        if going and seq.spent:
            self._finish(seq, seq.limit())

    def _take(self, seq: Sequence, token: int, *, forced: bool = False) -> bool:
        """Commit one token; False when the request ended with it."""
        if not 0 <= token < self.device.geometry.vocab:
            self._fail(seq, admission.bad_row())
            return False
        now = self.clock()
        try:
            verdict = seq.take(token, forced=forced)
        except Exception:  # noqa: BLE001 - a judge that breaks takes down its own request only
            self._fail(seq, admission.engine_failed())
            return False
        self._time(seq, now)
        tally = seq.tally
        if verdict.piece and tally.first_output is None:
            tally.first_output = self.meter.summary(seq)
        self._publish(
            seq, Committed(now, (token,), verdict.piece, seq.thinking_tokens, tally.drafted, tally.accepted)
        )
        if seq not in self._open:
            return False
        if finish := seq.ends(verdict):
            self._finish(seq, finish)
            return False
        seq.steer_if_due()
        return True

    def _time(self, seq: Sequence, now: float) -> None:
        tally, counters = seq.tally, self.scheduler.counters
        counters.generation_tokens += 1
        if tally.first_token is None:
            tally.first_token = now
        else:
            counters.decode_tokens += 1
        tally.last_token = now

    def _publish(self, seq: Sequence, event: Event) -> None:
        """Send one event; a reader that has left ends its request here."""
        try:
            self._open[seq].send_nowait(event)
        except anyio.BrokenResourceError:
            self._cancel(seq)

    # Endings

    def _finish(self, seq: Sequence, finish: Finish) -> None:
        try:
            piece = seq.job.judge.finish()
        except Exception:  # noqa: BLE001 - as in ``_take``
            self._fail(seq, admission.engine_failed())
            return
        self._end(seq, Done(finish, piece, self.meter.summary(seq)), finish)

    def _fail(self, seq: Sequence, fault: Fault) -> None:
        self._end(seq, Failed(fault, self.meter.summary(seq)))

    def _cancel(self, seq: Sequence) -> None:
        self._end(seq, Done(Finish.CANCELLED, None, self.meter.summary(seq)))

    def _end(self, seq: Sequence, event: Done | Failed, finish: Finish | None = None) -> None:
        """Give everything back, then tell the reader and whoever keeps the books."""
        send = self._open.pop(seq)
        try:
            self.scheduler.evict(seq, finish)
        except Broken:
            if self.failure is None:  # of a lost device nothing needs to come back
                raise
        with suppress(anyio.BrokenResourceError):
            if seq.tally.preemptions:
                send.send_nowait(self._shifted(News(seq, "terminal"), self.clock()))
            send.send_nowait(event)
        send.close()
        if seq.job.on_end:
            seq.job.on_end(event)

    def _drop_cancelled(self) -> None:
        for seq in [seq for seq, channel in self._open.items() if channel.left]:
            self._cancel(seq)

    def _close_all(self) -> None:
        if self.failure is None:
            self._drop_cancelled()
        fault = admission.engine_failed() if self.failure else admission.unavailable()
        self._flights.clear()
        for seq in list(self._open):
            try:
                self._fail(seq, fault)
            except Exception as bug:  # noqa: BLE001 - one keeper of books must not silence the other requests
                self.failure = self.failure or bug

    # Time

    async def _watch_deadlines(self) -> None:
        """Fail requests that still wait at their deadline, on the exact second."""
        while True:
            self._alarm = anyio.Event()
            soonest = min((seq.job.deadline for seq in self.scheduler.roster.waiting), default=math.inf)
            with anyio.CancelScope(deadline=soonest):
                await self._alarm.wait()
            self._expire()

    def _expire(self) -> None:
        now = self.clock()
        for seq in [seq for seq in self.scheduler.roster.waiting if seq.job.deadline <= now]:
            self._fail(seq, admission.queue_timeout())
