"""Every malformed or impossible Chat request is told its field, its code and what is wrong."""

from __future__ import annotations

from typing import Any, get_args

import attrs
import pytest

from ninfer.protocols.chat.handler import chat_routes
from ninfer.protocols.chat.schema import ChatRequest
from ninfer.protocols.fields import wire_fields
from tests.protocols.chat.cases import GOOD, ROWS, TYPES, Row, wrong_types
from tests.protocols.fakes import RecordingExchange, ScriptedService, kit, request


async def post(body: Any, service: ScriptedService | None = None) -> RecordingExchange:
    exchange = RecordingExchange()
    (route,) = chat_routes(kit(service or ScriptedService()))
    await route.handler(request(body), exchange)
    return exchange


@pytest.mark.parametrize("row", ROWS + wrong_types(), ids=lambda row: f"{row[1]}-{row[2]}"[:60])
async def test_a_bad_value_is_refused_by_name(row: Row) -> None:
    change, param, code, complaint = row
    service = ScriptedService()
    exchange = await post({**GOOD, **change}, service)
    assert exchange.status == 400
    assert exchange.json == {
        "error": {
            "message": f"{param} {complaint}",
            "type": "invalid_request_error",
            "param": param,
            "code": code,
        }
    }
    assert not service.asks


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[1]}-{row[2]}"[:60])
async def test_a_stream_is_refused_just_the_same(row: Row) -> None:
    change, param, code, _ = row
    exchange = await post({**GOOD, "stream": True, **change})
    assert (exchange.status, exchange.streamed) == (400, False)
    assert (exchange.json["error"]["param"], exchange.json["error"]["code"]) == (param, code)


def test_there_are_more_than_two_hundred_rows_and_no_two_alike() -> None:
    rows = [repr(row) for row in ROWS + wrong_types()]
    assert len(ROWS) > 200 and len(set(rows)) == len(rows)


def test_every_plain_field_is_in_the_table_of_types() -> None:
    anything = {
        field.name
        for field in wire_fields(ChatRequest)
        if any("object" in str(a) for a in get_args(field.type))
    }
    assert {field.name for field in attrs.fields(ChatRequest)} - set(TYPES) <= anything


@pytest.mark.parametrize("field", ["model", "messages"])
async def test_a_required_field_must_be_there(field: str) -> None:
    body = {name: value for name, value in GOOD.items() if name != field}
    error = (await post(body)).json["error"]
    assert (error["param"], error["code"]) == (field, "missing_required_parameter")


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'"x"', b"5", b"\xff", b'{"model":'])
async def test_a_body_that_is_no_json_object_has_no_param(body: bytes) -> None:
    exchange = await post(body)
    assert exchange.status == 400
    assert exchange.json["error"]["param"] is None
    assert exchange.json["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
async def test_a_number_that_is_not_finite_never_reaches_the_engine(number: str) -> None:
    body = b'{"model":"tiny","messages":[{"role":"user","content":"x"}],"temperature":%s}' % number.encode()
    service = ScriptedService()
    exchange = await post(body, service)
    assert (exchange.status, exchange.json["error"]["param"]) == (400, "temperature")
    assert not service.asks


@pytest.mark.parametrize("body", [b'{"x":' + b"[" * 100_000, b"{" * 500_000])
async def test_a_deep_body_is_refused_in_the_endpoints_shape(body: bytes) -> None:
    exchange = await post(body)
    assert exchange.status == 400
    assert set(exchange.json["error"]) == {"message", "type", "param", "code"}


async def test_another_model_is_not_found() -> None:
    exchange = await post({**GOOD, "model": "gpt-4"})
    assert exchange.status == 404
    error = exchange.json["error"]
    assert (error["param"], error["code"]) == ("model", "model_not_found")


async def test_the_shape_is_judged_before_the_model() -> None:
    exchange = await post({**GOOD, "model": "gpt-4", "temperature": "hot"})
    assert (exchange.status, exchange.json["error"]["param"]) == (400, "temperature")


async def test_the_first_fault_in_field_order_is_told() -> None:
    exchange = await post({"seed": "x", "n": 7, "messages": [{"role": "user"}], "model": "tiny"})
    assert exchange.json["error"]["param"] == "messages[0].content"
