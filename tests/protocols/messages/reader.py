"""An independent reader of Messages streams: holds them against their order and adds them up.

``read_stream`` knows the wire alone; nothing of how the events were made.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import attrs

from ninfer.protocols.messages.handler import messages_routes
from tests.protocols.fakes import Event, RecordingExchange, ScriptedService, kit, request

PATH = "/v1/messages"
COUNT = "/v1/messages/count_tokens"
DELTAS = {
    "thinking_delta": ("thinking", "thinking"),
    "signature_delta": ("thinking", "signature"),
    "text_delta": ("text", "text"),
    "input_json_delta": ("tool_use", "partial_json"),
}
BLOCKS = {"content_block_start", "content_block_delta", "content_block_stop"}
MAY_COME = {
    "new": {"message_start", "error"},
    "answering": {*BLOCKS, "message_delta", "error"},
    "stopping": {"message_stop", "error"},
    "ended": set[str](),
}
AFTER = {
    "message_start": "answering",
    "message_delta": "stopping",
    "message_stop": "ended",
    "error": "ended",
}
USAGE = {"input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens"}


@attrs.define
class Stream:
    """What a stream said, put together again as the aggregate answer."""

    message: dict[str, Any] = attrs.field(factory=dict)
    started: dict[str, Any] = attrs.field(factory=dict)  # usage in message_start
    error: dict[str, Any] | None = None
    _open: dict[str, Any] | None = None
    _json: str = ""
    _phase: str = "new"

    def take(self, event: Event) -> None:
        """Check one event against what may come here."""
        body = event.json
        assert event.name == body["type"] and event.name in MAY_COME[self._phase]
        self._phase = AFTER.get(event.name, self._phase)
        getattr(self, f"_{event.name}")(body)

    def _message_start(self, body: dict[str, Any]) -> None:
        message = body["message"]
        assert message["content"] == [] and message["type"] == "message" and message["role"] == "assistant"
        assert message["stop_reason"] is None and message["stop_sequence"] is None
        assert set(message["usage"]) == USAGE and message["usage"]["output_tokens"] == 0
        self.message, self.started = message, message["usage"]

    def _content_block_start(self, body: dict[str, Any]) -> None:
        assert self._open is None and body["index"] == len(self.message["content"])
        self._open, self._json = body["content_block"], ""
        empty = {"text": {"text": ""}, "thinking": {"thinking": "", "signature": ""}}
        if self._open["type"] == "tool_use":
            assert self._open["input"] == {} and self._open["id"] and self._open["name"]
        else:
            assert self._open == {"type": self._open["type"], **empty[self._open["type"]]}

    def _content_block_delta(self, body: dict[str, Any]) -> None:
        assert self._open is not None and body["index"] == len(self.message["content"])
        kind, member = DELTAS[body["delta"]["type"]]
        assert self._open["type"] == kind and set(body["delta"]) == {"type", member}
        if member == "partial_json":
            self._json += body["delta"][member]
        else:
            assert not self._open.get("signature"), "a delta after the signature"
            assert body["delta"][member]
            self._open[member] += body["delta"][member]

    def _content_block_stop(self, body: dict[str, Any]) -> None:
        assert self._open is not None and body["index"] == len(self.message["content"])
        if self._open["type"] == "tool_use":
            self._open["input"] = json.loads(self._json)
        elif self._open["type"] == "thinking":
            assert self._open["signature"] and self._open["thinking"]
        self.message["content"].append(self._open)
        self._open = None

    def _message_delta(self, body: dict[str, Any]) -> None:
        assert self._open is None and self.message["content"]
        assert set(body["delta"]) == {"stop_reason", "stop_sequence"} and body["delta"]["stop_reason"]
        for member in USAGE - {"output_tokens"}:
            assert body["usage"][member] == self.started[member], "the split was exact from the start"
        self.message = {**self.message, **body["delta"], "usage": body["usage"]}

    def _message_stop(self, body: dict[str, Any]) -> None:
        assert body == {"type": "message_stop"}

    def _error(self, body: dict[str, Any]) -> None:
        assert set(body) == {"type", "error", "request_id"} and set(body["error"]) == {"type", "message"}
        self.error = body

    @property
    def whole(self) -> bool:
        """Whether it ended as a stream should."""
        return self._phase == "ended"


def read_stream(events: Sequence[Event]) -> Stream:
    """Read a whole stream; it must end with ``message_stop`` or an error."""
    stream = Stream()
    for event in events:
        stream.take(event)
    assert stream.whole
    return stream


def unsigned(message: dict[str, Any]) -> dict[str, Any]:
    """A message without what is drawn at random."""
    content = [
        {name: value for name, value in block.items() if name not in ("signature", "id")}
        for block in message["content"]
    ]
    return {**message, "content": content}


async def post(
    body: Any, service: ScriptedService | None = None, path: str = PATH, **more: Any
) -> RecordingExchange:
    """Send one request to the endpoint at ``path``; ``more`` goes to the kit."""
    exchange = RecordingExchange()
    routes = {route.pattern: route for route in messages_routes(kit(service or ScriptedService(), **more))}
    await routes[path].handler(request(body, path), exchange)
    return exchange
