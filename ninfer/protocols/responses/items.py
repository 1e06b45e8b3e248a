"""The shape of input items and their parts, and every value of them that is refused.

Owns the wire classes of a history.  The order of the fields is the order in which faults are told.
Members that nobody knows are ignored.  Everything that an answer of ours holds can be sent back.

The one thing a reader would get wrong: which parts a role may hold is decided in ``history.py``; here
every role may carry every part that is known.
"""

from __future__ import annotations

from typing import Annotated, Literal

import attrs

from ninfer.protocols.fields import JsonObject, Length, Never, Only
from ninfer.protocols.shapes import Breakpoint, FunctionName

MODALITY = "modality_not_supported"
ITEM_TYPE = "item_type_not_supported"

Id = Annotated[str, Length(1)]
Detail = Annotated[
    Literal["auto", "low", "high", "original"],
    Only(("auto",), "an explicit image detail", "image_detail_not_supported"),
]
Whole = Annotated[
    Literal["in_progress", "completed", "incomplete"],
    Only(("completed",), "a tool item that is not complete", "partial_items_not_supported"),
]


# Parts


@attrs.frozen
class InputText:
    """A text part."""

    type: Literal["input_text"]
    text: str
    prompt_cache_breakpoint: Breakpoint | None = None


@attrs.frozen
class OutputText:
    """Text that an answer held; annotations and log probabilities have no meaning here."""

    type: Literal["output_text"]
    text: str
    prompt_cache_breakpoint: Breakpoint | None = None


@attrs.frozen
class Refusal:
    """A refusal that an answer held; its text is assistant text."""

    type: Literal["refusal"]
    refusal: str
    prompt_cache_breakpoint: Breakpoint | None = None


@attrs.frozen
class InputImage:
    """An image part, by its URL alone."""

    type: Literal["input_image"]
    image_url: str | None = None
    detail: Detail | None = None
    file_id: Annotated[str, Never("files", "files_not_supported")] | None = None
    prompt_cache_breakpoint: Breakpoint | None = None


@attrs.frozen
class InputVideo:
    """A video part."""

    type: Literal["input_video"]
    video_url: str
    prompt_cache_breakpoint: Breakpoint | None = None


@attrs.frozen
class InputFile:
    """A file part, which nothing here can read."""

    type: Annotated[Literal["input_file"], Never("file input", MODALITY)]


@attrs.frozen
class InputAudio:
    """An audio part, which no model here can hear."""

    type: Annotated[Literal["input_audio"], Never("audio input", MODALITY)]


Part = InputText | OutputText | Refusal | InputImage | InputVideo | InputFile | InputAudio
ResultPart = InputText | InputImage | InputFile | InputAudio


# Items


@attrs.frozen
class Message:
    """A message of any role; ``status`` and ``phase`` do not reach the prompt."""

    type: Literal["message"] = attrs.field(default="message", kw_only=True)
    role: Literal["user", "assistant", "system", "developer"]
    content: str | tuple[Part, ...]
    id: Id | None = None
    status: str | None = None
    phase: str | None = None


@attrs.frozen
class ReasoningText:
    """A part of raw reasoning."""

    type: Literal["reasoning_text"]
    text: str


@attrs.frozen
class Reasoning:
    """Raw reasoning; a summary or encrypted content may stand beside it."""

    type: Literal["reasoning"]
    content: tuple[ReasoningText, ...] | None = None
    id: Id | None = None
    summary: tuple[JsonObject, ...] | None = None
    encrypted_content: str | None = None
    status: str | None = None


@attrs.frozen
class FunctionCall:
    """A call that the assistant made; ``arguments`` is JSON text."""

    type: Literal["function_call"]
    call_id: Id
    name: FunctionName
    arguments: str
    id: Id | None = None
    namespace: FunctionName | None = None
    status: Whole | None = None


@attrs.frozen
class FunctionCallOutput:
    """What a call returned; name and namespace, when given, must be those of the call."""

    type: Literal["function_call_output"]
    call_id: Id
    output: str | Annotated[tuple[ResultPart, ...], Length(1, None, "parts")]
    id: Id | None = None
    name: str | None = None
    namespace: str | None = None
    status: Whole | None = None


@attrs.frozen
class Hosted:
    """An item of something that is not executed here."""

    type: Annotated[
        Literal[
            "item_reference",
            "file_search_call",
            "web_search_call",
            "computer_call",
            "computer_call_output",
            "image_generation_call",
            "code_interpreter_call",
            "local_shell_call",
            "local_shell_call_output",
            "shell_call",
            "shell_call_output",
            "apply_patch_call",
            "apply_patch_call_output",
            "mcp_list_tools",
            "mcp_approval_request",
            "mcp_approval_response",
            "mcp_call",
            "custom_tool_call",
            "custom_tool_call_output",
            "tool_search_call",
            "tool_search_output",
            "additional_tools",
            "compaction",
            "compaction_trigger",
        ],
        Never("hosted or custom items", ITEM_TYPE),
    ]


Item = Message | Reasoning | FunctionCall | FunctionCallOutput | Hosted
