"""The astrai dialect: each line of its table, and nothing else changed."""

from __future__ import annotations

from typing import Any

import pytest

from ninfer.faults import Fault, Kind
from ninfer.protocols.astrai import astrai
from ninfer.protocols.chat.handler import chat_routes
from ninfer.protocols.dialect import Dialect
from ninfer.protocols.frames import DONE
from ninfer.protocols.registry import DIALECTS
from tests.protocols.fakes import (
    Event,
    RecordingExchange,
    ScriptedService,
    answer,
    check_chat_stream,
    content,
    kit,
    request,
)

USER = {"role": "user", "content": "hi"}


class Heard(list[str]):
    """Warnings, and a whole run of the Chat endpoint in the dialect."""

    service: ScriptedService

    async def post(self, body: Any, refusal: Fault | None = None) -> RecordingExchange:
        exchange = RecordingExchange()
        self.service = ScriptedService([answer(content("Hello"), tokens=3)], refusal=refusal)
        (route,) = chat_routes(kit(self.service, astrai(self.append)))
        await route.handler(request(body), exchange)
        return exchange


async def test_a_bare_request_gets_the_dialects_defaults() -> None:
    heard = Heard()
    exchange = await heard.post({"messages": [USER]})
    (ask,) = heard.service.asks
    assert (ask.max_tokens, ask.sampling.top_k, ask.model) == (2048, 20, "astrai")
    assert exchange.json["model"] == "astrai" and not heard


def test_messages_have_their_own_default_limit() -> None:
    adapt = astrai(lambda _: None).adapt
    assert adapt("messages", {}) == {"model": "astrai", "top_k": 20, "max_tokens": 1024}
    assert adapt("messages", {"max_tokens": 7, "n": 5, "model": "x", "top_k": 3}) == {
        "max_tokens": 7,
        "n": 5,
        "model": "x",
        "top_k": 3,
    }


@pytest.mark.parametrize(
    "change, limit, top_k",
    [
        ({"max_tokens": 7}, 7, 20),
        ({"max_completion_tokens": 8}, 8, 20),
        ({"top_k": 5}, 2048, 5),
        ({"top_k": 1000}, 2048, 20),
        ({"max_tokens": None, "top_k": None}, 2048, 20),
    ],
)
async def test_what_a_request_says_counts(change: dict[str, Any], limit: int, top_k: int) -> None:
    heard = Heard()
    await heard.post({"messages": [USER], **change})
    assert (heard.service.asks[0].max_tokens, heard.service.asks[0].sampling.top_k) == (limit, top_k)


async def test_any_label_is_taken_and_echoed() -> None:
    exchange = await Heard().post({"messages": [USER], "model": "gpt-4"})
    assert (exchange.status, exchange.json["model"]) == (200, "gpt-4")


@pytest.mark.parametrize(
    "field, value", [("n", 3), ("presence_penalty", 1.5), ("logit_bias", {"5": 2.5}), ("user", "ann")]
)
async def test_an_ignored_field_is_ignored_with_a_warning(field: str, value: Any) -> None:
    heard = Heard()
    exchange = await heard.post({"messages": [USER], field: value})
    assert exchange.status == 200 and len(heard) == 1 and field in heard[0]
    assert heard.service.asks[0].sampling.presence is None
    assert "ann" not in heard[0]


@pytest.mark.parametrize(
    "field, value", [("n", 1), ("presence_penalty", 0), ("logit_bias", {}), ("user", None)]
)
async def test_an_ignored_field_at_its_default_is_not_worth_a_warning(field: str, value: Any) -> None:
    heard = Heard()
    assert (await heard.post({"messages": [USER], field: value})).status == 200
    assert not heard


@pytest.mark.parametrize(
    "change, place, kind",
    [
        ({"messages": None}, ["messages"], "invalid_type"),
        ({"n": 0}, ["n"], "invalid_value"),
        ({"presence_penalty": 3}, ["presence_penalty"], "invalid_value"),
        ({"logit_bias": {"a b": "x"}}, ["logit_bias", "a b"], "invalid_type"),
        ({"user": 5}, ["user"], "invalid_type"),
        ({"top_k": 0}, ["top_k"], "invalid_value"),
        ({"max_tokens": 0}, ["max_tokens"], "invalid_value"),
        ({"temperature": 3}, ["temperature"], "invalid_value"),
        (
            {"messages": [{"role": "user", "content": [{"type": "x"}]}]},
            ["messages", 0, "content", 0, "type"],
            "invalid_value",
        ),
        (
            {"response_format": {"type": "json_object"}},
            ["response_format", "type"],
            "response_format_not_supported",
        ),
    ],
)
async def test_a_malformed_request_is_422_with_its_place(
    change: dict[str, Any], place: list[str | int], kind: str
) -> None:
    exchange = await Heard().post({"messages": [USER], **change})
    assert exchange.status == 422
    (detail,) = exchange.json["detail"]
    assert (detail["loc"], detail["type"]) == (["body", *place], kind)
    assert set(detail) == {"type", "loc", "msg"}


@pytest.mark.parametrize("body", [b"{", b"[]", {}])
async def test_a_body_that_is_no_request_is_422(body: Any) -> None:
    exchange = await Heard().post(body)
    assert exchange.status == 422
    assert exchange.json["detail"][0]["loc"][0] == "body"


@pytest.mark.parametrize(
    "kind, status",
    [(Kind.UNAVAILABLE, 503), (Kind.OVERLOADED, 429), (Kind.INVALID, 400), (Kind.INTERNAL, 500)],
)
async def test_other_faults_keep_their_status_and_say_one_line(kind: Kind, status: int) -> None:
    exchange = await Heard().post({"messages": [USER]}, Fault(kind, "Engine not initialized"))
    assert (exchange.status, exchange.json) == (status, {"detail": "Engine not initialized"})


async def test_a_stream_tells_usage_in_a_line_of_its_own() -> None:
    exchange = await Heard().post({"messages": [USER], "stream": True})
    *chunks, usage, done = exchange.events
    assert usage.json == {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13}
    assert done == Event("", "[DONE]")
    out = check_chat_stream([*chunks, done])
    assert (out.content, out.finish) == ("Hello", "stop")


def test_the_rest_of_the_dialect_is_plain_data() -> None:
    dialect = DIALECTS["astrai"](lambda _: None)
    assert dialect.after_stop == (DONE,)
    assert dialect.health_extra == {"model_loaded": True}
    fault = Fault(Kind.METHOD, "no such method")
    assert dialect.render_fault("/v1/messages", 405, fault, "r") == b'{"detail":"no such method"}'


def test_the_native_dialect_changes_nothing() -> None:
    assert DIALECTS["ninfer"](lambda _: None) == Dialect()
    assert set(DIALECTS) == {"ninfer", "astrai"}
