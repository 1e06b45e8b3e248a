"""Response objects and their event streams: one truth in two forms."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer.engine.job import Finish
from ninfer.faults import Fault, Kind
from ninfer.output.deltas import ParsedCall
from ninfer.prompt.conversation import Json
from ninfer.protocols.responses.answer import Answer
from ninfer.protocols.responses.tools import Names
from ninfer.protocols.service import Delta, GenerationFailed, PromptProgress, ToolCallsDelta
from tests.protocols.fakes import (
    RecordingExchange,
    Wait,
    answer,
    call,
    content,
    counting_mint,
    failing,
    parse_sse,
    reasoning,
    timings,
)
from tests.protocols.responses.desk import LOOK, check_stream, desk

Script = list[Delta | Wait]
NAMESPACE = {"type": "namespace", "name": "ns", "description": "x", "tools": [LOOK]}


def calls(*made: ParsedCall) -> ToolCallsDelta:
    return ToolCallsDelta(made, timings(3))


async def whole(script: Script, **change: Any) -> Any:
    exchange = await desk(script).create(**change)
    assert exchange.status == 200 and not exchange.streamed
    return exchange.json


async def stream(script: Script, **change: Any) -> RecordingExchange:
    exchange = await desk(script).create(stream=True, **change)
    assert exchange.ended
    return exchange


FULL = answer(
    reasoning("Hm"),
    reasoning("."),
    content("Hel"),
    content("lo"),
    calls(call("look", zeta=1, alpha=[True, "ü"]), call("look")),
    tokens=12,
    prompt=42,
    cached=17,
    reasoning_tokens=5,
)


# The object


async def test_a_whole_answer_has_every_member() -> None:
    body = await whole(FULL, instructions="Be brief.", max_output_tokens=50, temperature=0.5, tools=[LOOK])
    assert body == {
        "id": "resp_0000000000000001",
        "object": "response",
        "created_at": 1_700_000_000,
        "completed_at": 1_700_000_000,
        "status": "completed",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": "Be brief.",
        "max_output_tokens": 50,
        "max_tool_calls": None,
        "metadata": {},
        "model": "tiny",
        "output": [
            {
                "id": "rs_0000000000000003",
                "type": "reasoning",
                "summary": [],
                "content": [{"type": "reasoning_text", "text": "Hm."}],
                "status": "completed",
            },
            {
                "id": "msg_0000000000000004",
                "type": "message",
                "status": "completed",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "Hello", "annotations": [], "logprobs": []}],
            },
            {
                "id": "fc_0000000000000005",
                "type": "function_call",
                "status": "completed",
                "call_id": "call_0000000000000006",
                "name": "look",
                "arguments": '{"zeta":1,"alpha":[true,"ü"]}',
            },
            {
                "id": "fc_0000000000000007",
                "type": "function_call",
                "status": "completed",
                "call_id": "call_0000000000000008",
                "name": "look",
                "arguments": "{}",
            },
        ],
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "prompt_cache_key": None,
        "reasoning": {"effort": None, "summary": None},
        "safety_identifier": None,
        "service_tier": "default",
        "store": True,
        "temperature": 0.5,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [LOOK],
        "top_logprobs": 0,
        "top_p": None,
        "truncation": "disabled",
        "usage": {
            "input_tokens": 42,
            "input_tokens_details": {"cached_tokens": 17},
            "output_tokens": 12,
            "output_tokens_details": {"reasoning_tokens": 5},
            "total_tokens": 54,
        },
        "user": None,
    }


async def test_the_request_is_told_again() -> None:
    told = {
        "metadata": {"a": "b"},
        "max_tool_calls": 3,
        "user": "u",
        "safety_identifier": "s",
        "prompt_cache_key": "k",
        "top_p": 0.25,
        "store": False,
        "tools": [LOOK, NAMESPACE],
        "tool_choice": {
            "type": "allowed_tools",
            "mode": "auto",
            "tools": [{"type": "function", "namespace": "ns", "name": "look"}],
        },
    }
    body = await whole(answer(content("x")), **told, service_tier="auto", reasoning={"effort": "low"})
    assert {name: body[name] for name in told} == told
    assert (body["service_tier"], body["reasoning"]) == ("default", {"effort": "low", "summary": None})


@pytest.mark.parametrize("wish", ["auto", "concise", "detailed"])
async def test_a_wish_for_a_summary_is_answered_with_the_raw_text_and_an_empty_one(wish: str) -> None:
    script = answer(reasoning("Hm."), content("x"))
    body = await whole(script, reasoning={"effort": "low", "summary": wish})
    assert body["reasoning"] == {"effort": "low", "summary": None}
    thought = body["output"][0]
    assert (thought["type"], thought["summary"]) == ("reasoning", [])
    assert thought["content"] == [{"type": "reasoning_text", "text": "Hm."}]


async def test_an_omitted_limit_stays_null_and_zero_is_zero() -> None:
    assert (await whole(answer(content("x"))))["max_output_tokens"] is None
    script = answer(finish=Finish.OUTPUT_LIMIT, tokens=0)
    body = await whole(script, max_output_tokens=0)
    assert (body["max_output_tokens"], body["status"], body["output"]) == (0, "incomplete", [])
    assert body["usage"]["output_tokens"] == 0


@pytest.mark.parametrize(
    ("finish", "status", "reason", "event"),
    [
        (Finish.STOP_TOKEN, "completed", None, "completed"),
        (Finish.STOP_STRING, "completed", None, "completed"),
        (Finish.OUTPUT_LIMIT, "incomplete", "max_output_tokens", "incomplete"),
        (Finish.CONTEXT, "incomplete", "max_output_tokens", "incomplete"),
        (Finish.CANCELLED, "cancelled", None, "incomplete"),
    ],
)
async def test_a_finish_has_one_status_in_both_forms(
    finish: Finish, status: str, reason: str | None, event: str
) -> None:
    script = answer(reasoning("Hm."), content("Hello"), finish=finish)
    body, exchange = await whole(script), await stream(script)
    assert body["status"] == status
    assert (body["incomplete_details"] or {}).get("reason") == reason
    assert (body["completed_at"] is not None) is (status == "completed")
    assert [item["status"] for item in body["output"]] == [
        "completed",
        "completed" if status == "completed" else "incomplete",
    ]
    assert exchange.events[-1].name == f"response.{event}"


async def test_a_limit_while_thinking_invents_no_message() -> None:
    script = answer(reasoning("Hm"), finish=Finish.OUTPUT_LIMIT, tokens=1, reasoning_tokens=1)
    body = await whole(script, max_output_tokens=1)
    assert [item["type"] for item in body["output"]] == ["reasoning"]
    assert (body["status"], body["completed_at"]) == ("incomplete", None)
    assert body["incomplete_details"] == {"reason": "max_output_tokens"}
    assert body["usage"]["output_tokens_details"] == {"reasoning_tokens": 1}


@pytest.mark.parametrize("pieces", [[], [reasoning("Hm.")]])
async def test_a_completed_answer_without_text_is_an_empty_message(pieces: list[Delta]) -> None:
    for body in (await whole(answer(*pieces)), check_stream((await stream(answer(*pieces))).events)):
        assert body["output"][-1]["type"] == "message"
        assert body["output"][-1]["content"][0]["text"] == ""


async def test_calls_of_an_incomplete_answer_are_whole() -> None:
    body = await whole(answer(content("x"), calls(call("look")), finish=Finish.OUTPUT_LIMIT), tools=[LOOK])
    assert (body["status"], [item["status"] for item in body["output"]]) == (
        "incomplete",
        ["completed", "completed"],
    )


async def test_a_namespaced_call_is_told_with_its_namespace_in_both_forms() -> None:
    script = answer(calls(call("ns__look", at="x"), call("look")))
    tools = [NAMESPACE, LOOK]
    exchange = await stream(script, tools=tools)
    added = [event.json["item"] for event in exchange.events if event.name.endswith("item.added")]
    for items in (
        (await whole(script, tools=tools))["output"],
        check_stream(exchange.events)["output"],
        added,
    ):
        assert [(item.get("namespace"), item["name"]) for item in items] == [("ns", "look"), (None, "look")]


# The stream


async def test_a_stream_says_everything_in_order() -> None:
    exchange = await stream(FULL, tools=[LOOK])
    names = [event.name.removeprefix("response.") for event in exchange.events]
    text = ["content_part.added", "{0}.delta", "{0}.delta", "{0}.done", "content_part.done"]

    def life(kind: str) -> list[str]:
        return ["output_item.added", *[step.format(kind) for step in text], "output_item.done"]

    arguments = ["function_call_arguments.delta", "function_call_arguments.done"]
    function = ["output_item.added", *arguments, "output_item.done"]
    assert names == [
        "created",
        "in_progress",
        *life("reasoning_text"),
        *life("output_text"),
        *function,
        *function,
        "completed",
    ]
    assert b"[DONE]" not in b"".join(exchange.frames)
    check_stream(exchange.events)


async def test_a_text_event_has_every_member() -> None:
    exchange = await stream(answer(content("Hi")))
    place = {"item_id": "msg_0000000000000003", "output_index": 0, "content_index": 0}
    part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    assert [event.json for event in exchange.events[3:7]] == [
        {"type": "response.content_part.added", "sequence_number": 3, **place, "part": part},
        {
            "type": "response.output_text.delta",
            "sequence_number": 4,
            **place,
            "delta": "Hi",
            "logprobs": [],
        },
        {"type": "response.output_text.done", "sequence_number": 5, **place, "text": "Hi", "logprobs": []},
        {
            "type": "response.content_part.done",
            "sequence_number": 6,
            **place,
            "part": {**part, "text": "Hi"},
        },
    ]


async def test_each_frame_is_exactly_one_event() -> None:
    script = answer(reasoning("a\n\ndata: x\r\revent: y"), content("b\n\n\u2028: c\0"))
    exchange = await stream(script)
    assert all(len(list(parse_sse(frame))) == 1 for frame in exchange.frames)
    assert check_stream(exchange.events)["output"][1]["content"][0]["text"] == "b\n\n\u2028: c\0"


async def test_progress_is_never_told() -> None:
    progress = PromptProgress(10, 0, 5, 1.0)
    script = answer(content("x"))
    shown = await stream([script[0], progress, *script[1:]])
    assert b"".join(shown.frames) == b"".join((await stream(script)).frames)


async def test_the_stored_object_is_the_terminal_object() -> None:
    here = desk(FULL)
    exchange = await here.create(stream=True, tools=[LOOK])
    terminal = check_stream(exchange.events)
    assert (await here.on("GET", terminal["id"])).json == terminal
    body = (await here.create(tools=[LOOK])).json
    assert (await here.on("GET", body["id"])).json == body


# Failures


@pytest.mark.parametrize(
    ("kind", "code", "status"),
    [
        (Kind.INTERNAL, "engine_failed", 500),
        (Kind.QUEUE_TIMEOUT, "request_queue_timeout", 503),
        (Kind.OVERLOADED, "server_overloaded", 429),
        (Kind.INVALID, "context_length_exceeded", 400),
    ],
)
async def test_a_failure_is_a_reply_before_the_stream_and_an_event_within(
    kind: Kind, code: str, status: int
) -> None:
    fault = Fault(kind, "no good", code)
    script = failing(fault, reasoning("Hm"), content("He"))
    reply = await desk(script).create()
    assert (reply.status, reply.json["error"]["code"]) == (status, code)
    terminal = check_stream((await desk(script).create(stream=True)).events)
    assert (terminal["status"], terminal["error"]) == ("failed", {"code": code, "message": "no good"})
    assert [item["status"] for item in terminal["output"]] == ["completed", "incomplete"]
    assert terminal["usage"] is None


async def test_a_refusal_before_the_first_frame_is_a_plain_reply() -> None:
    here = desk()
    here.service.refusal = Fault(Kind.OVERLOADED, "full")
    exchange = await here.create(stream=True)
    assert (exchange.status, exchange.json["error"]["code"]) == (429, "server_overloaded")


async def test_a_failed_answer_is_not_stored() -> None:
    here = desk(failing(Fault(Kind.INTERNAL, "no"), content("x")))
    terminal = check_stream((await here.create(stream=True)).events)
    assert (await here.on("GET", terminal["id"])).status == 404


async def test_vision_is_refused_where_it_stands() -> None:
    here = desk()
    here.service.refusal = Fault(Kind.INVALID, "no vision", "vision_disabled", "input[0].content[0]")
    error = (await here.create()).json["error"]
    assert (error["code"], error["param"]) == ("vision_disabled", "input[0].content[0]")


# Any deltas

VALUES: st.SearchStrategy[Json] = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
CALLS = st.builds(
    ParsedCall,
    st.sampled_from(["look", "ns__look"]),
    st.dictionaries(st.text(min_size=1, max_size=4), VALUES, max_size=3),
)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6)


@st.composite
def scripts(draw: st.DrawFn) -> Script:
    pieces: Script = [reasoning(text) for text in draw(st.lists(TEXTS, max_size=4))]
    pieces += [content(text) for text in draw(st.lists(TEXTS, max_size=4))]
    made = draw(st.lists(CALLS, max_size=3))
    if made:
        pieces.append(calls(*made))
    cached = draw(st.integers(0, 10))
    script = answer(*pieces, finish=draw(st.sampled_from(list(Finish))), cached=cached)
    if draw(st.booleans()):
        cut = draw(st.integers(1, len(script) - 1))
        script[cut:] = [GenerationFailed(Fault(Kind.INTERNAL, "no", "engine_failed"))]
    return script


def begun() -> dict[str, Any]:
    members = ("id", "completed_at", "usage", "incomplete_details", "error")
    return {**dict.fromkeys(members), "status": "in_progress", "output": []}


def make_answer() -> Answer:
    names = Names()
    for key in (None, "look"), ("ns", "look"):
        names.of(key)
    return Answer(begun(), names.origin, lambda response: None, counting_mint(), lambda: 5.0)


@given(scripts())
def test_any_deltas_make_a_sound_stream_that_adds_up_to_the_whole_answer(script: Script) -> None:
    made, raw = make_answer(), b""
    for delta in script:
        assert not isinstance(delta, Wait)
        if isinstance(delta, GenerationFailed):
            raw += made.failure(delta.fault)
        else:
            raw += b"".join(made.frames(delta))
    terminal = check_stream(list(parse_sse(raw)))
    assert terminal == made.response or terminal["status"] == "failed"
    again = make_answer()
    for delta in script:
        if not isinstance(delta, Wait):
            list(again.events(delta))
    assert again.response == made.response


@given(scripts(), st.data())
def test_a_failure_at_any_point_ends_a_sound_stream(script: Script, data: st.DataObject) -> None:
    made = make_answer()
    cut = data.draw(st.integers(0, len(script) - 1))
    raw = b"".join(b"".join(made.frames(delta)) for delta in script[:cut] if not isinstance(delta, Wait))
    raw += made.failure(Fault(Kind.INTERNAL, "no"))
    terminal = check_stream(list(parse_sse(raw)))
    assert terminal["error"] == {"code": "internal_error", "message": "no"}
