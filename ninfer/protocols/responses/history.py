"""Input items to neutral turns.

Owns what each role may hold, how items of the assistant become one turn and how results find their
calls.  Promises that parts keep their order and their text, and that arguments keep their member order.

The one thing a reader would get wrong: results reach the prompt in the order of the calls, whatever their
own order was, because a template pairs the two by position.  So a result may be missing only at the end.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

import attrs

from ninfer.faults import Refused
from ninfer.prompt import conversation as talk
from ninfer.prompt.conversation import MediaPart, TextPart, ToolCall
from ninfer.protocols.fields import ReadJson, lacking, misfit
from ninfer.protocols.media import check_source
from ninfer.protocols.responses import items
from ninfer.protocols.responses.tools import Names
from ninfer.protocols.shapes import read_arguments

PARENT = "previous_response_id"
ASSISTANT_HISTORY = "invalid_assistant_history"
TOOL_HISTORY = "invalid_tool_history"

_MAY_HOLD: dict[str, tuple[type, ...]] = {
    "system": (items.InputText,),
    "developer": (items.InputText,),
    "user": (items.InputText, items.InputImage, items.InputVideo),
    "assistant": (items.InputText, items.OutputText, items.Refusal, items.InputImage, items.InputVideo),
    "function_call_output": (items.InputText, items.InputImage),
}
_REPLAYED = (items.OutputText, items.Refusal)


@attrs.frozen
class Placed:
    """An item and where it stands in the request; ``begins`` says that it begins an answer."""

    item: items.Item
    path: str
    begins: bool = False


def under(path: str, step: str) -> str:
    """Go on to a member; inside a stored history the request has one place only."""
    return path if path == PARENT else f"{path}.{step}"


def lower_history(history: Iterable[Placed], names: Names, read_json: ReadJson) -> list[talk.Message]:
    """Lower a whole history.  Raises ``Refused``."""
    writer = _Writer(names, read_json)
    for placed in history:
        writer.add(placed)
    writer.end()
    return writer.turns


class _Stage(enum.IntEnum):
    """How far an assistant turn has come; its items may not go back."""

    NOTHING = 0
    REASONING = 1
    MESSAGE = 2
    CALLS = 3


@attrs.define(eq=False)
class _Turn:
    """The assistant turn that is being put together."""

    stage: _Stage = _Stage.NOTHING
    thoughts: list[str] = attrs.field(factory=list)
    parts: list[talk.Part] = attrs.field(factory=list)
    calls: dict[str, ToolCall] = attrs.field(factory=dict)
    called: dict[str, items.FunctionCall] = attrs.field(factory=dict)
    reasoned: bool = False

    def message(self) -> talk.Message:
        reasoning = "".join(self.thoughts) if self.reasoned else None
        return talk.Message("assistant", tuple(self.parts), reasoning, tuple(self.calls.values()))


@attrs.define(eq=False)
class _Writer:
    names: Names
    read_json: ReadJson
    turns: list[talk.Message] = attrs.field(factory=list)
    _turn: _Turn = attrs.field(factory=_Turn)
    _waiting: dict[str, items.FunctionCall] = attrs.field(factory=dict)  # calls without results, in order
    _results: dict[str, tuple[talk.Message, str]] = attrs.field(factory=dict)  # and their paths

    def add(self, placed: Placed) -> None:
        item, path = placed.item, placed.path
        if placed.begins:
            self.end()
        match item:
            case items.FunctionCallOutput():
                self._close_turn()
                self._result(item, path)
            case items.Message(role="user" | "system" | "developer"):
                self.end()
                self.turns.append(talk.Message(item.role, _content(item.content, item.role, path)))
            case items.Message() | items.Reasoning() | items.FunctionCall():
                self._close_results()
                self._assistant(item, path)

    def end(self) -> None:
        """Close whatever is open."""
        self._close_turn()
        self._close_results()

    def _assistant(self, item: items.Message | items.Reasoning | items.FunctionCall, path: str) -> None:
        stage = _stage(item)
        turn = self._turn
        if stage < turn.stage:
            complaint = (
                f"is {stage.name.lower()} after {turn.stage.name.lower()} of the same assistant turn"
            )
            raise misfit(path, complaint, ASSISTANT_HISTORY)
        turn.stage = stage
        match item:
            case items.Reasoning():
                turn.thoughts.append(_thought(item, path))
                turn.reasoned = True
            case items.Message():
                turn.parts += _content(item.content, "assistant", path)
            case items.FunctionCall():
                self._call(item, path)

    def _call(self, item: items.FunctionCall, path: str) -> None:
        if item.call_id in self._turn.calls:
            raise misfit(under(path, "call_id"), "names two calls of one turn", TOOL_HISTORY)
        arguments = read_arguments(item.arguments, under(path, "arguments"), self.read_json)
        name = self.names.of((item.namespace, item.name))
        self._turn.calls[item.call_id] = ToolCall(item.call_id, name, arguments)
        self._turn.called[item.call_id] = item

    def _close_turn(self) -> None:
        if self._turn.stage is not _Stage.NOTHING:
            self.turns.append(self._turn.message())
            self._waiting = self._turn.called
            self._turn = _Turn()

    def _result(self, item: items.FunctionCallOutput, path: str) -> None:
        call = self._waiting.get(item.call_id)
        where = under(path, "call_id")
        if call is None:
            raise misfit(where, "names no call of the assistant turn before it", TOOL_HISTORY)
        if item.call_id in self._results:
            raise misfit(where, "names a call that has its result", TOOL_HISTORY)
        if item.name is not None and item.name != call.name:
            raise misfit(under(path, "name"), "is not the name of the call", TOOL_HISTORY)
        if item.namespace is not None and item.namespace != call.namespace:
            raise misfit(under(path, "namespace"), "is not the namespace of the call", TOOL_HISTORY)
        parts = _content(item.output, item.type, path, "output")
        self._results[item.call_id] = (talk.Message("tool", parts, call_id=item.call_id), path)

    def _close_results(self) -> None:
        missing = False
        for call_id in self._waiting if self._results else ():
            if call_id not in self._results:
                missing = True
                continue
            message, path = self._results[call_id]
            if missing:
                complaint = "has a result while a call before it has none"
                raise misfit(under(path, "call_id"), complaint, TOOL_HISTORY)
            self.turns.append(message)
        self._waiting, self._results = {}, {}


def _stage(item: items.Message | items.Reasoning | items.FunctionCall) -> _Stage:
    if isinstance(item, items.Reasoning):
        return _Stage.REASONING
    return _Stage.MESSAGE if isinstance(item, items.Message) else _Stage.CALLS


def _thought(item: items.Reasoning, path: str) -> str:
    if not item.content:
        raise lacking(under(path, "content"), "reasoning without its raw text", "reasoning_text_required")
    return "".join(part.text for part in item.content)


def _content(
    content: str | tuple[items.Part, ...] | tuple[items.ResultPart, ...],
    holder: str,
    path: str,
    member: str = "content",
) -> tuple[talk.Part, ...]:
    if isinstance(content, str):
        return (TextPart(content),) if content else ()
    return tuple(_part(part, holder, under(path, f"{member}[{n}]")) for n, part in enumerate(content))


def _part(part: items.Part, holder: str, path: str) -> talk.Part:
    if not isinstance(part, _MAY_HOLD[holder]):
        raise _misplaced(part, holder, path)
    match part:
        case items.InputText() | items.OutputText():
            return TextPart(part.text, part.prompt_cache_breakpoint is not None)
        case items.Refusal():
            return TextPart(part.refusal, part.prompt_cache_breakpoint is not None)
        case items.InputImage():
            return _image(part, path)
        case items.InputVideo():
            check_source(part.video_url, under(path, "video_url"))
            return MediaPart("video", part.video_url, path, part.prompt_cache_breakpoint is not None)
    raise _misplaced(part, holder, path)


def _image(part: items.InputImage, path: str) -> MediaPart:
    where = under(path, "image_url")
    if part.image_url is None:
        raise misfit(where, "is required", "missing_required_parameter")
    check_source(part.image_url, where)
    return MediaPart("image", part.image_url, path, part.prompt_cache_breakpoint is not None)


def _misplaced(part: items.Part, holder: str, path: str) -> Refused:
    where = under(path, "type")
    if isinstance(part, _REPLAYED):
        return misfit(where, f'may be "{part.type}" in assistant messages only')
    return lacking(where, f"media in a {holder} message", items.MODALITY)
