"""A Responses endpoint on a scripted service, and an independent reader of its streams."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from ninfer.http.exchange import Handler
from ninfer.protocols.dialect import Dialect
from ninfer.protocols.responses.handler import responses_routes
from ninfer.protocols.service import Ask, Delta
from ninfer.settings import ResponseStoreLimits
from tests.protocols.fakes import Event, RecordingExchange, ScriptedService, Wait, kit, request

GOOD: dict[str, Any] = {"model": "tiny", "input": "hi"}
LOOK: dict[str, Any] = {
    "type": "function",
    "name": "look",
    "description": "Look.",
    "parameters": {"type": "object", "properties": {"at": {"type": "string"}}},
}


def user(text: str = "hi", **more: Any) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}], **more}


def said(text: str = "Hello", **more: Any) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": []}
    return {"type": "message", "role": "assistant", "content": [part], **more}


def thought(text: str = "Hm.", **more: Any) -> dict[str, Any]:
    return {
        "type": "reasoning",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": text}],
        **more,
    }


def called(
    call_id: str = "call_1", name: str = "look", arguments: str = "{}", **more: Any
) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments, **more}


def result(call_id: str = "call_1", output: Any = "seen", **more: Any) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": output, **more}


@attrs.define(eq=False)
class Desk:
    """The endpoint; ``service`` plays the scripts and keeps what was asked."""

    service: ScriptedService = attrs.field(factory=ScriptedService)
    limits: ResponseStoreLimits = attrs.field(factory=ResponseStoreLimits)
    preserve: bool | None = None
    dialect: Dialect = attrs.field(factory=Dialect)
    handlers: dict[tuple[str, str], Handler] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        made = attrs.evolve(
            kit(self.service, self.dialect), responses=self.limits, preserve_thinking=self.preserve
        )
        self.handlers = {(route.method, route.pattern): route.handler for route in responses_routes(made)}

    async def post(self, body: Any, path: str = "/v1/responses") -> RecordingExchange:
        """Send a whole body."""
        exchange = RecordingExchange()
        await self.handlers["POST", path](request(body, path), exchange)
        return exchange

    async def create(self, **change: Any) -> RecordingExchange:
        """Send a good body with changes; None takes a member out."""
        body = {name: value for name, value in {**GOOD, **change}.items() if value is not None}
        return await self.post(body)

    async def count(self, **change: Any) -> RecordingExchange:
        """Count the tokens of a good body with changes."""
        body = {name: value for name, value in {**GOOD, **change}.items() if value is not None}
        return await self.post(body, "/v1/responses/input_tokens")

    async def on(self, method: str, id: str, tail: str = "", query: str = "") -> RecordingExchange:
        """Use a stored response."""
        exchange = RecordingExchange()
        asked = attrs.evolve(request(None, method=method, variables={"id": id}), query=query)
        await self.handlers[method, "/v1/responses/{id}" + tail](asked, exchange)
        return exchange

    async def made(self, **change: Any) -> str:
        """Create a response that must succeed; returns its id."""
        exchange = await self.create(**change)
        assert exchange.status == 200, exchange.json
        return str(exchange.json["id"])

    @property
    def ask(self) -> Ask:
        """What was asked last."""
        return self.service.asks[-1]


def desk(*scripts: list[Delta | Wait], **options: Any) -> Desk:
    """A desk whose service plays these scripts."""
    return Desk(ScriptedService(list(scripts)) if scripts else ScriptedService(), **options)


# The reader of streams

TERMINAL = {"response.completed", "response.incomplete", "response.failed"}
TEXTS = {"reasoning": "response.reasoning_text", "message": "response.output_text"}
PARTS = {"reasoning": "reasoning_text", "message": "output_text"}


@attrs.define
class _Item:
    """One item while its events are read."""

    index: int
    first: dict[str, Any]
    events: list[str] = attrs.field(factory=list)
    text: str = ""
    last: dict[str, Any] = attrs.field(factory=dict)


def check_stream(events: Sequence[Event]) -> dict[str, Any]:
    """Hold a stream against its promises; returns the terminal response."""
    payloads = [event.json for event in events]
    assert all(event.name == payload["type"] for event, payload in zip(events, payloads, strict=True))
    assert [payload["sequence_number"] for payload in payloads] == list(range(len(payloads)))
    names = [payload["type"] for payload in payloads]
    assert names[:2] == ["response.created", "response.in_progress"]
    assert names[-1] in TERMINAL and not TERMINAL & set(names[:-1])
    begun, terminal = payloads[0]["response"], payloads[-1]["response"]
    assert payloads[1]["response"] == begun
    assert (begun["status"], begun["output"], begun["usage"]) == ("in_progress", [], None)
    _check_envelopes(begun, terminal)
    items = _read_items(payloads[2:-1])
    assert [item.last for item in items] == terminal["output"]
    ids = [item.first["id"] for item in items]
    assert len(set(ids)) == len(ids)
    return dict(terminal)


def _check_envelopes(begun: dict[str, Any], terminal: dict[str, Any]) -> None:
    moves = {"status", "output", "usage", "completed_at", "incomplete_details", "error"}
    assert set(begun) == set(terminal)
    assert {name for name in begun if begun[name] != terminal[name]} <= moves
    assert (terminal["completed_at"] is None) is (terminal["status"] != "completed")
    assert (terminal["error"] is None) is (terminal["status"] != "failed")
    assert (terminal["incomplete_details"] is None) is (terminal["status"] != "incomplete")


def _read_items(payloads: Sequence[dict[str, Any]]) -> list[_Item]:
    items: list[_Item] = []
    for payload in payloads:
        name = payload["type"]
        if name == "response.output_item.added":
            assert payload["output_index"] == len(items)
            assert not items or items[-1].last, "an item begins inside another"
            items.append(_Item(len(items), payload["item"]))
        item = items[-1]
        assert payload["output_index"] == item.index and not item.last
        assert payload.get("item_id", item.first["id"]) == item.first["id"]
        assert payload.get("content_index", 0) == 0
        _read_event(item, name, payload)
    assert not items or items[-1].last
    return items


def _read_event(item: _Item, name: str, payload: dict[str, Any]) -> None:
    kind = item.first["type"]
    if not item.events or item.events[-1] != name or not name.endswith(".delta"):
        item.events.append(name)
    if name.endswith(".delta"):
        item.text += payload["delta"]
    elif name.endswith(("_text.done", "arguments.done")):
        assert payload["arguments" if kind == "function_call" else "text"] == item.text
    elif name == "response.content_part.added":
        assert (payload["part"]["type"], payload["part"]["text"]) == (PARTS[kind], "")
    elif name == "response.content_part.done":
        assert payload["part"]["text"] == item.text
    elif name == "response.output_item.done":
        item.last = payload["item"]
        _check_item(item)


def _check_item(item: _Item) -> None:
    """The life of an item, from its first event to its last."""
    kind, first, last = item.first["type"], item.first, item.last
    assert first["status"] == "in_progress" and last["status"] in ("completed", "incomplete")
    assert {name for name in last if last[name] != first[name]} <= {"status", "content", "arguments"}
    middle = [name for name in item.events[1:-1] if not name.endswith(".delta")]
    if kind == "function_call":
        assert middle == ["response.function_call_arguments.done"]
        assert (first["arguments"], last["arguments"]) == ("", item.text)
        assert first["id"].startswith("fc_") and first["call_id"].startswith("call_")
        return
    assert first["content"] == [] and [part["text"] for part in last["content"]] == [item.text]
    part, text = "response.content_part", TEXTS[kind]
    assert middle == [f"{part}.added", f"{text}.done", f"{part}.done"]
    assert first["id"].startswith({"reasoning": "rs_", "message": "msg_"}[kind])
