"""Messages history to neutral turns.

Owns what each role may hold, the joining of messages into turns, and the pairing of tool results with
calls.  Promises that results come in the order of their calls, one for each, and that text and images
keep their order everywhere.

The one thing a reader would get wrong: inside an assistant turn the prompt knows one order only:
reasoning, text, calls.  Blocks of one kind keep theirs; a block of another kind between them does not.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import groupby

import attrs

from ninfer.faults import Refused
from ninfer.prompt import conversation as talk
from ninfer.prompt.conversation import MediaPart, TextPart, ToolCall
from ninfer.protocols.fields import lacking, misfit
from ninfer.protocols.media import check_source
from ninfer.protocols.messages import blocks
from ninfer.protocols.messages.blocks import Block, placed
from ninfer.protocols.messages.schema import Message

HISTORY = "invalid_tool_history"
_Calls = dict[str, ToolCall]  # by id, in order
_MAY_HOLD: dict[str, tuple[type, ...]] = {
    "user": (blocks.Text, blocks.Image, blocks.ToolResult),
    "assistant": (blocks.Text, blocks.Thinking, blocks.RedactedThinking, blocks.ToolUse),
    "system": (blocks.Text,),
    "developer": (blocks.Text,),
}


@attrs.frozen
class _Turn:
    """Consecutive messages of one role, joined; ``path`` is that of the first."""

    role: talk.Role
    path: str
    blocks: tuple[tuple[str, Block], ...]


def lower_history(messages: Sequence[Message], marked: frozenset[str]) -> Iterator[talk.Message]:
    """Lower every turn in its place; ``marked`` are the paths that carry a mark.  Raises ``Refused``."""
    waiting: _Calls | None = None  # calls without results; None: the history begins here
    asked = ""
    for turn in _turns(messages):
        if turn.role == "user":
            yield from _user(turn, waiting, marked)
            waiting = {}
        elif turn.role == "assistant":
            if waiting:
                raise _unanswered(asked)
            lowered = _assistant(turn, marked)
            waiting, asked = {call.id: call for call in lowered.calls}, turn.path
            yield lowered
        else:
            yield talk.Message(turn.role, _parts(turn.blocks, marked))
    if waiting:
        raise _unanswered(asked)


def refuse_odd_prefill(messages: Sequence[Message]) -> None:
    """Refuse a final assistant turn that holds more than the text to be continued."""
    *_, turn = _turns(messages)
    for path, block in turn.blocks:
        if not isinstance(block, blocks.Text):
            complaint = f'may not be "{block.type}" in the final assistant turn, whose text is continued'
            raise misfit(f"{path}.type", complaint, "invalid_prefill")


def _turns(messages: Sequence[Message]) -> Iterator[_Turn]:
    """Join consecutive user messages, and consecutive assistant messages."""
    numbered = list(enumerate(messages))

    def key(entry: tuple[int, Message]) -> tuple[str, int]:
        joined = entry[1].role in ("user", "assistant")
        return entry[1].role, -1 if joined else entry[0]

    for _, group in groupby(numbered, key):
        run = list(group)
        found = [pair for index, message in run for pair in _placed(message, index)]
        yield _Turn(run[0][1].role, f"messages[{run[0][0]}]", tuple(found))


def _placed(message: Message, index: int) -> Iterator[tuple[str, Block]]:
    for path, block in placed(message.content, f"messages[{index}].content"):
        if not isinstance(block, _MAY_HOLD[message.role]):
            raise _misplaced(block, message.role, path)
        yield path, block


def _misplaced(block: Block, role: str, path: str) -> Refused:
    if isinstance(block, blocks.Image):
        return lacking(f"{path}.type", f"images in {role} messages", "modality_not_supported")
    return misfit(f"{path}.type", f'may not be "{block.type}" in {role} messages')


# Assistant turns


def _assistant(turn: _Turn, marked: frozenset[str]) -> talk.Message:
    thoughts = [block.thinking for _, block in turn.blocks if isinstance(block, blocks.Thinking)]
    text = [(path, block) for path, block in turn.blocks if isinstance(block, blocks.Text)]
    return talk.Message(
        "assistant",
        _parts(text, marked),
        reasoning="".join(thoughts) or None,
        calls=tuple(_calls(turn, marked)),
    )


def _calls(turn: _Turn, marked: frozenset[str]) -> Iterator[ToolCall]:
    seen: set[str] = set()
    for path, block in turn.blocks:
        if isinstance(block, blocks.ToolUse):
            if block.id in seen:
                raise misfit(f"{path}.id", "is the id of another call of this turn", HISTORY)
            seen.add(block.id)
            yield ToolCall(block.id, block.name, block.input, path in marked)


def _unanswered(path: str) -> Refused:
    complaint = "calls tools, so the user turn that follows must begin with their results"
    return misfit(path, complaint, HISTORY)


# User turns


def _user(turn: _Turn, waiting: _Calls | None, marked: frozenset[str]) -> Iterator[talk.Message]:
    results: dict[str, talk.Message] = {}
    rest: list[tuple[str, Block]] = []
    for path, block in turn.blocks:
        if isinstance(block, blocks.ToolResult):
            _check_result(block, path, results, waiting, late=bool(rest))
            results[block.tool_use_id] = _result(block, path, marked)
        else:
            rest.append((path, block))
    for id in waiting or ():
        if id not in results:
            raise _missing(turn.path, id)
    yield from results.values() if waiting is None else (results[id] for id in waiting)
    if rest or not results:
        yield talk.Message("user", _parts(rest, marked))


def _check_result(
    result: blocks.ToolResult,
    path: str,
    results: dict[str, talk.Message],
    waiting: _Calls | None,
    *,
    late: bool,
) -> None:
    """Refuse a result that stands behind other blocks, comes twice or answers nothing."""
    if late:
        raise misfit(f"{path}.type", "must stand before the other blocks of its user turn", HISTORY)
    if result.tool_use_id in results:
        raise misfit(f"{path}.tool_use_id", "has a result already", HISTORY)
    if waiting is not None and result.tool_use_id not in waiting:
        complaint = "names no tool call of the assistant turn before it"
        raise misfit(f"{path}.tool_use_id", complaint, HISTORY)


def _missing(path: str, id: str) -> Refused:
    complaint = f"must begin with the result of tool call {json.dumps(id[:64])}"
    return misfit(path, complaint, HISTORY)


def _result(result: blocks.ToolResult, path: str, marked: frozenset[str]) -> talk.Message:
    inner = list(placed(result.content, f"{path}.content"))
    parts = _parts(inner, marked)
    return talk.Message("tool", parts, call_id=result.tool_use_id, is_error=bool(result.is_error))


# Parts


def _parts(found: Sequence[tuple[str, Block]], marked: frozenset[str]) -> tuple[talk.Part, ...]:
    return tuple(_part(block, path, path in marked) for path, block in found)


def _part(block: Block, path: str, mark: bool) -> talk.Part:
    match block:
        case blocks.Text():
            return TextPart(block.text, mark)
        case blocks.Image():
            return MediaPart("image", _source(block, path), path, mark)
    raise _misplaced(block, "these", path)


def _source(image: blocks.Image, path: str) -> str:
    match image.source:
        case blocks.Base64Source():
            return f"data:{image.source.media_type};base64,{image.source.data}"
        case blocks.UrlSource():
            check_source(image.source.url, f"{path}.source.url")
            return image.source.url
    raise lacking(f"{path}.source.type", "uploaded files", "files_not_supported")
