"""The door of the engine: what is asked of it and what it tells back.

``Engine.submit(job)`` returns the receive end of a channel of ``Event``; closing that end is the
only cancel.  The engine sees no text: a ``Judge`` (built by the output room) looks at each
committed token and says whether generation stops there.

The one thing a reader would get wrong: a ``Judge`` is called exactly once per committed token,
in order, on the engine's task, and must be cheap (microseconds) and pure in memory.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any, Protocol

import attrs

from ninfer.faults import Fault
from ninfer.prompt.prepared import Prepared


class Finish(enum.Enum):
    """Why a generation ended; the names are those of the request log."""

    STOP_TOKEN = "stop_token"
    STOP_STRING = "stop_string"
    OUTPUT_LIMIT = "output_limit"
    CONTEXT = "context_capacity"
    CANCELLED = "cancelled"


COLDEST = 1e-6  # the least positive temperature: a logit divided by less could leave float32


def _bearable(temperature: float) -> float:
    return max(temperature, COLDEST) if temperature > 0 else temperature


@attrs.frozen
class Sampling:
    """How tokens are chosen.  temperature 0 is argmax; ``seed`` is any signed 64-bit integer.

    A positive temperature is at least ``COLDEST``, where the best logit alone survives already.
    ``top_k`` 0 or above 20 means 20.  Penalties count generated tokens of this request only.
    """

    temperature: float = attrs.field(default=0.0, converter=_bearable)
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence: float = 0.0
    frequency: float = 0.0
    seed: int = 0


@attrs.frozen
class Verdict:
    """What one committed token did: the text it set free, and whether it ended the answer."""

    stop: Finish | None = None
    thinking: bool = False  # the reasoning channel is open after this token
    piece: Any = None  # opaque to the engine; forwarded in ``Committed``


class Judge(Protocol):
    """Looks at committed tokens one by one."""

    def take(self, token: int) -> Verdict:
        """Account for one committed token."""

    def finish(self) -> Any:
        """Return the last piece (held text set free); called once, after the last token."""


@attrs.frozen
class ThinkingPlan:
    """Cap on model tokens while the reasoning channel is open, and the tokens that close it."""

    budget: int
    control: tuple[int, ...]

    @property
    def needed(self) -> int:
        """Output tokens for the cap to fire: the budget, its close, and one token after it."""
        return self.budget + len(self.control) + 1

    def fits(self, capacity: int) -> bool:
        """Whether an output of ``capacity`` tokens holds the close, or ends before it is due."""
        return capacity <= self.budget or capacity >= self.needed


@attrs.frozen
class Job:
    """One generation.

    ``max_tokens`` counts every output token, control tokens included; 0 runs the prompt only.
    ``deadline`` is the absolute clock time by which the job must have been admitted.
    ``session`` groups turns of one conversation; a job with ``session_write`` False may read but
    not replace that session's endpoint.
    """

    request_id: str
    prompt: Prepared
    sampling: Sampling
    max_tokens: int
    judge: Judge
    deadline: float
    thinking: ThinkingPlan | None = None
    session: str | None = None
    session_write: bool = True
    arrived: float = 0.0  # clock time at which the request entered preparation
    on_end: Callable[[Done | Failed], None] | None = None  # called once, however the job ends


@attrs.frozen
class Admitted:
    """The job owns a lane and its prefix choice is fixed: cached + computed = prompt tokens."""

    at: float
    prompt_tokens: int
    cached_tokens: int
    path: str  # "root" or "checkpoint"


@attrs.frozen
class Progress:
    """``processed`` prompt tokens now have state (cached ones included)."""

    at: float
    processed: int


@attrs.frozen
class Committed:
    """Tokens that are durable, with the text they set free."""

    at: float
    tokens: tuple[int, ...]
    piece: Any
    thinking_tokens: int  # cumulative tokens accepted while the reasoning channel was open
    drafted: int = 0  # cumulative speculative counters
    accepted: int = 0


@attrs.frozen
class Work:
    """Tokens that landed so far: prompt, decode and control, replayed."""

    prefill: int = 0
    decode: int = 0
    replayed: int = 0


@attrs.frozen
class Shifted:
    """A step of a pause or a recovery; only requests that have been paused hear these.

    ``transition`` is pause_started, paused, snapshot_revoked, restore_started, restored,
    replay_complete, recovery_complete or terminal; ``route`` is "snapshot", "replay" or None.
    """

    at: float
    transition: str
    route: str | None
    preemption: int  # which pause of the request, from 1
    everyone: Work = Work()
    own: Work = Work()


@attrs.frozen
class Spent:
    """Seconds of the engine's task that passed over a request, by phase; waiting for the device apart.

    The last two are the part of both that went to decode rounds.
    """

    host: tuple[tuple[str, float], ...] = ()
    wait: float = 0.0
    decode_host: float = 0.0
    decode_wait: float = 0.0

    def plus(self, other: Spent, sign: int = 1) -> Spent:
        """Add, or with ``sign`` -1 subtract."""
        mine = dict(self.host)
        host = tuple((name, mine.get(name, 0.0) + sign * value) for name, value in other.host)
        return Spent(
            host,
            self.wait + sign * other.wait,
            self.decode_host + sign * other.decode_host,
            self.decode_wait + sign * other.decode_wait,
        )


@attrs.define
class Feed:
    """Seconds that a request's prompt (or replay) units took: host before, wait, host after, device."""

    submit: float = 0.0
    wait: float = 0.0
    post: float = 0.0
    gpu: float = 0.0


@attrs.define
class Moved:
    """Context copies by (resource, direction): bytes, and seconds of the device."""

    bytes: dict[tuple[str, str], int] = attrs.field(factory=dict)
    seconds: dict[tuple[str, str], float] = attrs.field(factory=dict)

    def add(self, key: tuple[str, str], size: int, seconds: float) -> None:
        """Count one copy."""
        self.bytes[key] = self.bytes.get(key, 0) + size
        self.seconds[key] = self.seconds.get(key, 0.0) + seconds

    def total(self, direction: str) -> int:
        """Bytes of one direction."""
        return sum(size for (_, way), size in self.bytes.items() if way == direction)

    def copy(self) -> Moved:
        """Return one that no longer grows."""
        return Moved(dict(self.bytes), dict(self.seconds))


@attrs.frozen
class Summary:
    """Everything the request log, usage and metrics need about a generation, finished or not.

    Times are clock seconds (absolute), durations are seconds.  ``first_output`` is the summary as it
    stood just before the first text was published.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    computed_prefill_tokens: int = 0
    output_tokens: tuple[int, ...] = ()
    thinking_tokens: int = 0  # tokens accepted in the reasoning channel, control included
    model_thinking_tokens: int = 0
    control_tokens: int = 0
    path: str = "root"
    arrived: float = 0.0
    submitted: float = 0.0
    queued_until: float | None = None  # when the attempt began that admitted it
    admitted: float | None = None
    bound: float | None = None  # when the state it starts from was there
    first_token: float | None = None
    last_token: float | None = None
    ended: float = 0.0
    prefill_units: int = 0
    control_units: int = 0
    vision_seconds: float = 0.0
    decode_rounds: int = 0
    spec_rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    fallback_steps: int = 0
    accepted_per_position: tuple[int, ...] = ()
    preemptions: int = 0
    snapshot_restores: int = 0
    replay_restores: int = 0
    replayed_tokens: int = 0
    paused_seconds: float = 0.0
    miss_reason: str | None = None
    preferred_tokens: int = 0  # of the prompt that the best known source would have spared
    disk_tokens: int = 0  # of ``cached_tokens``, those that only a file had
    exposed: Spent = Spent()
    prefill: Feed = attrs.field(factory=Feed)
    replay: Feed = attrs.field(factory=Feed)
    moved: Moved = attrs.field(factory=Moved)
    first_output: Summary | None = None


@attrs.frozen
class Done:
    """The generation ended; ``piece`` is the held text set free at the end."""

    finish: Finish
    piece: Any
    summary: Summary


@attrs.frozen
class Failed:
    """The generation cannot go on; the last event of its channel."""

    fault: Fault
    summary: Summary


Event = Admitted | Progress | Committed | Shifted | Done | Failed
