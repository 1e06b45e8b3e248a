"""The shape of Chat messages and their parts, and every value of them that is refused.

Owns the wire classes of a history.  The order of the fields is the order in which faults are told.
The one thing a reader would get wrong: what a role may hold is decided in ``history.py``; here every
role may carry every part that is known.
"""

from __future__ import annotations

from typing import Annotated, Literal

import attrs

from ninfer.protocols.chat.rules import Elsewhere
from ninfer.protocols.fields import Never, Only
from ninfer.protocols.shapes import Breakpoint, FunctionName, FunctionType

Nameless = Annotated[str, Only(("",), "a participant's identity", "message_name_not_supported")]
AssistantOnly = Annotated[object, Elsewhere("assistant messages")]
ToolOnly = Annotated[object, Elsewhere("tool messages")]


# Content


@attrs.frozen
class Text:
    """A text part."""

    type: Literal["text"]
    text: str
    prompt_cache_breakpoint: Breakpoint | None = None


@attrs.frozen
class Refusal:
    """A refusal in assistant history; its text is assistant text."""

    type: Literal["refusal"]
    refusal: str
    prompt_cache_breakpoint: Breakpoint | None = None


@attrs.frozen
class ImageUrl:
    """Where an image comes from."""

    url: str
    detail: (
        Annotated[
            Literal["auto", "low", "high"],
            Only(("auto",), "an explicit image detail", "image_detail_not_supported"),
        ]
        | None
    ) = None


@attrs.frozen
class Image:
    """An image part; the source may stand as a bare string."""

    type: Literal["image_url"]
    image_url: ImageUrl | str
    prompt_cache_breakpoint: Breakpoint | None = None


@attrs.frozen
class VideoUrl:
    """Where a video comes from."""

    url: str


@attrs.frozen
class Video:
    """A video part; the source may stand as a bare string."""

    type: Literal["video_url"]
    video_url: VideoUrl | str
    prompt_cache_breakpoint: Breakpoint | None = None


@attrs.frozen
class Audio:
    """An audio part, which no model here can hear."""

    type: Annotated[Literal["input_audio"], Never("audio input", "modality_not_supported")]


@attrs.frozen
class File:
    """A file part, which nothing here can read."""

    type: Annotated[Literal["file"], Never("file input", "modality_not_supported")]


Part = Text | Refusal | Image | Video | Audio | File
Content = str | tuple[Part, ...]


# Messages


@attrs.frozen
class Instruction:
    """A system or developer message."""

    role: Literal["system", "developer"]
    content: Content
    name: Nameless | None = None
    tool_calls: AssistantOnly | None = None
    function_call: AssistantOnly | None = None
    reasoning_content: AssistantOnly | None = None
    reasoning: AssistantOnly | None = None
    tool_call_id: ToolOnly | None = None


@attrs.frozen
class User:
    """A user message."""

    role: Literal["user"]
    content: Content
    name: Nameless | None = None
    tool_calls: AssistantOnly | None = None
    function_call: AssistantOnly | None = None
    reasoning_content: AssistantOnly | None = None
    reasoning: AssistantOnly | None = None
    tool_call_id: ToolOnly | None = None


@attrs.frozen
class CalledFunction:
    """What was called; ``arguments`` is JSON text."""

    name: FunctionName
    arguments: str


@attrs.frozen
class Call:
    """One call in assistant history."""

    id: str
    function: CalledFunction
    type: FunctionType = "function"


@attrs.frozen
class Assistant:
    """An assistant message of the history."""

    role: Literal["assistant"]
    content: Content | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: tuple[Call, ...] | None = None
    function_call: CalledFunction | None = None
    audio: Annotated[object, Never("audio history", "modality_not_supported")] | None = None
    name: Nameless | None = None
    tool_call_id: ToolOnly | None = None


@attrs.frozen
class ToolResult:
    """The result of a tool call; ``name`` is ignored."""

    role: Literal["tool"]
    content: Content
    tool_call_id: str
    name: str | None = None
    tool_calls: AssistantOnly | None = None
    function_call: AssistantOnly | None = None
    reasoning_content: AssistantOnly | None = None
    reasoning: AssistantOnly | None = None


@attrs.frozen
class FunctionResult:
    """The result of a legacy function call, which is found by the function's name."""

    role: Literal["function"]
    name: FunctionName
    content: Content | None = None
    tool_calls: AssistantOnly | None = None
    function_call: AssistantOnly | None = None
    reasoning_content: AssistantOnly | None = None
    reasoning: AssistantOnly | None = None


Message = Instruction | User | Assistant | ToolResult | FunctionResult
