"""A conversation as the variables that chat templates of this family read.

Owns the dictionary shapes (those of the Hugging Face template convention) and the pins: characters
put after chosen pieces of content so that ``marks`` can find where they end in the rendered text.

The one thing a reader would get wrong: text parts of one message are joined without separators into a
string; only a message with media becomes a list of parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

from ninfer.prompt.conversation import Conversation, Json, MediaPart, Message, ToolCall
from ninfer.prompt.sandbox import Pinned

ERROR_NOTE = "is_error: true\n"


class Place(NamedTuple):
    """The end of one piece of a conversation: part or call ``inner`` of message ``outer``, or a tool."""

    what: Literal["tool", "part", "call"]
    outer: int
    inner: int = 0


class Pin(NamedTuple):
    """The character that finds a place; ``inside`` puts it before the blanks that end the text."""

    character: str
    inside: bool = False


Pins = Mapping[Place, Pin]


def template_variables(
    conversation: Conversation, *, developer: bool, pins: Pins | None = None
) -> dict[str, Any]:
    """Return ``messages``, ``tools`` and ``add_generation_prompt``.

    ``developer`` says that the template knows that role; otherwise it becomes ``system``.
    """
    pins = pins or {}
    tools = [
        _pinned(tool.definition, pins.get(Place("tool", n))) for n, tool in enumerate(conversation.tools)
    ]
    return {
        "messages": [
            _message(message, n, developer, pins) for n, message in enumerate(conversation.messages)
        ],
        "tools": tools or None,
        "add_generation_prompt": not conversation.continue_final,
    }


def client_strings(conversation: Conversation) -> Iterator[str]:
    """Walk every string that the client decides."""
    stack: list[Json] = [dict(conversation.options.kwargs), conversation.options.reasoning_effort]
    stack += [tool.definition for tool in conversation.tools]
    for message in conversation.messages:
        yield from (part.text for part in message.parts if not isinstance(part, MediaPart))
        stack.append(message.reasoning)
        stack += [item for call in message.calls for item in (call.id, call.name, call.arguments)]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, list):
            stack += item
        elif isinstance(item, dict):
            stack += [*item, *item.values()]


def _message(message: Message, number: int, developer: bool, pins: Pins) -> dict[str, Any]:
    role = "system" if message.role == "developer" and not developer else message.role
    shape: dict[str, Any] = {"role": role, "content": _content(message, number, pins)}
    if message.reasoning is not None:
        shape["reasoning_content"] = message.reasoning
    if message.calls:
        shape["tool_calls"] = [
            _call(call, pins.get(Place("call", number, n))) for n, call in enumerate(message.calls)
        ]
    if message.call_id is not None:
        shape["tool_call_id"] = message.call_id
    return shape


def _content(message: Message, number: int, pins: Pins) -> str | list[dict[str, str]]:
    pieces = [_text(ERROR_NOTE)] if message.is_error else []
    for n, part in enumerate(message.parts):
        pin = pins.get(Place("part", number, n))
        if isinstance(part, MediaPart):
            pieces.append({"type": part.kind})
            if pin is not None:
                pieces.append(_text(pin.character))
        else:
            pieces.append(_text(_with_pin(part.text, pin)))
    if any(piece["type"] != "text" for piece in pieces):
        return pieces
    return "".join(piece["text"] for piece in pieces)


def _text(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def _with_pin(text: str, pin: Pin | None) -> str:
    if pin is None:
        return text
    end = len(text.rstrip()) if pin.inside else len(text)
    return text[:end] + pin.character + text[end:]


def _call(call: ToolCall, pin: Pin | None) -> dict[str, Any]:
    name = _with_pin(call.name, pin)
    function = {"name": name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _pinned(definition: dict[str, Json], pin: Pin | None) -> dict[str, Any]:
    return definition if pin is None else Pinned(definition, pin.character)
