"""The Messages wire of the astrai dialect: defaults, labels, error shapes, ``[DONE]``."""

from __future__ import annotations

from typing import Any

import pytest

from ninfer.faults import Fault, Kind
from ninfer.protocols.astrai import astrai
from tests.protocols.fakes import Event, RecordingExchange, ScriptedService, answer, content
from tests.protocols.messages.cases import USER
from tests.protocols.messages.reader import COUNT, PATH, post, read_stream

DIALECT = astrai(lambda _: None)


async def ask(
    body: Any, service: ScriptedService | None = None, path: str = PATH
) -> tuple[RecordingExchange, ScriptedService]:
    service = service or ScriptedService([answer(content("Hello"), tokens=3)])
    return await post(body, service, path, dialect=DIALECT), service


async def test_a_bare_request_gets_the_dialects_defaults() -> None:
    exchange, service = await ask({"messages": [USER]})
    (asked,) = service.asks
    assert (asked.max_tokens, asked.sampling.top_k, asked.model) == (1024, 20, "astrai")
    assert exchange.json["model"] == "astrai" and exchange.json["stop_reason"] == "end_turn"


async def test_the_documented_request_is_taken() -> None:
    body = {"model": "astrai", "system": "You are helpful.", "messages": [USER], "max_tokens": 512}
    exchange, service = await ask(body)
    assert exchange.status == 200 and service.asks[0].max_tokens == 512
    assert [message.role for message in service.asks[0].conversation.messages] == ["system", "user"]


@pytest.mark.parametrize("top_k, kept", [(5, 5), (50, 20), (1000, 20), (None, 20)])
async def test_a_large_top_k_is_lowered(top_k: int | None, kept: int) -> None:
    _, service = await ask({"messages": [USER], "top_k": top_k})
    assert service.asks[0].sampling.top_k == kept


async def test_a_stream_ends_with_done_after_message_stop() -> None:
    exchange, _ = await ask({"messages": [USER], "stream": True})
    *events, done = exchange.events
    assert done == Event("", "[DONE]")
    assert read_stream(events).message["content"] == [{"type": "text", "text": "Hello"}]


async def test_a_failed_stream_ends_with_its_error_and_no_done() -> None:
    from tests.protocols.fakes import failing

    script = failing(Fault(Kind.INTERNAL, "lost"), content("Hel"))
    exchange, _ = await ask({"messages": [USER], "stream": True}, ScriptedService([script]))
    assert read_stream(exchange.events).error


@pytest.mark.parametrize("path", [PATH, COUNT])
@pytest.mark.parametrize(
    "change, place",
    [
        ({"messages": None}, ["messages"]),
        ({"max_tokens": 0}, ["max_tokens"]),
        ({"top_k": 0}, ["top_k"]),
        (
            {"messages": [{"role": "user", "content": [{"type": "x"}]}]},
            ["messages", 0, "content", 0, "type"],
        ),
        ({"tool_choice": {"type": "any"}}, ["tool_choice", "type"]),
    ],
)
async def test_a_malformed_request_is_422_with_its_place(
    change: dict[str, Any], place: list[str | int], path: str
) -> None:
    exchange, _ = await ask({"messages": [USER], **change}, path=path)
    assert exchange.status == 422
    (detail,) = exchange.json["detail"]
    assert detail["loc"] == ["body", *place] and set(detail) == {"type", "loc", "msg"}


@pytest.mark.parametrize(
    "kind, status", [(Kind.UNAVAILABLE, 503), (Kind.OVERLOADED, 529), (Kind.QUEUE_TIMEOUT, 504)]
)
async def test_other_faults_keep_their_status_and_say_one_line(kind: Kind, status: int) -> None:
    refusal = ScriptedService(refusal=Fault(kind, "Engine not initialized"))
    exchange, _ = await ask({"messages": [USER]}, refusal)
    assert (exchange.status, exchange.json) == (status, {"detail": "Engine not initialized"})


async def test_a_count_needs_no_model() -> None:
    exchange, _ = await ask({"messages": [USER]}, path=COUNT)
    assert exchange.json == {"input_tokens": 10}
