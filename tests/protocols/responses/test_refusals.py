"""Every malformed or impossible Responses request is told its field, its code and what is wrong."""

from __future__ import annotations

from typing import Any, get_args

import attrs
import pytest

from ninfer.protocols.astrai import astrai
from ninfer.protocols.fields import wire_fields
from ninfer.protocols.responses.schema import CountRequest, CreateRequest
from tests.protocols.fakes import ScriptedService
from tests.protocols.responses.cases import ROWS, TYPES, Row, wrong_types
from tests.protocols.responses.desk import GOOD, Desk, desk, user

COUNTED = set(attrs.fields_dict(CountRequest))


def name(row: Row) -> str:
    return f"{row[1]}-{row[2]}"[:60]


@pytest.mark.parametrize("row", ROWS + wrong_types(), ids=name)
async def test_a_bad_value_is_refused_by_name(row: Row) -> None:
    change, param, code, complaint = row
    service = ScriptedService()
    exchange = await Desk(service).post({**GOOD, **change})
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


@pytest.mark.parametrize("row", ROWS, ids=name)
async def test_a_stream_is_refused_just_the_same(row: Row) -> None:
    change, param, code, _ = row
    exchange = await desk().post({**GOOD, "stream": True, **change})
    assert (exchange.status, exchange.streamed) == (400, False)
    assert (exchange.json["error"]["param"], exchange.json["error"]["code"]) == (param, code)


@pytest.mark.parametrize("row", [row for row in ROWS if set(row[0]) <= COUNTED], ids=name)
async def test_a_count_is_refused_just_the_same(row: Row) -> None:
    change, param, code, complaint = row
    exchange = await desk().post({**GOOD, **change}, "/v1/responses/input_tokens")
    assert exchange.status == 400
    error = exchange.json["error"]
    assert (error["message"], error["param"], error["code"]) == (f"{param} {complaint}", param, code)


@pytest.mark.parametrize("field", sorted(set(attrs.fields_dict(CreateRequest)) - COUNTED - {"UNKNOWN"}))
async def test_a_count_takes_only_what_decides_the_prompt(field: str) -> None:
    exchange = await desk().post({**GOOD, field: None}, "/v1/responses/input_tokens")
    assert (exchange.status, exchange.json["error"]["code"]) == (400, "unknown_parameter")


def test_there_are_more_than_two_hundred_rows_and_no_two_alike() -> None:
    rows = [repr(row) for row in ROWS + wrong_types()]
    assert len(ROWS) > 200 and len(set(rows)) == len(rows)


def test_every_plain_field_is_in_the_table_of_types() -> None:
    anything = {
        field.name
        for field in wire_fields(CreateRequest)
        if any("object" in str(a) for a in get_args(field.type))
    }
    assert {field.name for field in attrs.fields(CreateRequest)} - set(TYPES) <= anything


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'"x"', b"5", b"\xff", b'{"model":'])
async def test_a_body_that_is_no_json_object_has_no_param(body: bytes) -> None:
    exchange = await desk().post(body)
    assert exchange.status == 400
    assert exchange.json["error"]["param"] is None
    assert exchange.json["error"]["type"] == "invalid_request_error"


async def test_the_model_must_be_there_and_be_the_served_one() -> None:
    assert (await desk().post({"input": "x"})).json["error"]["param"] == "model"
    for path in "/v1/responses", "/v1/responses/input_tokens":
        exchange = await desk().post({**GOOD, "model": "gpt-5"}, path)
        error = exchange.json["error"]
        assert (exchange.status, error["param"], error["code"]) == (404, "model", "model_not_found")


async def test_the_shape_is_judged_before_the_model_and_the_model_before_the_parent() -> None:
    parent = {"previous_response_id": "resp_none"}
    first = await desk().post({**GOOD, **parent, "model": "gpt-5", "temperature": "hot"})
    assert first.json["error"]["param"] == "temperature"
    second = await desk().post({**GOOD, **parent, "model": "gpt-5"})
    assert second.json["error"]["param"] == "model"
    third = await desk().post({**GOOD, **parent, "input": [{"role": "user", "content": [user()]}]})
    assert third.json["error"]["param"] == "input[0].content[0].type"


async def test_the_first_fault_in_field_order_is_told() -> None:
    body: dict[str, Any] = {"top_p": "x", "background": True, "input": [{}], "model": "tiny", "what": 1}
    assert (await desk().post(body)).json["error"]["param"] == "input[0].role"


async def test_unknown_members_below_the_top_are_ignored() -> None:
    here = desk()
    extra: dict[str, Any] = {"internal_chat_message_metadata_passthrough": {"a": 1}}
    assert (
        await here.create(input=[user(**extra)], text={"format": {"type": "text"}, "x": 1})
    ).status == 200


async def test_another_dialect_shapes_what_is_wrong_and_what_is_missing_apart() -> None:
    here = Desk(dialect=astrai(lambda text: None))
    wrong = await here.create(temperature="hot")
    assert (wrong.status, wrong.json["detail"][0]["loc"]) == (422, ["body", "temperature"])
    missing = await here.create(previous_response_id="resp_x")
    assert (missing.status, missing.json) == (404, {"detail": "no response of this id is stored"})
    assert (await here.create(model="any")).json["model"] == "any"
