"""Typed deltas to semantic events, and with them to the terminal response: one way for both forms.

Promises the life of every item (added, its part added, deltas, done, part done, item done), numbers that
rise by one, ids and indices that stay, deltas that add up to the terminal items, and one terminal event.

The one thing a reader would get wrong: a whole answer is made of the same events as a streamed one, and
keeps only the response of the last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

import attrs

from ninfer.faults import Fault
from ninfer.output.deltas import ParsedCall
from ninfer.prompt.conversation import Json
from ninfer.protocols.frames import Mint, compact, frame, identifier
from ninfer.protocols.responses.objects import (
    Envelope,
    call_item,
    failed,
    finished,
    message_item,
    reasoning_item,
)
from ninfer.protocols.responses.store import JsonItem
from ninfer.protocols.responses.tools import FunctionKey
from ninfer.protocols.service import (
    ContentDelta,
    Delta,
    Finished,
    ReasoningDelta,
    Started,
    ToolCallsDelta,
)

Event = dict[str, object]


@attrs.frozen
class _Channel:
    """How an item with one text part is spelled."""

    prefix: str
    events: str
    item: Callable[[str, str, list[Json]], JsonItem]
    part: Callable[[str], JsonItem]
    logprobs: Event


_REASONING = _Channel(
    "rs_",
    "response.reasoning_text",
    reasoning_item,
    lambda text: {"type": "reasoning_text", "text": text},
    {},
)
_MESSAGE = _Channel(
    "msg_",
    "response.output_text",
    message_item,
    lambda text: {"type": "output_text", "text": text, "annotations": [], "logprobs": []},
    {"logprobs": []},
)


@attrs.define(eq=False)
class _Open:
    """The item that text goes into."""

    channel: _Channel
    id: str
    pieces: list[str] = attrs.field(factory=list)

    def item(self, status: str) -> JsonItem:
        return self.channel.item(self.id, status, [self.channel.part("".join(self.pieces))])


@attrs.define(eq=False)
class Answer:
    """Renders the deltas of one generation.

    ``origin`` gives the namespace and function of a name in the prompt; ``keep`` is told the terminal
    response before the peer is, and may raise ``Refused``; ``now`` gives Unix seconds.
    """

    begun: Envelope
    origin: Callable[[str], FunctionKey]
    keep: Callable[[Envelope], None]
    mint: Mint
    now: Callable[[], float]
    response: Envelope | None = None
    _output: list[JsonItem] = attrs.field(factory=list)
    _open: _Open | None = None
    _numbered: int = 0

    def frames(self, delta: Delta) -> Iterator[bytes]:
        """Render one delta as the frames of a stream.  Raises ``Refused``."""
        for event in self.events(delta):
            yield frame(event, str(event["type"]))

    def failure(self, fault: Fault) -> bytes:
        """Render a failure as the frames that end a stream."""
        return b"".join(frame(event, str(event["type"])) for event in self.fail(fault))

    def events(self, delta: Delta) -> Iterator[Event]:
        """Render one delta; one that a client never sees renders to nothing.  Raises ``Refused``."""
        match delta:
            case Started():
                yield from self._begin()
            case ReasoningDelta():
                yield from self._text(_REASONING, delta.text)
            case ContentDelta():
                yield from self._text(_MESSAGE, delta.text)
            case ToolCallsDelta():
                yield from self._close("completed")
                for call in delta.calls:
                    yield from self._call(call)
            case Finished():
                yield from self._end(delta)

    def fail(self, fault: Fault) -> Iterator[Event]:
        """Render a failure, wherever the answer stands."""
        if not self._numbered:
            yield from self._begin()
        yield from self._close("incomplete")
        yield self._whole("response.failed", failed(self.begun, self._output, fault))

    def _begin(self) -> Iterator[Event]:
        yield self._whole("response.created", self.begun)
        yield self._whole("response.in_progress", self.begun)

    def _end(self, done: Finished) -> Iterator[Event]:
        response = finished(self.begun, self._output, done, int(self.now()))
        status = str(response["status"])
        if status == "completed" and not done.calls and not done.content:
            yield from self._text(_MESSAGE, "")
        yield from self._close("completed" if status == "completed" else "incomplete")
        self.keep(response)
        self.response = response
        name: Literal["completed", "incomplete"] = "completed" if status == "completed" else "incomplete"
        yield self._whole(f"response.{name}", response)

    # Items

    def _text(self, channel: _Channel, text: str) -> Iterator[Event]:
        if self._open is None or self._open.channel is not channel:
            yield from self._close("completed")
            self._open = _Open(channel, identifier(channel.prefix, self.mint))
            yield self._added(channel.item(self._open.id, "in_progress", []))
            yield self._part("response.content_part.added", self._open, {"part": channel.part("")})
        if text:
            self._open.pieces.append(text)
            yield self._part(f"{channel.events}.delta", self._open, {"delta": text, **channel.logprobs})

    def _close(self, status: str) -> Iterator[Event]:
        item = self._open
        if item is None:
            return
        text = "".join(item.pieces)
        yield self._part(f"{item.channel.events}.done", item, {"text": text, **item.channel.logprobs})
        yield self._part("response.content_part.done", item, {"part": item.channel.part(text)})
        yield self._done(item.item(status))
        self._open = None

    def _call(self, call: ParsedCall) -> Iterator[Event]:
        function, arguments = self.origin(call.name), compact(dict(call.arguments))
        id, call_id = identifier("fc_", self.mint), identifier("call_", self.mint)
        yield self._added(call_item(id, "in_progress", call_id, function, ""))
        place = {"item_id": id, "output_index": len(self._output)}
        yield self._event("response.function_call_arguments.delta", {**place, "delta": arguments})
        yield self._event("response.function_call_arguments.done", {**place, "arguments": arguments})
        yield self._done(call_item(id, "completed", call_id, function, arguments))

    def _added(self, item: JsonItem) -> Event:
        return self._event("response.output_item.added", {"output_index": len(self._output), "item": item})

    def _done(self, item: JsonItem) -> Event:
        index = len(self._output)
        self._output.append(item)
        return self._event("response.output_item.done", {"output_index": index, "item": item})

    def _part(self, name: str, item: _Open, more: Event) -> Event:
        place = {"item_id": item.id, "output_index": len(self._output), "content_index": 0}
        return self._event(name, {**place, **more})

    def _whole(self, name: str, response: Envelope) -> Event:
        return self._event(name, {"response": response})

    def _event(self, name: str, more: Event) -> Event:
        self._numbered += 1
        return {"type": name, "sequence_number": self._numbered - 1, **more}
