"""One server behind all protocols: seat, prompt, engine and output room put together.

Owns the life of one generation from its arrival to its last delta.  Promises that whatever happens
(refusal, client gone, device lost) the seat is given back, the job's channel is closed and exactly
one terminal is recorded.

The one thing a reader would get wrong: the pending deadline starts before preparation and covers it;
the engine then watches the same absolute time until admission.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    asynccontextmanager,
)
from typing import Protocol

import anyio
import attrs

from ninfer import presets
from ninfer.engine.admission import Seat, output_capacity
from ninfer.engine.channel import Reader
from ninfer.engine.job import Done, Event, Failed, Job, Shifted, ThinkingPlan
from ninfer.faults import Fault, Kind, Refused, invalid
from ninfer.generation import RunningGeneration
from ninfer.output.deltas import ToolParse
from ninfer.output.session import OutputSession
from ninfer.output.toolcalls import ToolStream
from ninfer.prompt.conversation import Conversation, MediaPart
from ninfer.prompt.media import MediaItem
from ninfer.prompt.prepared import MediaStatistics, Preparation, Prepared
from ninfer.protocols.service import Ask, Generation, ModelCard
from ninfer.settings import GenerationDefaults, SamplingOverrides

_CRASHED = Fault(Kind.INTERNAL, "the server failed to prepare this request", "internal_error")
VISION_CONTEXT = 32_768  # tokens of a prompt with media: what the tower's workspace is planned for


class EnginePort(Protocol):
    """What the service needs of the engine."""

    @property
    def failure(self) -> Exception | None:
        """Why the engine stopped, if it did."""

    def seat(self) -> AbstractContextManager[Seat]:
        """Take one of lanes + pending places, or raise ``Refused`` (OVERLOADED, UNAVAILABLE)."""

    def submit(self, job: Job) -> Reader[Event]:
        """Queue a job; closing the returned stream cancels it."""


class Watch(Protocol):
    """Hears what happens to one request; the observe room writes records and metrics from it."""

    def prepared(self, job: Job, prepared: Prepared, costs: Preparation) -> None:
        """The request enters the engine."""

    def refused(self, fault: Fault) -> None:
        """The request was refused before its start, by a full house or by its preparation."""

    def abandoned(self) -> None:
        """The client left before the start."""

    def first_token(self, at: float) -> None:
        """The first token is committed."""

    def shifted(self, event: Shifted) -> None:
        """The request was paused, or came a step nearer to going on."""

    def settled(self, end: Done | Failed, tools: ToolParse) -> None:
        """The generation ended, in whatever way, and its reader is done with it."""


class MediaDoor(Protocol):
    """The media room."""

    def items(
        self, conversation: Conversation, costs: Preparation
    ) -> AbstractAsyncContextManager[list[MediaItem]]:
        """Fetch and prepare a conversation's media, held for the block.  Raises ``Refused``."""

    def statistics(self) -> MediaStatistics:
        """Take the counts of this moment."""


class FrontEnd(Protocol):
    """The prompt and output rooms, bound to one artifact."""

    def prepare(self, conversation: Conversation, media: Sequence[MediaItem] = ()) -> Prepared:
        """Render and tokenise; runs on a worker thread.  Raises ``Refused``."""

    def judge(self, prepared: Prepared, stop: tuple[str, ...]) -> OutputSession:
        """Build the output session of one generation."""

    def thinking_plan(self, budget: int, capacity: int, param: str) -> ThinkingPlan:
        """Build the plan of a capped reasoning channel.  Raises ``Refused`` if it cannot fit."""


@attrs.frozen
class ServerService:
    """Implements ``protocols.service.Service`` over one engine and one artifact."""

    card: ModelCard
    engine: EnginePort
    front: FrontEnd
    preset: presets.Preset
    flags: SamplingOverrides
    defaults: GenerationDefaults
    run_blocking: Callable[[Callable[[], Prepared]], Awaitable[Prepared]]
    draw_seed: Callable[[], int]
    watch: Callable[[Ask], Watch]
    media: MediaDoor | None = None
    patience: float = 30.0  # seconds that counting may take

    @property
    def healthy(self) -> bool:
        """Whether the engine can accept work."""
        return self.engine.failure is None

    async def count(self, conversation: Conversation) -> int:
        """Count prompt tokens; the same path and deadline as a generation's, without a seat."""
        now = anyio.current_time()
        with Seat(now, now + self.patience).patience():
            async with self._prepared(conversation, Preparation()) as prepared:
                return len(prepared.ids)

    def open(self, ask: Ask) -> AbstractAsyncContextManager[Generation]:
        """Take a seat, prepare, submit; see ``protocols.service.Service``."""
        return self._open(ask)

    @asynccontextmanager
    async def _open(self, ask: Ask) -> AsyncIterator[Generation]:
        watch = self.watch(ask)
        async with AsyncExitStack() as held:
            terminal, events = await self._begin(ask, watch, held)
            try:
                yield terminal.generation
            finally:
                events.close()
                terminal.left()

    async def _begin(self, ask: Ask, watch: Watch, held: AsyncExitStack) -> tuple[_Terminal, Reader[Event]]:
        """Take a seat, prepare, submit; whatever ends the request on this way is recorded."""
        costs = Preparation()
        try:
            seat = held.enter_context(self.engine.seat())
            with seat.patience():
                prepared = await held.enter_async_context(self._prepared(ask.conversation, costs))
            job, generation = self._job(ask, prepared, seat)
            terminal = _Terminal(watch, generation)
            events = self.engine.submit(attrs.evolve(job, on_end=terminal.ended))
        except Refused as refusal:
            watch.refused(refusal.fault)
            raise
        except anyio.get_cancelled_exc_class():
            watch.abandoned()
            raise
        except Exception:
            watch.refused(_CRASHED)
            raise
        watch.prepared(job, prepared, costs)
        generation.events = events
        generation.on_first, generation.on_shift = watch.first_token, watch.shifted
        return terminal, events

    @asynccontextmanager
    async def _prepared(self, conversation: Conversation, costs: Preparation) -> AsyncIterator[Prepared]:
        """Prepare a prompt and keep its media for the block."""
        async with AsyncExitStack() as held:
            items: list[MediaItem] = []
            if self.media is None:
                _refuse_media(conversation)
            else:
                items = await held.enter_async_context(self.media.items(conversation, costs))
            began = anyio.current_time()
            prepared = await self.run_blocking(lambda: self.front.prepare(conversation, items))
            costs.tokenize = anyio.current_time() - began
            self._check_length(prepared)
            yield prepared

    def _check_length(self, prepared: Prepared) -> None:
        limit = self.card.max_context
        if prepared.media:
            limit = min(limit, VISION_CONTEXT)
        if len(prepared.ids) > limit:
            raise invalid(
                f"the prompt has {len(prepared.ids)} tokens, more than the context of {limit} tokens",
                code="context_length_exceeded",
            )

    def _job(self, ask: Ask, prepared: Prepared, seat: Seat) -> tuple[Job, RunningGeneration]:
        sampling = presets.settle(
            self.preset, self.flags, ask.sampling, thinking=prepared.thinking, draw_seed=self.draw_seed
        )
        limit = self.defaults.max_tokens if ask.max_tokens is None else ask.max_tokens
        judge = self.front.judge(prepared, ask.stop)
        tools = ToolStream(
            ask.conversation.tools if ask.parse_tools else (), name_limit=ask.tool_name_limit
        )
        generation = RunningGeneration(
            prepared.thinking, len(prepared.ids), judge, tools, progress=ask.progress
        )
        job = Job(
            request_id=ask.request_id,
            prompt=prepared,
            sampling=sampling,
            max_tokens=limit,
            judge=judge,
            deadline=seat.deadline,
            thinking=self._thinking(ask, prepared, limit),
            session=ask.session,
            session_write=ask.session_write,
            arrived=seat.arrived,
        )
        return job, generation

    def _thinking(self, ask: Ask, prepared: Prepared, limit: int) -> ThinkingPlan | None:
        budget = ask.thinking_budget or self.defaults.thinking_budget
        if budget is None or not prepared.thinking:
            return None
        capacity = output_capacity(len(prepared.ids), limit, self.card.max_context)
        return self.front.thinking_plan(budget, capacity, ask.max_tokens_param)


@attrs.define(eq=False)
class _Terminal:
    """Settles a request once, when the engine has ended it and its reader has left.

    The tool parser runs in the reader's task, so neither side alone knows everything.
    """

    watch: Watch
    generation: RunningGeneration
    _end: Done | Failed | None = None
    _left: bool = False

    def ended(self, end: Done | Failed) -> None:
        """Hear the engine's outcome."""
        self._end = end
        self._settle()

    def left(self) -> None:
        """Hear that the reader is done."""
        self._left = True
        self._settle()

    def _settle(self) -> None:
        if self._end is not None and self._left:
            self.watch.settled(self._end, self.generation.tool_parse)


def _refuse_media(conversation: Conversation) -> None:
    for message in conversation.messages:
        for part in message.parts:
            if isinstance(part, MediaPart):
                raise invalid(
                    "this server was started without --vision, so images and video are not accepted",
                    param=part.param,
                    code="vision_disabled",
                )
