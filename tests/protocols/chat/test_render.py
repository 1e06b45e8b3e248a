"""The Chat wire: aggregate, chunks, timings, usage, errors inside a stream."""

from __future__ import annotations

import json
from math import isfinite
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer.engine.job import Finish
from ninfer.faults import Fault, Kind
from ninfer.output.deltas import ParsedCall
from ninfer.prompt.conversation import Json
from ninfer.protocols.chat.handler import chat_routes
from ninfer.protocols.chat.timings import timings_object
from ninfer.protocols.service import (
    ContentDelta,
    Delta,
    PromptProgress,
    Timings,
    ToolCallsDelta,
)
from tests.protocols.chat.cases import GOOD
from tests.protocols.fakes import (
    ChatStream,
    RecordingExchange,
    ScriptedService,
    Wait,
    answer,
    call,
    check_chat_stream,
    content,
    failing,
    kit,
    reasoning,
    request,
    timings,
)

USAGE = {"stream_options": {"include_usage": True}}


async def run(script: list[Delta | Wait], **change: Any) -> RecordingExchange:
    exchange = RecordingExchange()
    service = ScriptedService([script])
    (route,) = chat_routes(kit(service))
    await route.handler(request({**GOOD, **change}), exchange)
    assert service.open_now == 0
    return exchange


async def stream(script: list[Delta | Wait], **change: Any) -> ChatStream:
    exchange = await run(script, stream=True, **change)
    assert exchange.ended
    return check_chat_stream(exchange.events, include_usage=bool(change.get("stream_options")))


async def whole(script: list[Delta | Wait], **change: Any) -> Any:
    exchange = await run(script, **change)
    assert exchange.status == 200 and not exchange.streamed
    return exchange.json


def calls(*made: ParsedCall) -> ToolCallsDelta:
    return ToolCallsDelta(made, timings(3))


# Aggregate


async def test_a_whole_answer_has_every_member() -> None:
    script = answer(reasoning("Hm."), content("Hello"), tokens=5, reasoning_tokens=2, cached=4)
    assert await whole(script) == {
        "id": "chatcmpl-0000000000000001",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "tiny",
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": "Hello",
                    "refusal": None,
                    "reasoning_content": "Hm.",
                },
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": 10,
            "completion_tokens": 5,
            "total_tokens": 15,
            "prompt_tokens_details": {"cached_tokens": 4},
            "completion_tokens_details": {"reasoning_tokens": 2},
        },
        "timings": {
            "cache_n": 4,
            "prompt_n": 6,
            "prompt_ms": 6.0,
            "prompt_per_token_ms": 1.0,
            "prompt_per_second": 1000.0,
            "predicted_n": 5,
            "predicted_ms": 40.0,
            "predicted_per_token_ms": 10.0,
            "predicted_per_second": 100.0,
        },
    }


async def test_reasoning_is_told_only_when_there_is_some() -> None:
    body = await whole(answer(content("Hello")))
    assert "reasoning_content" not in body["choices"][0]["message"]
    assert "tool_calls" not in body["choices"][0]["message"]


async def test_an_answer_that_is_all_thinking_has_empty_content() -> None:
    body = await whole(answer(reasoning("Hm."), finish=Finish.OUTPUT_LIMIT))
    assert body["choices"][0]["message"]["content"] == ""
    assert body["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    "finish, word",
    [
        (Finish.STOP_TOKEN, "stop"),
        (Finish.STOP_STRING, "stop"),
        (Finish.CANCELLED, "stop"),
        (Finish.OUTPUT_LIMIT, "length"),
        (Finish.CONTEXT, "length"),
    ],
)
async def test_a_finish_has_one_word_in_both_forms(finish: Finish, word: str) -> None:
    script = answer(content("x"), finish=finish)
    assert (await whole(script))["choices"][0]["finish_reason"] == word
    assert (await stream(script)).finish == word


@pytest.mark.parametrize("text", ["", "I look. "])
async def test_calls_have_one_shape_in_both_forms(text: str) -> None:
    made = [call("look", zeta=1, alpha={"b": "ü", "a": [True, None]}), call("stop")]
    script = answer(*([content(text)] if text else []), calls(*made))
    message = (await whole(script))["choices"][0]["message"]
    assert message["content"] == (text or None)
    assert message["tool_calls"] == [
        {
            "id": "call_0000000000000002",
            "type": "function",
            "function": {"name": "look", "arguments": '{"zeta":1,"alpha":{"b":"ü","a":[true,null]}}'},
        },
        {
            "id": "call_0000000000000003",
            "type": "function",
            "function": {"name": "stop", "arguments": "{}"},
        },
    ]
    streamed = await stream(script)
    assert streamed.calls == [{"index": i, **made} for i, made in enumerate(message["tool_calls"])]
    assert (streamed.finish, streamed.content) == ("tool_calls", text)


async def test_complete_calls_count_before_a_limit_that_was_reached() -> None:
    script = answer(calls(call("look")), finish=Finish.OUTPUT_LIMIT)
    assert (await stream(script)).finish == "tool_calls"


# Streams


async def test_a_stream_says_role_reasoning_content_finish_done() -> None:
    exchange = await run(answer(reasoning("Hm."), content("Hel"), content("lo")), stream=True)
    deltas = [event.json["choices"][0]["delta"] for event in exchange.events[:-1]]
    assert deltas == [
        {"role": "assistant", "content": ""},
        {"reasoning_content": "Hm."},
        {"content": "Hel"},
        {"content": "lo"},
        {},
    ]
    assert exchange.events[-1].data == "[DONE]"
    assert list(exchange.events[0].json) == ["id", "object", "created", "model", "choices"]


async def test_each_frame_is_exactly_one_event() -> None:
    nasty = "a\nb\r\nc\rd\u2028e\u2029f\x00g\x85h\x0b\x0c"
    exchange = await run(answer(content(nasty), reasoning_tokens=0), stream=True)
    assert len(exchange.frames) == len(exchange.events)
    assert check_chat_stream(exchange.events).content == nasty
    assert all(frame.startswith(b"data: ") and frame.endswith(b"\n\n") for frame in exchange.frames)


async def test_usage_comes_in_a_chunk_of_its_own_when_asked_for() -> None:
    exchange = await run(answer(content("x"), tokens=2, cached=3), stream=True, **USAGE)
    check_chat_stream(exchange.events, include_usage=True)
    last = exchange.events[-2].json
    assert last["choices"] == [] and last["timings"]["cache_n"] == 3
    assert last["usage"]["prompt_tokens_details"] == {"cached_tokens": 3}
    assert "timings" not in exchange.events[-3].json


async def test_without_usage_the_finish_chunk_carries_the_timings() -> None:
    exchange = await run(answer(content("x")), stream=True)
    assert exchange.events[-2].json["choices"][0]["finish_reason"] == "stop"
    assert exchange.events[-2].json["timings"]["predicted_n"] == 2


async def test_a_limit_while_thinking_ends_the_stream_properly() -> None:
    script = answer(reasoning("Hm"), reasoning(" hm"), finish=Finish.OUTPUT_LIMIT, reasoning_tokens=3)
    out = await stream(script, **USAGE)
    assert (out.finish, out.reasoning, out.content) == ("length", "Hm hm", "")
    assert out.usage and out.usage["completion_tokens_details"]["reasoning_tokens"] == 3


async def test_zero_tokens_are_a_whole_stream() -> None:
    script = answer(finish=Finish.OUTPUT_LIMIT, tokens=0)
    out = await stream(script, max_tokens=0, **USAGE)
    assert (out.finish, out.content) == ("length", "")
    assert out.usage and out.usage["completion_tokens"] == 0
    assert out.timings and all(isfinite(value) for value in out.timings.values())


async def test_timings_ride_on_visible_chunks_when_asked_for() -> None:
    pieces: list[Delta | Wait] = [reasoning("a", 1), content("b", 3), content("c", 4)]
    drafting = timings(5, draft_n=9, draft_n_accepted=6)
    exchange = await run(answer(*pieces, last=drafting), stream=True, timings_per_token=True)
    counts = [e.json.get("timings", {}).get("predicted_n") for e in exchange.events[:-1]]
    assert counts == [None, 1, 3, 4, 5]
    assert exchange.events[-2].json["timings"]["draft_n"] == 9


async def test_live_timings_never_tell_drafts() -> None:
    piece = ContentDelta("x", timings(2, draft_n=3, draft_n_accepted=1))
    exchange = await run(answer(piece), stream=True, timings_per_token=True)
    assert "draft_n" not in exchange.events[1].json["timings"]


async def test_timings_per_token_is_off_by_default_and_needs_a_stream() -> None:
    exchange = await run(answer(content("x")), stream=True)
    assert "timings" not in exchange.events[1].json
    assert (await whole(answer(content("x")), timings_per_token=True))["timings"]["predicted_n"] == 2


async def test_progress_follows_the_role_and_precedes_the_text() -> None:
    steps: list[Delta | Wait] = [PromptProgress(10, 4, done, 10.7 * done) for done in (4, 7, 10)]
    steps.append(content("x"))
    exchange = await run(answer(*steps, cached=4), stream=True, return_progress=True)
    out = check_chat_stream(exchange.events)
    assert out.progress == [
        {"total": 10, "cache": 4, "processed": 4, "time_ms": 42},
        {"total": 10, "cache": 4, "processed": 7, "time_ms": 74},
        {"total": 10, "cache": 4, "processed": 10, "time_ms": 107},
    ]
    assert exchange.events[1].json["choices"][0]["delta"] == {}


# Failures

LOST = Fault(Kind.INTERNAL, "the device was lost")


async def test_a_failure_in_a_whole_answer_is_an_error_reply() -> None:
    exchange = await run(failing(LOST, content("x")))
    assert exchange.status == 500
    assert exchange.json["error"] == {
        "message": "the device was lost",
        "type": "server_error",
        "param": None,
        "code": "internal_error",
    }


async def test_a_failure_in_a_stream_is_one_error_line_and_the_end() -> None:
    exchange = await run(failing(LOST, content("Hel")), stream=True)
    out = check_chat_stream(exchange.events)
    assert out.content == "Hel" and out.finish is None
    assert out.error and out.error["code"] == "internal_error"
    assert exchange.answer is None and exchange.ended


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize(
    "kind, status, code",
    [
        (Kind.OVERLOADED, 429, "server_overloaded"),
        (Kind.QUEUE_TIMEOUT, 503, "request_queue_timeout"),
        (Kind.UNAVAILABLE, 503, "service_unavailable"),
        (Kind.FETCH_FAILED, 502, "media_fetch_failed"),
        (Kind.FETCH_TIMEOUT, 504, "media_fetch_timeout"),
        (Kind.INTERNAL, 500, "internal_error"),
    ],
)
async def test_a_refusal_before_the_first_frame_is_a_plain_reply(
    streamed: bool, kind: Kind, status: int, code: str
) -> None:
    service = ScriptedService(refusal=Fault(kind, "no"))
    exchange = RecordingExchange()
    (route,) = chat_routes(kit(service))
    await route.handler(request({**GOOD, "stream": streamed}), exchange)
    assert (exchange.status, exchange.json["error"]["code"]) == (status, code)
    assert not exchange.frames


async def test_a_failure_before_admission_is_a_plain_reply() -> None:
    late = Fault(Kind.QUEUE_TIMEOUT, "too late")
    exchange = await run(failing(late)[1:], stream=True)
    assert (exchange.status, exchange.frames) == (503, [])


async def test_a_refusal_after_a_heartbeat_is_an_error_line() -> None:
    service = ScriptedService(refusal=Fault(Kind.QUEUE_TIMEOUT, "too late"))
    exchange = RecordingExchange(started=True)  # a heartbeat went out while the request waited
    (route,) = chat_routes(kit(service))
    await route.handler(request({**GOOD, "stream": True}), exchange)
    out = check_chat_stream(exchange.events)
    assert out.error and out.error["code"] == "request_queue_timeout"


async def test_vision_is_refused_where_it_stands() -> None:
    fault = Fault(Kind.INVALID, "no vision", "vision_disabled", "messages[0].content[0]")
    service = ScriptedService(refusal=fault)
    exchange = RecordingExchange()
    (route,) = chat_routes(kit(service))
    await route.handler(request(GOOD), exchange)
    assert exchange.status == 400
    assert exchange.json["error"]["param"] == "messages[0].content[0]"


async def test_a_peer_that_leaves_gives_the_seat_back() -> None:
    import trio

    service = ScriptedService([answer(content("a"), content("b"))])
    exchange = RecordingExchange(breaks_after=2)
    (route,) = chat_routes(kit(service))
    with pytest.raises(trio.BrokenResourceError):
        await route.handler(request({**GOOD, "stream": True}), exchange)
    assert service.open_now == 0 and len(exchange.frames) == 2


async def test_frames_leave_as_they_are_made(autojump_clock: object) -> None:
    script = answer(Wait(3), content("a"), Wait(4), content("b"))
    exchange = await run(script, stream=True)
    assert [round(at - exchange.times[0]) for at in exchange.times] == [0, 3, 7, 7, 7]


# Both forms say the same

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6)
JSON: st.SearchStrategy[Json] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
CALLS = st.builds(ParsedCall, st.sampled_from(["look", "go"]), st.dictionaries(TEXT, JSON, max_size=4))


@given(st.lists(TEXT), st.lists(TEXT), st.lists(CALLS, max_size=3), st.sampled_from(Finish), st.booleans())
async def test_a_stream_adds_up_to_the_whole_answer(
    thoughts: list[str], texts: list[str], made: list[ParsedCall], finish: Finish, usage: bool
) -> None:
    pieces: list[Delta | Wait] = [*map(reasoning, thoughts), *map(content, texts)]
    pieces += [ToolCallsDelta(tuple(made), timings(1))] if made else []
    script = answer(*pieces, finish=finish)
    body = await whole(script)
    out = await stream(script, **(USAGE if usage else {}))
    message = body["choices"][0]["message"]
    assert out.content == (message["content"] or "") and out.reasoning == message.get(
        "reasoning_content", ""
    )
    assert [c["function"] for c in out.calls] == [c["function"] for c in message.get("tool_calls", [])]
    assert out.finish == body["choices"][0]["finish_reason"]
    assert out.timings == body["timings"] and (out.usage == body["usage"] or not usage)
    for sent, wire in zip(made, out.calls, strict=True):
        assert json.loads(wire["function"]["arguments"]) == sent.arguments
        assert list(json.loads(wire["function"]["arguments"])) == list(sent.arguments)


# Timings

COUNT = st.integers(0, 10**7)
SPAN = st.floats(0, 1e12) | st.sampled_from([5e-324, 1e-310])
MEMBERS = [
    "cache_n",
    "prompt_n",
    "prompt_ms",
    "prompt_per_token_ms",
    "prompt_per_second",
    "predicted_n",
    "predicted_ms",
    "predicted_per_token_ms",
    "predicted_per_second",
]


@given(COUNT, COUNT, SPAN, COUNT, SPAN, COUNT, COUNT)
def test_timings_are_always_finite(
    cache: int, prompt: int, before: float, out: int, during: float, drafted: int, accepted: int
) -> None:
    snapshot = Timings(cache, prompt, before, out, during, drafted, accepted)
    built = timings_object(snapshot, terminal=True)
    assert all(isfinite(value) and value >= 0 for value in built.values())
    assert list(built)[:9] == MEMBERS
    assert ("draft_n" in built) == ("draft_n_accepted" in built) == bool(drafted)


def test_the_documented_example_comes_out_to_the_last_digit() -> None:
    built = timings_object(Timings(4096, 4096, 83.0, 129, 1140.0), terminal=True)
    assert list(built.values()) == [
        4096,
        4096,
        83.0,
        0.020263671875,
        49349.39759036145,
        129,
        1140.0,
        8.90625,
        112.28070175438596,
    ]


@pytest.mark.parametrize("tokens", [0, 1])
def test_fewer_than_two_tokens_have_no_rate(tokens: int) -> None:
    built = timings_object(Timings(10, 0, 0.0, tokens, 0.0), terminal=True)
    assert built["predicted_per_second"] == built["predicted_per_token_ms"] == 0
    assert built["prompt_per_second"] == built["prompt_per_token_ms"] == 0
