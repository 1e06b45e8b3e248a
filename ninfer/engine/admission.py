"""Who may come in: seats, deadlines, and the checks a job must pass before it queues.

Owns the count of open requests, from the first byte of preparation to the last byte of the answer,
and the words of the three refusals (full house, waited too long, engine gone).  Promises that a
full house is refused at once and that nothing here waits.

The one thing a reader would get wrong: the deadline of a seat runs from arrival and covers
preparation; it ends with admission, and neither a pause nor a slow answer restarts it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import anyio
import attrs

from ninfer.engine.job import Job
from ninfer.faults import Fault, Kind, Refused, invalid


@attrs.frozen
class Seat:
    """The right to be prepared and to queue.  Both are clock seconds."""

    arrived: float
    deadline: float

    @contextmanager
    def patience(self) -> Iterator[None]:
        """Bound preparation by the deadline; raises ``Refused`` when it passes."""
        with anyio.CancelScope(deadline=self.deadline) as scope:
            yield
        if scope.cancelled_caught:
            raise Refused(queue_timeout())


@attrs.define(eq=False)
class Seats:
    """``capacity`` seats; ``patience`` is how long one may wait for admission, in seconds."""

    capacity: int
    patience: float
    clock: Callable[[], float]
    taken: int = 0
    _left: anyio.Event = attrs.field(factory=anyio.Event)

    @contextmanager
    def take(self) -> Iterator[Seat]:
        """Take a seat for the life of a request, or raise ``Refused`` at once."""
        if self.taken >= self.capacity:
            raise Refused(overloaded(self.capacity))
        self.taken += 1
        try:
            now = self.clock()
            yield Seat(now, now + self.patience)
        finally:
            self.taken -= 1
            self._left.set()

    async def left(self) -> None:
        """Wait until somebody gives a seat back."""
        self._left = anyio.Event()
        await self._left.wait()


def overloaded(capacity: int) -> Fault:
    """Describe a full house."""
    message = f"all {capacity} places for requests are taken; try again later"
    return Fault(Kind.OVERLOADED, message, "server_overloaded")


def queue_timeout() -> Fault:
    """Describe a request that was not admitted in time."""
    return Fault(Kind.QUEUE_TIMEOUT, "the request was not admitted in time", "request_queue_timeout")


def unavailable() -> Fault:
    """Describe an engine that takes no more work."""
    return Fault(Kind.UNAVAILABLE, "the engine is not available", "engine_unavailable")


def engine_failed() -> Fault:
    """Describe a request that the engine could not bring to its end."""
    return Fault(Kind.INTERNAL, "the engine failed while it served this request", "engine_failed")


def bad_row() -> Fault:
    """Describe a request whose logits were not finite."""
    return Fault(Kind.INTERNAL, "the model produced no usable probabilities", "non_finite_logits")


def output_capacity(prompt_tokens: int, max_tokens: int, max_context: int) -> int:
    """Return how many output tokens a request may have: its own limit, or what the context leaves."""
    return max(min(max_tokens, max_context - prompt_tokens), 0)


def check(job: Job, max_context: int, vocab: int) -> int:
    """Refuse a job that the device could not run whole; return its output capacity in tokens."""
    ids = job.prompt.ids
    if not ids:
        raise invalid("the prompt is empty", code="invalid_prompt")
    if min(ids) < 0 or max(ids) >= vocab:
        raise invalid("the prompt holds a token that the model does not know", code="invalid_prompt")
    if len(ids) > max_context:
        raise invalid(
            f"the prompt has {len(ids)} tokens; the context holds {max_context}",
            code="context_length_exceeded",
        )
    capacity = output_capacity(len(ids), job.max_tokens, max_context)
    check_thinking(job, capacity)
    return capacity


def check_thinking(job: Job, capacity: int) -> None:
    """Refuse a thinking budget whose control tokens and one more would not fit behind it."""
    plan = job.thinking
    if plan is not None and not plan.fits(capacity):
        raise invalid(
            f"the output holds {capacity} tokens; a thinking budget of {plan.budget} needs {plan.needed}",
            code="thinking_budget_capacity_insufficient",
        )
