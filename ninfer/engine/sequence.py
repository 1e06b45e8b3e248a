"""One request inside the engine: where it stands, what it has, what it said.

Owns the transition table, the frontier, the output tokens and the counters of one request; pure
state, moved by the scheduler and read by everyone.  Promises that a state only changes along
``MOVES`` and that ``frontier`` always is what the device will have once all submitted units ran.

The one thing a reader would get wrong: the host plans ahead of what it has read.  ``unread``
tokens are on their way; ``prompt + outputs + unread`` is one more than ``frontier`` while decoding,
because the last token is *pending*: known (or on the device) but not yet forwarded.
"""

from __future__ import annotations

import enum

import attrs

from ninfer.engine.device import TAIL_TOKENS
from ninfer.engine.identity import Identity, identify
from ninfer.engine.job import Feed, Finish, Job, Moved, Spent, Summary, Verdict
from ninfer.engine.prefix import Kind, Node
from ninfer.faults import Broken
from ninfer.prompt.prepared import MarkKind, Prepared


class State(enum.Enum):
    """Where a request stands.

    STEERING forwards the control tokens that close an over-long reasoning block.  RESTORING waits
    for a snapshot to come back; REPLAYING recomputes state that had been given up.
    """

    QUEUED = "queued"
    PREFILLING = "prefilling"
    DECODING = "decoding"
    STEERING = "steering"
    PAUSED = "paused"
    RESTORING = "restoring"
    REPLAYING = "replaying"
    DONE = "done"


_RUNNING = {State.PREFILLING, State.DECODING, State.STEERING}
MOVES: dict[State, set[State]] = {
    State.QUEUED: {State.PREFILLING, State.RESTORING, State.DONE},
    State.PREFILLING: {State.DECODING, State.PAUSED, State.DONE},
    State.DECODING: {State.STEERING, State.PAUSED, State.DONE},
    State.STEERING: {State.DECODING, State.PAUSED, State.DONE},
    State.PAUSED: _RUNNING | {State.RESTORING, State.REPLAYING, State.DONE},
    State.RESTORING: _RUNNING | {State.REPLAYING, State.DONE},
    State.REPLAYING: _RUNNING | {State.DONE},
    State.DONE: set(),
}
FEEDING = {State.PREFILLING, State.STEERING, State.REPLAYING}
RESIDENT = FEEDING | {State.DECODING, State.RESTORING}


def _tail(prompt: Prepared) -> int:
    """Return where the tail of a prompt begins: a function of the prompt alone, so its bits are as well."""
    stop = len(prompt.ids)
    marks = [mark.index for mark in prompt.marks if mark.kind is MarkKind.INPUT and mark.index < stop]
    begin = max(marks, default=stop)
    media = any(span.stop > begin for span in prompt.media)
    return begin if begin and stop - begin <= TAIL_TOKENS and not media else stop


@attrs.define(eq=False)
class Tally:
    """What a request has cost so far; the changing half of its ``Summary``."""

    admitted: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    cached_tokens: int = 0
    computed_prefill_tokens: int = 0
    path: str = "root"
    miss_reason: str | None = None
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
    queued_until: float | None = None
    bound: float | None = None
    preferred_tokens: int = 0
    disk_tokens: int = 0
    exposed: Spent = attrs.field(factory=Spent)
    prefill: Feed = attrs.field(factory=Feed)
    replay: Feed = attrs.field(factory=Feed)
    moved: Moved = attrs.field(factory=Moved)
    first_output: Summary | None = None

    def copy(self) -> Tally:
        """Return one that no longer grows."""
        return attrs.evolve(
            self,
            prefill=attrs.evolve(self.prefill),
            replay=attrs.evolve(self.replay),
            moved=self.moved.copy(),
        )


@attrs.define(eq=False)
class Sequence:
    """One request; ``capacity`` is the most output tokens it may have, ``order`` its arrival."""

    job: Job
    order: int
    capacity: int
    submitted: float = 0.0
    state: State = State.QUEUED
    lane: int = -1
    slot: int = -1
    pages: tuple[int, ...] = ()
    frontier: int = 0
    reached: int = 0  # the highest frontier so far: what lies below it was computed once already
    flying: int = 0  # units submitted and not yet read
    unread: int = 0  # output tokens of those units
    outputs: list[int] = attrs.field(factory=list)
    steered: tuple[int, int] = (0, 0)  # outputs[a:b] are control tokens
    reasoning: bool = attrs.field(init=False)
    whole: Identity = attrs.field(init=False)  # of the prompt
    tail: int = attrs.field(init=False)  # where the few tokens behind its input mark begin, or its end
    thinking_tokens: int = 0  # accepted in the reasoning channel, control included
    model_thinking_tokens: int = 0
    keep: int | None = None  # positions of its last verification that its state is to take in
    acceptance: float | None = None  # running share of its drafts that were accepted
    source: Node | None = None  # the checkpoint it started from
    cuts: dict[int, Kind] = attrs.field(factory=dict)  # frontiers to capture, in order
    recovering: bool = False  # brought back and nothing new committed yet: not to be paused again
    route: str | None = None  # how it was brought back last: "snapshot" or "replay"
    replay_stop: int = 0  # where that replay ends
    paused_at: float | None = None
    charged_from: Spent | None = None  # the engine's reading when it last became resident
    bypassed: int = 0  # younger requests that were admitted past this one
    looks: int = 2  # fetches from disk that it may still cause
    spared: int = 0  # of its prompt, when it last looked at the disk
    fetched: bool = False  # whether what it then waited for has landed
    missed: str | None = None  # why it did not
    tally: Tally = attrs.field(factory=Tally)

    def __attrs_post_init__(self) -> None:
        self.reasoning = self.job.prompt.thinking
        self.whole = identify(self.job.prompt)
        self.tail = _tail(self.job.prompt)

    def move(self, state: State) -> None:
        """Go to ``state``; raise ``Broken`` when the table has no such move."""
        if state not in MOVES[self.state]:
            raise Broken(f"{self.job.request_id}: {self.state.value} -> {state.value}")
        self.state = state

    # Tokens

    @property
    def prompt_tokens(self) -> int:
        """How many tokens the prompt has."""
        return len(self.job.prompt.ids)

    @property
    def known(self) -> int:
        """How many tokens the host knows: prompt and read outputs."""
        return self.prompt_tokens + len(self.outputs)

    def ids(self, start: int, stop: int) -> tuple[int, ...]:
        """Return the known tokens ``start .. stop``."""
        prompt, length = self.job.prompt.ids, self.prompt_tokens
        if stop <= length:
            return prompt[start:stop]
        tail = tuple(self.outputs[max(start - length, 0) : stop - length])
        return prompt[start:length] + tail

    def history(self, stop: int) -> Identity:
        """Describe the first ``stop`` known tokens exactly."""
        if stop <= self.prompt_tokens:
            return self.whole.part(0, stop)
        tail = tuple(self.outputs[: stop - self.prompt_tokens])
        return self.whole.extended(tail, self.job.prompt.rope_delta)

    @property
    def sampled(self) -> tuple[int, ...]:
        """The outputs that the model chose: what penalties count."""
        first, last = self.steered
        return tuple(self.outputs[:first] + self.outputs[last:])

    # Commit

    def take(self, token: int, *, forced: bool = False) -> Verdict:
        """Append one token that is durable on the device and ask the judge about it."""
        if forced:
            first = self.steered[0] if self.steered[1] else len(self.outputs)
            self.steered = first, len(self.outputs) + 1
        self.outputs.append(token)
        self.thinking_tokens += forced or self.reasoning
        self.model_thinking_tokens += self.reasoning and not forced
        verdict = self.job.judge.take(token)
        self.reasoning = verdict.thinking
        return verdict

    def ends(self, verdict: Verdict) -> Finish | None:
        """Say why the answer ends with the token just taken, or None when it goes on."""
        if verdict.stop is not None:
            return verdict.stop
        return self.limit() if len(self.outputs) >= self.capacity else None

    def limit(self) -> Finish:
        """Name what bounds the output: the request's own limit or the context."""
        return Finish.OUTPUT_LIMIT if self.capacity == self.job.max_tokens else Finish.CONTEXT

    # Thinking budget

    @property
    def control(self) -> tuple[int, ...]:
        """The tokens that close the reasoning channel."""
        if self.job.thinking is None:
            raise Broken("control tokens without a thinking plan")
        return self.job.thinking.control

    def must_steer(self, ahead: int = 0) -> bool:
        """Whether the budget is used up with the reasoning still open, ``ahead`` tokens from now.

        Control is inserted once, whole, and only where one more token fits behind it.
        """
        plan = self.job.thinking
        if plan is None or self.steered[1] or not self.reasoning:
            return False
        room = self.capacity - len(self.outputs) - ahead
        return self.model_thinking_tokens + ahead >= plan.budget and room > len(plan.control)

    def steer_if_due(self) -> None:
        """Turn from decoding to inserting control tokens when the thinking budget is used up."""
        if self.state is State.DECODING and not self.unread and self.must_steer():
            self.move(State.STEERING)

    # Readiness

    @property
    def resident(self) -> bool:
        """Whether it has a lane."""
        return self.state in RESIDENT

    @property
    def decodable(self) -> bool:
        """Whether one more decode row may be submitted without having read everything."""
        if self.state is not State.DECODING:
            return False
        return len(self.outputs) + self.unread < self.capacity and not self.must_steer(self.unread)

    @property
    def feed_stop(self) -> int:
        """Where the current feeding ends; ``frontier`` moves up to here."""
        return self.reached if self.state is State.REPLAYING else self.prompt_tokens

    def next_cut(self) -> int:
        """Return the next frontier to capture, or the end of the prompt."""
        return next((index for index in self.cuts if index > self.frontier), self.prompt_tokens)

    @property
    def spent(self) -> bool:
        """Whether the whole prompt has state and no output may follow."""
        fed = self.state is State.PREFILLING and self.frontier == self.prompt_tokens
        return fed and not self.flying and self.capacity == 0

    def resumes_as(self) -> State:
        """Say which state continues once the state up to ``frontier`` is back."""
        if self.frontier < self.reached:
            return State.REPLAYING
        if self.reached < self.prompt_tokens or not self.outputs:
            return State.PREFILLING
        return State.STEERING if self.must_steer() else State.DECODING

    def verified(self, tokens: int, drafted: int) -> None:
        """Take in a verification that produced ``tokens``; the state follows when it is settled."""
        tally, accepted = self.tally, tokens - 1
        self.keep = tokens
        self.frontier += tokens
        self.reached = self.frontier
        tally.spec_rounds += 1
        tally.drafted += drafted
        tally.accepted += accepted
        counts = list(tally.accepted_per_position) + [0] * drafted
        for position in range(accepted):
            counts[position] += 1
        tally.accepted_per_position = tuple(counts[: max(len(tally.accepted_per_position), drafted)])

    def cut_round(self) -> None:
        """Let the frontier end with the last token taken, which was an accepted draft."""
        untaken = self.frontier + 1 - self.known
        if self.keep is not None and untaken > 0:
            self.keep -= untaken - 1
            self.frontier -= untaken - 1

    def summary(self, ended: float) -> Summary:
        """Freeze everything the log, usage and metrics need."""
        return Summary(
            prompt_tokens=self.prompt_tokens,
            output_tokens=tuple(self.outputs),
            thinking_tokens=self.thinking_tokens,
            model_thinking_tokens=self.model_thinking_tokens,
            control_tokens=self.steered[1] - self.steered[0],
            arrived=self.job.arrived,
            submitted=self.submitted,
            ended=ended,
            **attrs.asdict(self.tally.copy(), recurse=False),
        )
