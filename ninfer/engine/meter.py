"""Where the engine's time goes: in total, by kind of work, and over the head of each request.

Owns the clock's last reading; totals live in ``Counters``.  Promises that every instant of the engine's
task is booked once, so the five phases and the wait for the device add up to its wall time.

The one thing a reader would get wrong: a request is charged for everything that happens while it is
resident, others' work included, because all of it delays its next token; charges of concurrent requests
therefore overlap and must not be added.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Many

import attrs

from ninfer.engine.cycle import Flight
from ninfer.engine.device import Decode, Prefill
from ninfer.engine.job import Feed, Spent, Summary
from ninfer.engine.sequence import Sequence, State
from ninfer.engine.stats import Counters, Phase, WorkClass

_FIELDS = {Phase.SUBMIT: "submit", None: "wait", Phase.POST: "post"}


@attrs.define(eq=False)
class Meter:
    """Books time on ``counters`` and on the sequences that flights carry."""

    counters: Counters
    clock: Callable[[], float]
    _mark: float = 0.0

    def restart(self) -> None:
        """Let what has passed since the last booking be nobody's: the engine was at rest."""
        self._mark = self.clock()

    def spend(self, phase: Phase | None, flights: Many[Flight] = ()) -> None:
        """Book the time since the last call on a phase, or on waiting for the device (None)."""
        now = self.clock()
        spent, self._mark = now - self._mark, now
        counters = self.counters
        if phase is None:
            counters.device_wait += spent
        else:
            counters.host_work[phase.value] = counters.host_work.get(phase.value, 0.0) + spent
        by_class = counters.wait_by_class if phase is None else counters.host_by_class
        classes = {class_of(flight) for flight in flights if flight.rows} or {WorkClass.CONTROL}
        for kind in classes:
            by_class[kind.value] = by_class.get(kind.value, 0.0) + spent / len(classes)
        if len(flights) == 1 and phase in _FIELDS:
            self._feed(flights[0], _FIELDS[phase], spent)

    def landed(self, flight: Flight, seconds: float) -> None:
        """Book the device's own seconds for a unit that fed a request."""
        self._feed(flight, "gpu", seconds)

    def _feed(self, flight: Flight, name: str, spent: float) -> None:
        feed = _feed_of(flight)
        if feed is not None:
            setattr(feed, name, getattr(feed, name) + spent)

    # Requests

    def bind(self, seq: Sequence) -> None:
        """Begin to charge a request: it is resident."""
        seq.charged_from = self._reading()

    def pause(self, seq: Sequence) -> None:
        """Charge what has passed and stop."""
        seq.tally.exposed = self._exposed(seq)
        seq.charged_from = None

    def summary(self, seq: Sequence) -> Summary:
        """Freeze a request's account as it stands."""
        now, tally = self.clock(), seq.tally
        paused = tally.paused_seconds + (now - seq.paused_at if seq.paused_at is not None else 0.0)
        return attrs.evolve(seq.summary(now), exposed=self._exposed(seq), paused_seconds=paused)

    def _exposed(self, seq: Sequence) -> Spent:
        if seq.charged_from is None:
            return seq.tally.exposed
        return seq.tally.exposed.plus(self._reading().plus(seq.charged_from, -1))

    def _reading(self) -> Spent:
        counters = self.counters
        decode = WorkClass.DECODE.value
        return Spent(
            tuple((phase.value, counters.host_work.get(phase.value, 0.0)) for phase in Phase),
            counters.device_wait,
            counters.host_by_class.get(decode, 0.0),
            counters.wait_by_class.get(decode, 0.0),
        )


def class_of(flight: Flight) -> WorkClass:
    """Say what kind of work a unit is; copies and control tokens are neither prompt nor decoding."""
    if isinstance(flight.unit, Decode):
        return WorkClass.DECODE
    steers = flight.role is State.STEERING
    return WorkClass.PREFILL if isinstance(flight.unit, Prefill) and not steers else WorkClass.CONTROL


def _feed_of(flight: Flight) -> Feed | None:
    if not isinstance(flight.unit, Prefill):
        return None
    tally = flight.rows[0].tally
    return {State.PREFILLING: tally.prefill, State.REPLAYING: tally.replay}.get(flight.role)
