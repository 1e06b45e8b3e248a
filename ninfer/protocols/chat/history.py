"""Chat messages to neutral turns.

Owns what each role may hold and how legacy function history becomes tool history.  Promises that
parts keep their order and their text exactly, that an empty content stays an empty turn, and that
historical arguments keep the member order in which they were sent.

The one thing a reader would get wrong: ids of tool results are not checked against calls here.  A
history may be cut or imported, and the prompt pairs results with calls by position.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from ninfer.faults import Refused
from ninfer.prompt import conversation as talk
from ninfer.prompt.conversation import MediaPart, TextPart, ToolCall
from ninfer.protocols.chat import turns
from ninfer.protocols.fields import ReadJson, lacking, misfit
from ninfer.protocols.media import check_source
from ninfer.protocols.shapes import Breakpoint, read_arguments

_MAY_HOLD: dict[str, tuple[type, ...]] = {
    "system": (turns.Text,),
    "developer": (turns.Text,),
    "user": (turns.Text, turns.Image, turns.Video),
    "assistant": (turns.Text, turns.Refusal),
    "tool": (turns.Text, turns.Image),
    "function": (turns.Text,),
}


def lower_messages(messages: tuple[turns.Message, ...], read_json: ReadJson) -> Iterator[talk.Message]:
    """Lower every message in its place.  Raises ``Refused``."""
    legacy: list[ToolCall] = []
    for index, message in enumerate(messages):
        path = f"messages[{index}]"
        if isinstance(message, turns.Assistant):
            lowered = _assistant(message, path, read_json)
            legacy += lowered.calls[:1] if message.function_call else ()
            yield lowered
        elif isinstance(message, turns.ToolResult):
            parts = _parts(message.content, "tool", path)
            yield talk.Message("tool", parts, call_id=message.tool_call_id)
        elif isinstance(message, turns.FunctionResult):
            parts = _parts(message.content, "function", path)
            yield talk.Message("tool", parts, call_id=_latest(legacy, message.name))
        else:
            yield talk.Message(message.role, _parts(message.content, message.role, path))


def _latest(calls: list[ToolCall], name: str) -> str | None:
    return next((call.id for call in reversed(calls) if call.name == name), None)


def _assistant(message: turns.Assistant, path: str, read_json: ReadJson) -> talk.Message:
    parts = _parts(message.content, "assistant", path)
    if message.refusal:
        parts += (TextPart(message.refusal),)
    return talk.Message(
        "assistant",
        parts,
        reasoning=_reasoning(message, path),
        calls=tuple(_calls(message, path, read_json)),
    )


def _reasoning(message: turns.Assistant, path: str) -> str | None:
    first, second = message.reasoning_content, message.reasoning
    if first and second and first != second:
        raise misfit(f"{path}.reasoning", "contradicts reasoning_content", "conflicting_template_option")
    return first or second or None


def _calls(message: turns.Assistant, path: str, read_json: ReadJson) -> Iterator[ToolCall]:
    if message.function_call:
        called = message.function_call
        arguments = read_arguments(called.arguments, f"{path}.function_call.arguments", read_json)
        yield ToolCall(f"legacy_{path}", called.name, arguments)
    for index, call in enumerate(message.tool_calls or ()):
        where = f"{path}.tool_calls[{index}].function.arguments"
        arguments = read_arguments(call.function.arguments, where, read_json)
        yield ToolCall(call.id, call.function.name, arguments)


def _parts(content: turns.Content | None, role: str, path: str) -> tuple[talk.Part, ...]:
    if content is None or isinstance(content, str):
        return (TextPart(content),) if content else ()
    return tuple(_part(part, role, f"{path}.content[{index}]") for index, part in enumerate(content))


def _part(part: turns.Part, role: str, path: str) -> talk.Part:
    if not isinstance(part, _MAY_HOLD[role]):
        raise _misplaced(part, role, path)
    match part:
        case turns.Text():
            return TextPart(part.text, part.prompt_cache_breakpoint is not None)
        case turns.Refusal():
            return TextPart(part.refusal, part.prompt_cache_breakpoint is not None)
        case turns.Image():
            return _media("image", part.image_url, path, part.prompt_cache_breakpoint)
        case turns.Video():
            return _media("video", part.video_url, path, part.prompt_cache_breakpoint)
    raise _misplaced(part, role, path)


def _misplaced(part: turns.Part, role: str, path: str) -> Refused:
    if isinstance(part, turns.Refusal):
        return misfit(f"{path}.type", 'may be "refusal" in assistant messages only')
    return lacking(f"{path}.type", f"media in a {role} message", "modality_not_supported")


def _media(
    kind: Literal["image", "video"],
    source: turns.ImageUrl | turns.VideoUrl | str,
    path: str,
    wish: Breakpoint | None,
) -> MediaPart:
    url = source if isinstance(source, str) else source.url
    check_source(url, f"{path}.{kind}_url" if isinstance(source, str) else f"{path}.{kind}_url.url")
    return MediaPart(kind, url, path, wish is not None)
