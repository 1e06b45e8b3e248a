"""The shape of Responses requests, and every value of them that is refused.

Owns the wire classes of Create and of the token count.  The order of the fields is the order in which
faults are told.

The one thing a reader would get wrong: unlike Chat, a top-level member that is not declared here is
refused; what we know but cannot serve is declared, with a rule that says what is missing.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import attrs

from ninfer.protocols.fields import JsonObject, Length, Never, Only, Range, Source
from ninfer.protocols.options import Effort
from ninfer.protocols.responses.items import Id, Item
from ninfer.protocols.shapes import (
    FORCED,
    NOT_FUNCTION,
    AllowedMode,
    CacheOptions,
    FunctionName,
    FunctionType,
    NotStrict,
    Retention,
    Tokens,
)

BACKGROUND = ("background execution", "background_not_supported")
REASONING = "reasoning_option_not_supported"
SummaryWish = Literal["auto", "concise", "detailed"]
INCLUDE = ("additional output data", "include_not_supported")
FUNCTION_OPTION = "tool_option_not_supported"


# Tools


@attrs.frozen
class Function:
    """A declared function."""

    type: Literal["function"]
    name: FunctionName
    description: str | None = None
    parameters: JsonObject | None = None
    strict: NotStrict | None = None
    defer_loading: Annotated[bool, Only((False,), "deferred loading", FUNCTION_OPTION)] | None = None
    output_schema: Annotated[object, Never("an output schema", FUNCTION_OPTION)] | None = None
    allowed_callers: tuple[str, ...] | None = None
    source: Source = attrs.field(factory=lambda: Source({}))


@attrs.frozen
class CustomTool:
    """A free-form tool, whose input no function call can carry."""

    type: Annotated[Literal["custom"], Never(*NOT_FUNCTION)]


@attrs.frozen
class Namespace:
    """Functions under a common name."""

    type: Literal["namespace"]
    name: FunctionName
    tools: Annotated[tuple[Function | CustomTool, ...], Length(1, None, "tools")]
    description: str | None = None
    source: Source = attrs.field(factory=lambda: Source({}))


HOSTED_TOOLS = Literal[
    "custom",
    "web_search",
    "web_search_2025_08_26",
    "web_search_preview",
    "web_search_preview_2025_03_11",
    "file_search",
    "code_interpreter",
    "computer",
    "computer_use_preview",
    "image_generation",
    "local_shell",
    "shell",
    "apply_patch",
    "mcp",
    "tool_search",
    "programmatic_tool_calling",
]


@attrs.frozen
class HostedTool:
    """A tool that this server does not execute."""

    type: Annotated[HOSTED_TOOLS, Never(*NOT_FUNCTION)]


Tool = Function | Namespace | HostedTool


@attrs.frozen
class Allowed:
    """One function of an allowed set."""

    type: FunctionType
    name: str
    namespace: str | None = None


@attrs.frozen
class AllowedChoice:
    """A choice among the declared functions."""

    type: Literal["allowed_tools"]
    mode: AllowedMode
    tools: Annotated[tuple[Allowed, ...], Length(1, None, "tools")]
    source: Source = attrs.field(factory=lambda: Source({}))


@attrs.frozen
class NamedChoice:
    """A forced call of one tool."""

    type: Annotated[Literal["function", HOSTED_TOOLS], Never(*FORCED)]


ToolChoice = (
    Annotated[Literal["auto", "none", "required"], Only(("auto", "none"), *FORCED)]
    | AllowedChoice
    | NamedChoice
)


# The requests


@attrs.frozen
class ReasoningOptions:
    """How to think.

    A wish for a summary changes nothing: it is about what a client may show of the reasoning, agents send
    it unasked, and the raw reasoning is always told.
    """

    effort: Effort | None = None
    summary: SummaryWish | None = None
    generate_summary: SummaryWish | None = None
    context: Annotated[str, Only(("auto",), "a chosen reasoning context", REASONING)] | None = None
    mode: Annotated[str, Only(("standard",), "a chosen reasoning mode", REASONING)] | None = None


@attrs.frozen
class TextFormat:
    """Text only."""

    type: Annotated[
        Literal["text", "json_object", "json_schema"],
        Only(("text",), "constrained JSON output", "response_format_not_supported"),
    ]


@attrs.frozen
class TextOptions:
    """What the text of the answer is to be."""

    format: TextFormat | None = None
    verbosity: (
        Annotated[
            Literal["low", "medium", "high"],
            Only(("medium",), "a chosen verbosity", "verbosity_not_supported"),
        ]
        | None
    ) = None


@attrs.frozen
class StreamOptions:
    """How a stream is reported; padding is a hint that is accepted."""

    include_obfuscation: bool | None = None


Truncation = Annotated[
    Literal["auto", "disabled"],
    Only(("disabled",), "a prompt that may be cut", "truncation_not_supported"),
]
Metadata = Annotated[
    dict[Annotated[str, Length(0, 64)], Annotated[str, Length(0, 512)]],
    Length(0, 16, "pairs"),
]
Input = str | tuple[Item, ...]
Conversation = Annotated[object, Never("a stored conversation", "conversation_not_supported")]


@attrs.frozen
class CreateRequest:
    """POST /v1/responses."""

    UNKNOWN: ClassVar[str] = "refuse"

    model: Annotated[str, Length(1)]
    input: Input | None = None
    instructions: str | None = None
    previous_response_id: Id | None = None
    # What decides the answer.
    stream: bool | None = None
    store: bool | None = None
    max_output_tokens: Tokens | None = None
    temperature: Annotated[float, Range(0, 2)] | None = None
    top_p: Annotated[float, Range(0, 1)] | None = None
    reasoning: ReasoningOptions | None = None
    chat_template_kwargs: JsonObject | None = None
    preserve_thinking: bool | None = None
    tools: tuple[Tool, ...] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    prompt_cache_options: CacheOptions | None = None
    # What is told again in the answer.
    metadata: Metadata | None = None
    max_tool_calls: Annotated[int, Range(0)] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    # Accepted only where they ask for nothing.
    text: TextOptions | None = None
    truncation: Truncation | None = None
    top_logprobs: (
        Annotated[int, Range(0, 20), Only((0,), "log probabilities", "logprobs_not_supported")] | None
    ) = None
    service_tier: (
        Annotated[
            Literal["auto", "default", "flex", "scale", "priority", "fast", "ultrafast"],
            Only(("auto", "default"), "a chosen service tier", "service_tier_not_supported"),
        ]
        | None
    ) = None
    background: Annotated[bool, Only((False,), *BACKGROUND)] | None = None
    background_options: Annotated[object, Never(*BACKGROUND)] | None = None
    include: Annotated[tuple[str, ...], Only(((),), *INCLUDE)] | None = None
    conversation: Conversation | None = None
    prompt: Annotated[object, Never("a prompt template", "prompt_not_supported")] | None = None
    context_management: (
        Annotated[object, Never("context management", "context_management_not_supported")] | None
    ) = None
    moderation: Annotated[object, Never("moderation", "moderation_not_supported")] | None = None
    # Hints, accepted without effect.
    stream_options: StreamOptions | None = None
    client_metadata: JsonObject | None = None
    prompt_cache_retention: Retention | None = None


@attrs.frozen
class CountRequest:
    """POST /v1/responses/input_tokens: the members of Create that decide the prompt."""

    UNKNOWN: ClassVar[str] = "refuse"

    model: Annotated[str, Length(1)]
    input: Input | None = None
    instructions: str | None = None
    previous_response_id: Id | None = None
    reasoning: ReasoningOptions | None = None
    chat_template_kwargs: JsonObject | None = None
    preserve_thinking: bool | None = None
    tools: tuple[Tool, ...] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    truncation: Truncation | None = None
    conversation: Conversation | None = None

    def as_create(self) -> CreateRequest:
        """Return the Create request that would have this prompt."""
        return CreateRequest(**{name: getattr(self, name) for name in attrs.fields_dict(CountRequest)})
