"""The shape of a Messages request: what decides the prompt, and what decides the output.

Owns the two wire classes that are read from one body.  Counting reads ``Prompt`` alone, so that no output
field can change a count or spoil it.  The order of the fields is the order in which faults are told.

The one thing a reader would get wrong: members that are not declared are ignored, whatever they hold;
what we know but cannot serve is therefore declared, with a rule that says what is missing.
"""

from __future__ import annotations

from typing import Annotated, Literal

import attrs

from ninfer.protocols.fields import JsonObject, Length, Never, Only, Range, Source
from ninfer.protocols.messages.blocks import Block, CacheControl, Text, ToolName
from ninfer.protocols.messages.rules import DescribesObject, Except, Holding
from ninfer.protocols.shapes import FORCED, INT31, NOT_FUNCTION

LEAST_BUDGET = 1024
FORMAT = ("output that follows a schema", "structured_outputs_not_supported")
HIDDEN = ("reasoning that is hidden and restored later", "omitted_thinking_not_supported")


# Tools


@attrs.frozen(kw_only=True)
class Tool:
    """A tool that the client defines and runs."""

    type: Annotated[str, Only(("custom",), *NOT_FUNCTION)] | None = None
    name: ToolName
    description: str | None = None
    input_schema: Annotated[JsonObject, DescribesObject()]
    input_examples: tuple[JsonObject, ...] | None = None
    strict: (
        Annotated[bool, Only((False,), "input that follows the schema strictly", "strict_not_supported")]
        | None
    ) = None
    defer_loading: (
        Annotated[bool, Only((False,), "tools that are loaded later", "deferred_tools_not_supported")]
        | None
    ) = None
    allowed_callers: (
        Annotated[
            tuple[str, ...],
            Holding("direct", "tools that the model does not call directly", "callers_not_supported"),
        ]
        | None
    ) = None
    cache_control: CacheControl | None = None
    source: Source = attrs.field(factory=lambda: Source({}))


@attrs.frozen
class AutoChoice:
    """The model decides."""

    type: Literal["auto"]
    disable_parallel_tool_use: bool | None = None


@attrs.frozen
class NoChoice:
    """No tool may be called."""

    type: Literal["none"]


@attrs.frozen
class ForcedChoice:
    """Some tool, or the named one, must be called."""

    type: Annotated[Literal["any", "tool"], Never(*FORCED)]


# Thinking


Display = Annotated[Literal["summarized", "omitted"], Only(("summarized",), *HIDDEN)] | None


@attrs.frozen
class Enabled:
    """Think, up to a number of tokens."""

    type: Literal["enabled"]
    budget_tokens: Annotated[int, Range(LEAST_BUDGET, INT31, "tokens")]
    display: Display = None


@attrs.frozen
class Adaptive:
    """Think as much as the model likes."""

    type: Literal["adaptive"]
    display: Display = None


@attrs.frozen
class Disabled:
    """Do not think."""

    type: Literal["disabled"]


@attrs.frozen
class BetweenTools:
    """Think between tool calls alone."""

    type: Annotated[
        Literal["between_tools"], Never("thinking between tool calls alone", "thinking_type_not_supported")
    ]


@attrs.frozen
class OutputConfig:
    """How much effort; a format would need constrained decoding."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: Annotated[object, Never(*FORMAT)] | None = None


# The request


@attrs.frozen
class Message:
    """One message of the history."""

    role: Literal["user", "assistant", "system", "developer"]
    content: str | tuple[Block, ...]


@attrs.frozen
class Prompt:
    """What decides the prompt, in a generation and in a count."""

    model: Annotated[str, Length(1)]
    messages: Annotated[tuple[Message, ...], Length(1, None, "messages")]
    system: str | tuple[Text, ...] | None = None
    tools: tuple[Tool, ...] | None = None
    tool_choice: AutoChoice | NoChoice | ForcedChoice | None = None
    thinking: Enabled | Adaptive | Disabled | BetweenTools | None = None
    output_config: OutputConfig | None = None
    cache_control: CacheControl | None = None
    preserve_thinking: bool | None = None
    chat_template_kwargs: JsonObject | None = None
    # Accepted only where they ask for nothing.
    output_format: Annotated[object, Never(*FORMAT)] | None = None
    mcp_servers: (
        Annotated[tuple[object, ...], Only(((),), "tools behind MCP servers", "mcp_not_supported")] | None
    ) = None
    container: Annotated[object, Never("containers", "containers_not_supported")] | None = None


@attrs.frozen
class Output:
    """What decides the output and how it is sent."""

    max_tokens: (
        Annotated[
            int,
            Except(0, "a prompt that is prepared without output", "zero_output_not_supported"),
            Range(1, INT31, "tokens"),
        ]
        | None
    ) = None
    stream: bool | None = None
    stop_sequences: (
        Annotated[tuple[Annotated[str, Length(1, 4096)], ...], Length(0, 64, "stop sequences")] | None
    ) = None
    temperature: Annotated[float, Range(0, 2)] | None = None
    top_p: Annotated[float, Range(0, 1)] | None = None
    top_k: Annotated[int, Range(0, 20, "candidates")] | None = None
    # Hints, accepted without effect.
    metadata: JsonObject | None = None
    service_tier: str | None = None
    inference_geo: str | None = None
