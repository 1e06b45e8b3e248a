"""Every malformed or impossible Messages request is told its field and what is wrong."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from ninfer.protocols.messages.schema import Output, Prompt
from tests.protocols.fakes import ScriptedService
from tests.protocols.messages.cases import (
    GOOD,
    NUMBERS,
    OUTPUT_TYPES,
    PROMPT_TYPES,
    ROWS,
    Row,
    wrong_types,
)
from tests.protocols.messages.reader import COUNT, post

ALL = ROWS + wrong_types(PROMPT_TYPES) + wrong_types(OUTPUT_TYPES)


def name_of(row: Row) -> str:
    return f"{row[1]}-{row[2]}"[:60]


def refused(path: str, complaint: str) -> dict[str, Any]:
    return {
        "type": "error",
        "error": {"type": "invalid_request_error", "message": f"{path} {complaint}"},
        "request_id": "req_0001",
    }


@pytest.mark.parametrize("row", ALL, ids=name_of)
async def test_a_bad_value_is_refused_by_name(row: Row) -> None:
    change, path, complaint = row
    service = ScriptedService()
    exchange = await post({**GOOD, **change}, service)
    assert (exchange.status, exchange.json) == (400, refused(path, complaint))
    assert not service.asks


@pytest.mark.parametrize("row", ROWS, ids=name_of)
async def test_a_stream_is_refused_just_the_same(row: Row) -> None:
    change, path, complaint = row
    exchange = await post({**GOOD, "stream": True, **change})
    assert (exchange.status, exchange.streamed) == (400, False)
    assert exchange.json == refused(path, complaint)


def of_the_prompt(row: Row) -> bool:
    return row not in NUMBERS and row[2] != "must be less than max_tokens"


@pytest.mark.parametrize(
    "row", [row for row in ROWS if of_the_prompt(row)] + wrong_types(PROMPT_TYPES), ids=name_of
)
async def test_a_count_refuses_what_a_generation_refuses(row: Row) -> None:
    change, path, complaint = row
    service = ScriptedService()
    exchange = await post({**GOOD, **change}, service, COUNT)
    assert (exchange.status, exchange.json) == (400, refused(path, complaint))
    assert not service.counted


def test_there_are_more_than_two_hundred_rows_and_no_two_alike() -> None:
    rows = [repr(row) for row in ALL]
    assert len(ROWS) > 200 and len(set(rows)) == len(rows)


def test_every_plain_field_is_in_the_tables_of_types() -> None:
    anything = {"output_format", "container"}
    assert {field.name for field in attrs.fields(Prompt)} == set(PROMPT_TYPES) | anything
    assert {field.name for field in attrs.fields(Output)} == set(OUTPUT_TYPES)


@pytest.mark.parametrize("field", ["model", "messages"])
async def test_a_required_field_must_be_there(field: str) -> None:
    body = {name: value for name, value in GOOD.items() if name != field}
    for path in ("/v1/messages", COUNT):
        assert (await post(body, path=path)).json == refused(field, "is required")


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'"x"', b"5", b"\xff", b'{"model":'])
async def test_a_body_that_is_no_json_object_is_refused(body: bytes) -> None:
    exchange = await post(body)
    assert exchange.status == 400
    assert set(exchange.json) == {"type", "error", "request_id"}
    assert exchange.json["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
async def test_a_number_that_is_not_finite_never_reaches_the_engine(number: str) -> None:
    body = b'{"model":"m","messages":[{"role":"user","content":"x"}],"temperature":%s}' % number.encode()
    service = ScriptedService()
    exchange = await post(body, service)
    assert exchange.status == 400 and "temperature" in exchange.json["error"]["message"]
    assert not service.asks


@pytest.mark.parametrize("body", [b'{"x":' + b"[" * 100_000, b"{" * 500_000])
async def test_a_deep_body_is_refused_in_the_endpoints_shape(body: bytes) -> None:
    exchange = await post(body)
    assert exchange.status == 400 and exchange.json["request_id"] == "req_0001"


async def test_the_first_fault_in_field_order_is_told() -> None:
    body = {"top_k": "x", "tools": 7, "messages": [{"role": "user"}], "model": "m"}
    assert (await post(body)).json == refused("messages[0].content", "is required")
