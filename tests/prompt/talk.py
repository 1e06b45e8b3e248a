"""Short ways to write conversations in tests."""

from __future__ import annotations

from functools import cache
from typing import Any

from ninfer.prompt.conversation import (
    Conversation,
    Json,
    MediaPart,
    Message,
    Part,
    Role,
    TemplateOptions,
    TextPart,
    ToolCall,
    ToolDef,
)
from ninfer.prompt.media import MediaItem
from ninfer.prompt.prepare import Preparer
from ninfer.prompt.prepared import Prepared
from ninfer.prompt.tokens import Vocabulary
from tests.prompt import resources as res


def turn(role: Role, *parts: str | Part, **fields: Any) -> Message:
    """One message; a plain string is a text part."""
    return Message(
        role, tuple(TextPart(part) if isinstance(part, str) else part for part in parts), **fields
    )


def user(*parts: str | Part) -> Message:
    return turn("user", *parts)


def call(name: str = "find", **arguments: Json) -> ToolCall:
    return ToolCall("id", name, arguments)


def tool(name: str = "find", **fields: Any) -> ToolDef:
    return ToolDef(name, {"type": "function", "function": {"name": name, "parameters": {}}}, **fields)


def talk(*messages: Message, tools: tuple[ToolDef, ...] = (), **fields: Any) -> Conversation:
    """One conversation; keyword arguments that are no fields of it are template options."""
    own = {name: fields.pop(name) for name in ("cache", "continue_final") if name in fields}
    return Conversation(messages, tools, TemplateOptions(**fields), **own)


def shown(vocabulary: Vocabulary, prompt: Prepared) -> str:
    """Spell the whole prompt out."""
    return b"".join(vocabulary.token_bytes(token, raw=True) for token in prompt.ids).decode()


def small_preparer(**changes: Any) -> Preparer:
    """A preparer with the small vocabulary and the small template."""
    settings: dict[str, Any] = {"template": res.TEMPLATE, "max_context": 4096, "merge": 2} | changes
    return Preparer(res.small_vocabulary(), settings.pop("template"), **settings)


@cache
def preparer_of(model: str) -> Preparer:
    """The preparer of a bundled artifact."""
    template = res.model_resource(model, "chat_template.jinja").decode()
    return Preparer(res.vocabulary_of(model), template, max_context=8192, merge=2)


def golden_talk(golden: dict[str, Any]) -> tuple[Conversation, list[MediaItem]]:
    """The conversation of a golden prompt, and its media."""
    items: list[MediaItem] = []

    def part(shape: dict[str, Any]) -> Part:
        if shape["type"] == "text":
            return TextPart(shape["text"])
        grid = golden["grid"]
        seconds = tuple((4 * n + 1) / 4 for n in range(grid[0]))  # two frames a second, two a run
        items.append(MediaItem(shape["type"], tuple(grid), b"digest", seconds))
        return MediaPart(shape["type"], "", "messages[0]")

    def message(shape: dict[str, Any]) -> Message:
        content = shape["content"]
        parts = [TextPart(content)] if isinstance(content, str) else [part(entry) for entry in content]
        calls = [entry["function"] for entry in shape.get("tool_calls", ())]
        made = tuple(ToolCall("", entry["name"], entry["arguments"]) for entry in calls)
        return Message(shape["role"], tuple(parts), calls=made)

    tools = tuple(ToolDef(entry["function"]["name"], entry) for entry in golden["tools"] or ())
    messages = tuple(message(shape) for shape in golden["messages"])
    options = TemplateOptions(enable_thinking=golden["enable_thinking"])
    return Conversation(messages, tools, options), items
