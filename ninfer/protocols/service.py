"""What every protocol asks of the server, and the stream of typed deltas that it gets back.

``Service`` is implemented by ``ninfer/service.py`` (prompt preparation + engine + output room) and
by scripted fakes in tests.  ``open`` takes a seat first (a full house is an OVERLOADED fault at
once), prepares the prompt under the pending deadline, submits, and yields a ``Generation``.
Leaving the context, for whatever reason, cancels the generation and gives the seat back.

The one thing a reader would get wrong: faults before admission are raised as ``Refused``; faults
after it arrive as a ``GenerationFailed`` delta, because a stream may already have begun.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import attrs

from ninfer.engine.job import Finish, Summary
from ninfer.faults import Fault
from ninfer.output.deltas import ParsedCall, ToolParse
from ninfer.prompt.conversation import Conversation


@attrs.frozen
class SamplingAsk:
    """Sampling fields as the request gave them; None means the server's default."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence: float | None = None
    frequency: float | None = None
    seed: int | None = None


@attrs.frozen
class Ask:
    """One generation as a protocol wants it.

    ``max_tokens`` None means the server's default output limit; 0 runs the prompt only.
    ``tool_name_limit`` is the longest function name that may become a structured call.
    ``thinking_budget`` None means the server's default for thinking-enabled requests.
    ``max_tokens_param`` names the wire field for faults about capacity.
    """

    protocol: str  # openai_chat_completions, openai_responses, anthropic_messages
    request_id: str
    stream: bool
    conversation: Conversation
    model: str
    max_tokens: int | None = None
    max_tokens_param: str = "max_tokens"
    stop: tuple[str, ...] = ()
    sampling: SamplingAsk = SamplingAsk()
    thinking_budget: int | None = None
    tool_name_limit: int = 64
    session: str | None = None
    session_write: bool = True
    response_id: str = ""
    tool_choice: str = "auto"
    semantic_change: bool = False  # Responses: preserve_thinking differs from the parent's
    progress: bool = False
    parse_tools: bool = True  # False: tool markup stays text


@attrs.frozen
class Timings:
    """Cumulative timing snapshot.  Milliseconds; counts are tokens."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    predicted_n: int
    predicted_ms: float
    draft_n: int = 0
    draft_n_accepted: int = 0


@attrs.frozen
class Started:
    """Admission is committed: the split of the prompt into cached and computed tokens is exact."""

    prompt_tokens: int
    cached_tokens: int


@attrs.frozen
class PromptProgress:
    """Prompt work committed so far; first has processed == cached, last processed == total."""

    total: int
    cached: int
    processed: int
    time_ms: float


@attrs.frozen
class ReasoningDelta:
    """Visible reasoning text."""

    text: str
    timings: Timings


@attrs.frozen
class ContentDelta:
    """Visible answer text."""

    text: str
    timings: Timings


@attrs.frozen
class ToolCallsDelta:
    """All structured calls of the answer, in order; at most one of these per generation."""

    calls: tuple[ParsedCall, ...]
    timings: Timings


@attrs.frozen
class GenerationFailed:
    """The last delta of a generation that could not go on."""

    fault: Fault


@attrs.frozen
class Finished:
    """The last delta of a generation that ended by itself.

    ``stop_string`` is the custom stop that matched, if one did.  ``reasoning`` and ``content``
    are the aggregates (equal to the concatenated deltas).
    """

    finish: Finish
    reasoning: str
    content: str
    calls: tuple[ParsedCall, ...]
    tool_parse: ToolParse
    stop_string: str | None
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    timings: Timings
    summary: Summary


Delta = (
    Started | PromptProgress | ReasoningDelta | ContentDelta | ToolCallsDelta | Finished | GenerationFailed
)


class Generation(Protocol):
    """One running generation; iterate it to its last delta (Finished or GenerationFailed)."""

    @property
    def thinking(self) -> bool:
        """Whether the answer starts in the reasoning channel."""

    def __aiter__(self) -> AsyncIterator[Delta]:
        """Yield deltas in order; ``Started`` is always the first."""


@attrs.frozen
class ModelCard:
    """What the server says of its model."""

    id: str
    max_context: int
    created: int
    vision: bool


class Service(Protocol):
    """The server behind the protocols."""

    @property
    def card(self) -> ModelCard:
        """The one model that is served."""

    @property
    def healthy(self) -> bool:
        """Whether the engine can accept work."""

    def open(self, ask: Ask) -> AbstractAsyncContextManager[Generation]:
        """Take a seat, prepare, submit.  Raises ``Refused``."""

    async def count(self, conversation: Conversation) -> int:
        """Count the tokens of the prompt that this conversation would become.  Raises ``Refused``."""
