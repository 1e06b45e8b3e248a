"""The Messages wire: aggregate, blocks and events, stop reasons, usage, errors inside a stream."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from ninfer.engine.job import Finish
from ninfer.faults import Fault, Kind
from ninfer.output.deltas import ParsedCall
from ninfer.prompt.conversation import Json
from ninfer.protocols.service import Delta, PromptProgress, ToolCallsDelta
from tests.protocols.fakes import (
    RecordingExchange,
    ScriptedService,
    Wait,
    answer,
    call,
    content,
    failing,
    reasoning,
    timings,
)
from tests.protocols.messages.cases import GOOD
from tests.protocols.messages.reader import COUNT, Stream, post, read_stream, unsigned

Script = list[Delta | Wait]


async def run(script: Script, **change: Any) -> RecordingExchange:
    service = ScriptedService([script])
    exchange = await post({**GOOD, **change}, service)
    assert service.open_now == 0
    return exchange


async def stream(script: Script, **change: Any) -> Stream:
    exchange = await run(script, stream=True, **change)
    assert exchange.ended
    return read_stream(exchange.events)


async def whole(script: Script, **change: Any) -> Any:
    exchange = await run(script, **change)
    assert exchange.status == 200 and not exchange.streamed
    return exchange.json


def calls(*made: ParsedCall) -> ToolCallsDelta:
    return ToolCallsDelta(made, timings(3))


# Aggregate


async def test_a_whole_message_has_every_member() -> None:
    script = answer(reasoning("Hm."), content("Hello"), calls(call("look", z=1, a="ü")), tokens=5, cached=4)
    assert await whole(script) == {
        "id": "msg_0000000000000001",
        "type": "message",
        "role": "assistant",
        "model": "any-label",
        "content": [
            {"type": "thinking", "thinking": "Hm.", "signature": "sig_0000000000000002"},
            {"type": "text", "text": "Hello"},
            {
                "type": "tool_use",
                "id": "toolu_0000000000000003",
                "name": "look",
                "input": {"z": 1, "a": "ü"},
            },
        ],
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 6,
            "cache_creation_input_tokens": None,
            "cache_read_input_tokens": 4,
            "output_tokens": 5,
        },
    }


@pytest.mark.parametrize(
    "script, kinds",
    [
        (answer(), ["text"]),
        (answer(content("x")), ["text"]),
        (answer(reasoning("x"), finish=Finish.OUTPUT_LIMIT), ["thinking"]),
        (answer(calls(call("look"))), ["tool_use"]),
        (answer(reasoning("x"), calls(call("a"), call("b"))), ["thinking", "tool_use", "tool_use"]),
    ],
)
async def test_there_is_at_least_one_block_and_none_that_is_empty_beside_others(
    script: Script, kinds: list[str]
) -> None:
    assert [block["type"] for block in (await whole(script))["content"]] == kinds
    assert [block["type"] for block in (await stream(script)).message["content"]] == kinds


@pytest.mark.parametrize(
    "finish, stop, made, reason, sequence",
    [
        (Finish.STOP_TOKEN, None, [], "end_turn", None),
        (Finish.CANCELLED, None, [], "end_turn", None),
        (Finish.OUTPUT_LIMIT, None, [], "max_tokens", None),
        (Finish.CONTEXT, None, [], "model_context_window_exceeded", None),
        (Finish.STOP_STRING, "END", [], "stop_sequence", "END"),
        (Finish.OUTPUT_LIMIT, "END", [], "stop_sequence", "END"),
        (Finish.STOP_TOKEN, None, [call("look")], "tool_use", None),
        (Finish.OUTPUT_LIMIT, None, [call("look")], "tool_use", None),
        (Finish.CONTEXT, None, [call("look")], "tool_use", None),
        (Finish.STOP_STRING, "END", [call("look")], "tool_use", None),
    ],
)
async def test_a_stop_has_one_reason_in_both_forms(
    finish: Finish, stop: str | None, made: list[ParsedCall], reason: str, sequence: str | None
) -> None:
    script = answer(content("x"), *([calls(*made)] if made else []), finish=finish, stop_string=stop)
    for message in (await whole(script), (await stream(script)).message):
        assert (message["stop_reason"], message["stop_sequence"]) == (reason, sequence)


# Streams


async def test_a_stream_owns_the_life_of_every_block() -> None:
    script = answer(
        reasoning("H"),
        reasoning("m."),
        content("I "),
        content("look."),
        calls(call("look", a=1), call("go")),
    )
    exchange = await run(script, stream=True)
    told = [(event.name, event.json.get("index"), event.json.get("delta")) for event in exchange.events]
    assert told == [
        ("message_start", None, None),
        ("content_block_start", 0, None),
        ("content_block_delta", 0, {"type": "thinking_delta", "thinking": "H"}),
        ("content_block_delta", 0, {"type": "thinking_delta", "thinking": "m."}),
        ("content_block_delta", 0, {"type": "signature_delta", "signature": "sig_0000000000000002"}),
        ("content_block_stop", 0, None),
        ("content_block_start", 1, None),
        ("content_block_delta", 1, {"type": "text_delta", "text": "I "}),
        ("content_block_delta", 1, {"type": "text_delta", "text": "look."}),
        ("content_block_stop", 1, None),
        ("content_block_start", 2, None),
        ("content_block_delta", 2, {"type": "input_json_delta", "partial_json": '{"a":1}'}),
        ("content_block_stop", 2, None),
        ("content_block_start", 3, None),
        ("content_block_delta", 3, {"type": "input_json_delta", "partial_json": "{}"}),
        ("content_block_stop", 3, None),
        ("message_delta", None, {"stop_reason": "tool_use", "stop_sequence": None}),
        ("message_stop", None, None),
    ]


async def test_a_limit_while_thinking_ends_the_stream_properly() -> None:
    script = answer(reasoning("Hm"), reasoning(" hm"), finish=Finish.OUTPUT_LIMIT)
    exchange = await run(script, stream=True)
    names = [event.name for event in exchange.events]
    assert names.count("content_block_start") == names.count("content_block_stop") == 1
    kinds = [
        event.json["delta"]["type"] for event in exchange.events if event.name == "content_block_delta"
    ]
    assert kinds == ["thinking_delta", "thinking_delta", "signature_delta"]
    assert names[-2:] == ["message_delta", "message_stop"]
    assert read_stream(exchange.events).message["stop_reason"] == "max_tokens"


async def test_an_empty_answer_streams_one_empty_text_block() -> None:
    out = await stream(answer(tokens=1))
    assert out.message["content"] == [{"type": "text", "text": ""}]


async def test_the_split_of_the_prompt_is_exact_from_the_start() -> None:
    out = await stream(answer(content("x"), prompt=100, cached=64, tokens=7))
    assert out.started == {
        "input_tokens": 36,
        "cache_creation_input_tokens": None,
        "cache_read_input_tokens": 64,
        "output_tokens": 0,
    }
    assert out.message["usage"] == {**out.started, "output_tokens": 7}


async def test_each_frame_is_exactly_one_event_with_its_name() -> None:
    nasty = "a\nb\r\nc\rd\u2028e\u2029f\x00g\x85h\x0b\x0c"
    exchange = await run(answer(content(nasty)), stream=True)
    assert len(exchange.frames) == len(exchange.events)
    assert read_stream(exchange.events).message["content"][0]["text"] == nasty
    assert all(frame.startswith(b"event: ") and frame.endswith(b"\n\n") for frame in exchange.frames)


async def test_progress_of_the_prompt_is_not_told() -> None:
    steps: Script = [PromptProgress(10, 0, 10, 1.0), content("x")]
    assert await stream(answer(*steps)) == await stream(answer(content("x"), tokens=3))


async def test_frames_leave_as_they_are_made(autojump_clock: object) -> None:
    exchange = await run(answer(Wait(3), reasoning("a"), Wait(4), content("b")), stream=True)
    assert [round(at - exchange.times[0]) for at in exchange.times] == [0, 3, 3, 7, 7, 7, 7, 7, 7, 7]


# Failures

LOST = Fault(Kind.INTERNAL, "the device was lost")
KINDS = [
    (Kind.OVERLOADED, 529, "overloaded_error"),
    (Kind.QUEUE_TIMEOUT, 504, "timeout_error"),
    (Kind.FETCH_TIMEOUT, 504, "timeout_error"),
    (Kind.FETCH_FAILED, 502, "api_error"),
    (Kind.UNAVAILABLE, 503, "api_error"),
    (Kind.INTERNAL, 500, "api_error"),
    (Kind.INVALID, 400, "invalid_request_error"),
]


def told(kind: str, message: str) -> dict[str, Any]:
    error = {"type": kind, "message": message}
    return {"type": "error", "error": error, "request_id": "req_0001"}


@pytest.mark.parametrize("kind, status, name", KINDS)
@pytest.mark.parametrize("streamed", [True, False])
async def test_a_refusal_before_the_first_event_is_a_plain_reply(
    streamed: bool, kind: Kind, status: int, name: str
) -> None:
    service = ScriptedService(refusal=Fault(kind, "no"))
    exchange = await post({**GOOD, "stream": streamed}, service)
    assert (exchange.status, exchange.json, exchange.frames) == (status, told(name, "no"), [])


@pytest.mark.parametrize("kind, status, name", KINDS)
async def test_a_count_is_refused_in_the_same_shape(kind: Kind, status: int, name: str) -> None:
    exchange = await post(GOOD, ScriptedService(refusal=Fault(kind, "no")), COUNT)
    assert (exchange.status, exchange.json) == (status, told(name, "no"))


async def test_a_failure_in_a_whole_answer_is_an_error_reply() -> None:
    exchange = await run(failing(LOST, content("x")))
    assert (exchange.status, exchange.json) == (500, told("api_error", LOST.message))


async def test_a_failure_in_a_stream_is_one_error_event_and_the_end() -> None:
    exchange = await run(failing(LOST, content("Hel")), stream=True)
    assert exchange.events[-1].name == "error" and exchange.ended and exchange.answer is None
    assert read_stream(exchange.events).error == told("api_error", LOST.message)


async def test_a_failure_before_admission_is_a_plain_reply() -> None:
    exchange = await run(failing(Fault(Kind.QUEUE_TIMEOUT, "too late"))[1:], stream=True)
    assert (exchange.status, exchange.frames) == (504, [])


async def test_a_peer_that_leaves_gives_the_seat_back() -> None:
    from ninfer.protocols.messages.handler import messages_routes
    from tests.protocols.fakes import kit, request

    service = ScriptedService([answer(content("a"), content("b"))])
    exchange = RecordingExchange(breaks_after=2)
    with pytest.raises(trio.BrokenResourceError):
        await messages_routes(kit(service))[0].handler(request({**GOOD, "stream": True}), exchange)
    assert service.open_now == 0 and len(exchange.frames) == 2


# Any sequence of deltas is a whole stream, and both forms say the same

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6)
JSON: st.SearchStrategy[Json] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
CALLS = st.builds(ParsedCall, st.sampled_from(["look", "go"]), st.dictionaries(TEXT, JSON, max_size=4))
DELTAS = st.one_of(
    st.builds(reasoning, TEXT),
    st.builds(content, TEXT),
    st.builds(lambda made: calls(*made), st.lists(CALLS, min_size=1, max_size=3)),
)


@given(st.lists(DELTAS, max_size=12), st.sampled_from(Finish), st.booleans())
async def test_any_sequence_of_deltas_is_a_whole_stream(
    deltas: list[Delta], finish: Finish, fails: bool
) -> None:
    script = failing(LOST, *deltas) if fails else answer(*deltas, finish=finish)
    out = await stream(script)
    assert (out.error is not None) == fails
    kinds = [kind for kind, _ in itertools.groupby(deltas, type) if kind is not ToolCallsDelta]
    blocks = [block["type"] for block in out.message["content"]]
    if not fails and deltas:
        assert len([kind for kind in blocks if kind != "tool_use"]) == len(kinds)


@given(
    st.lists(TEXT),
    st.lists(TEXT),
    st.lists(CALLS, max_size=3),
    st.sampled_from(Finish),
    st.none() | TEXT,
    st.integers(0, 10),
)
async def test_a_stream_adds_up_to_the_whole_answer(
    thoughts: list[str],
    texts: list[str],
    made: list[ParsedCall],
    finish: Finish,
    stop: str | None,
    cached: int,
) -> None:
    pieces: Script = [*map(reasoning, thoughts), *map(content, texts)]
    pieces += [calls(*made)] if made else []
    script = answer(*pieces, finish=finish, stop_string=stop, cached=cached)
    body, out = await whole(script), await stream(script)
    assert unsigned(out.message) == unsigned(body)
    inputs = [block["input"] for block in out.message["content"] if block["type"] == "tool_use"]
    assert json.dumps(inputs) == json.dumps([dict(call.arguments) for call in made])


async def test_a_signature_stands_on_thinking_alone() -> None:
    script = answer(reasoning("a"), content("b"), calls(call("look")))
    for message in (await whole(script), (await stream(script)).message):
        assert ["signature" in block for block in message["content"]] == [True, False, False]
        assert message["content"][0]["signature"]
