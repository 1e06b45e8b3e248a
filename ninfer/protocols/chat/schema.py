"""The shape of a Chat Completions request, and every value of it that is refused.

Owns the wire classes.  The order of the fields here is the order in which faults are told.  Fields
that change nothing are declared too, so that a malformed one is still named.

The one thing a reader would get wrong: what we know but cannot serve is declared, with a rule that says
what is missing; only what nobody knows is a malformed value.
"""

from __future__ import annotations

from typing import Annotated, Literal

import attrs

from ninfer.protocols.chat.rules import AllNull, Zeros
from ninfer.protocols.chat.turns import Message
from ninfer.protocols.fields import JsonObject, Length, Never, Only, Range, Source
from ninfer.protocols.options import Effort
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

STOP_CHARS = 4096
CONSTRAINED = ("constrained decoding", "constrained_decoding_not_supported")

Stop = Annotated[str, Length(1, STOP_CHARS)]
Penalty = Annotated[float, Range(-2, 2)]
Constraint = Annotated[object, Never(*CONSTRAINED)]


# Tools


@attrs.frozen
class Function:
    """A declared function."""

    name: FunctionName
    description: str | None = None
    parameters: JsonObject | None = None
    strict: NotStrict | None = None
    source: Source = attrs.field(factory=lambda: Source({}))


@attrs.frozen
class Tool:
    """A declared tool."""

    type: FunctionType
    function: Function
    source: Source = attrs.field(factory=lambda: Source({}))


@attrs.frozen
class NamedChoice:
    """A forced call of one function."""

    type: Annotated[Literal["function"], Never(*FORCED)]


@attrs.frozen
class CustomChoice:
    """A forced call of one custom tool."""

    type: Annotated[Literal["custom"], Never(*NOT_FUNCTION)]


@attrs.frozen
class FunctionRef:
    """A function by its name."""

    name: str


@attrs.frozen
class Allowed:
    """One entry of an allowed set; the name stands inside ``function`` or beside the type."""

    type: FunctionType
    function: FunctionRef | None = None
    name: str | None = None


AllowedEntries = Annotated[tuple[Allowed, ...], Length(1, None, "tools")]


@attrs.frozen
class AllowedSet:
    """The functions that may be called."""

    mode: AllowedMode
    tools: AllowedEntries


@attrs.frozen
class AllowedChoice:
    """A choice among the declared tools; the set stands nested or flat."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedSet | None = None
    mode: AllowedMode | None = None
    tools: AllowedEntries | None = None


ToolChoice = (
    Annotated[Literal["auto", "none", "required"], Only(("auto", "none"), *FORCED)]
    | NamedChoice
    | CustomChoice
    | AllowedChoice
)


# The request


@attrs.frozen
class StreamOptions:
    """How a stream is reported; padding is a hint that is accepted."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


@attrs.frozen
class ResponseFormat:
    """Text only."""

    type: Annotated[
        Literal["text", "json_object", "json_schema"],
        Only(("text",), "constrained JSON output", "response_format_not_supported"),
    ]


@attrs.frozen
class ChatRequest:
    """POST /v1/chat/completions.  Members that are not declared are ignored."""

    model: Annotated[str, Length(1)]
    messages: Annotated[tuple[Message, ...], Length(1, None, "messages")]
    # What decides the answer.
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_completion_tokens: Tokens | None = None
    max_tokens: Tokens | None = None
    temperature: Annotated[float, Range(0, 2)] | None = None
    top_p: Annotated[float, Range(0, 1)] | None = None
    top_k: Annotated[int, Range(0, 20, "candidates")] | None = None
    min_p: Annotated[float, Range(0, 1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    seed: Annotated[int, Range(-(2**63), 2**63 - 1)] | None = None
    stop: Stop | Annotated[tuple[Stop, ...], Length(0, 4, "stop strings")] | None = None
    tools: tuple[Tool, ...] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Effort | None = None
    enable_thinking: bool | None = None
    preserve_thinking: bool | None = None
    chat_template_kwargs: JsonObject | None = None
    prompt_cache_options: CacheOptions | None = None
    timings_per_token: bool | None = None
    return_progress: bool | None = None
    # Accepted only where they ask for nothing.
    n: Annotated[int, Range(1), Only((1,), "several choices", "n_not_supported")] | None = None
    response_format: ResponseFormat | None = None
    logit_bias: (
        Annotated[
            dict[str, Annotated[float, Range(-100, 100)]],
            Zeros("a change of single logits", "logit_bias_not_supported"),
        ]
        | None
    ) = None
    logprobs: Annotated[bool, Only((False,), "log probabilities", "logprobs_not_supported")] | None = None
    top_logprobs: (
        Annotated[int, Range(0, 20), Only((0,), "log probabilities", "logprobs_not_supported")] | None
    ) = None
    modalities: (
        Annotated[
            tuple[Annotated[str, Only(("text",), "output other than text", "modality_not_supported")], ...],
            Length(1, None, "items"),
        ]
        | None
    ) = None
    verbosity: (
        Annotated[
            Literal["low", "medium", "high"],
            Only(("medium",), "a chosen verbosity", "verbosity_not_supported"),
        ]
        | None
    ) = None
    store: Annotated[bool, Only((False,), "a stored completion", "store_not_supported")] | None = None
    functions: (
        Annotated[
            tuple[object, ...],
            Only(((),), "legacy functions (use tools)", "legacy_tools_not_supported"),
        ]
        | None
    ) = None
    function_call: (
        Literal["none", "auto"]
        | Annotated[JsonObject, Never("a forced function call", "legacy_tools_not_supported")]
        | None
    ) = None
    repetition_penalty: (
        Annotated[
            float, Only((1.0,), "a repetition penalty other than 1", "repetition_penalty_not_supported")
        ]
        | None
    ) = None
    mm_processor_kwargs: (
        Annotated[JsonObject, AllNull("a changed media preprocessing", "mm_processor_kwargs_not_supported")]
        | None
    ) = None
    grammar: Annotated[object, Only(("",), *CONSTRAINED)] | None = None
    structured_outputs: Constraint | None = None
    guided_json: Constraint | None = None
    guided_regex: Constraint | None = None
    guided_choice: Constraint | None = None
    guided_grammar: Constraint | None = None
    web_search_options: Annotated[object, Never("web search", "web_search_not_supported")] | None = None
    moderation: Annotated[object, Never("moderation", "moderation_not_supported")] | None = None
    # Hints and neutral settings, accepted without effect.
    audio: JsonObject | None = None
    prediction: JsonObject | None = None
    metadata: JsonObject | None = None
    user: str | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: Retention | None = None
