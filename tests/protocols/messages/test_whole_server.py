"""Messages through the whole server on the mock clock: admission, splits, stops, reuse, the log."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest
import trio.testing

from ninfer.settings import EngineOptions, GenerationDefaults
from ninfer.startup import ServeOptions
from tests.http.kit import Answer
from tests.protocols.fakes import parse_sse
from tests.protocols.messages.cases import TOOL, text
from tests.protocols.messages.reader import COUNT, PATH, Stream, read_stream, unsigned
from tests.protocols.messages.test_lower import BILLING
from tests.sim.fake_device import Costs, FakeDevice
from tests.sim.server import ARTIFACT, Says, World, geometry, request, serving

Clock = trio.testing.MockClock
OFF: dict[str, Any] = {"thinking": {"type": "disabled"}}
WORDS = "alpha beta gamma delta"


def body(words: str = "hi", **change: Any) -> bytes:
    asked = {"model": "m", "messages": [{"role": "user", "content": words}], "temperature": 0, **change}
    return request(PATH, json.dumps(asked).encode())


async def ask(world: World, words: str = "hi", **change: Any) -> Any:
    """Both forms of one answer, which must say the same; returns the message."""
    whole = await world.connect().ask(body(words, **change), "POST")
    assert whole.status == 200, whole.body
    message, stream = whole.json, await streamed(world, words, **change)
    for usage in (message["usage"], stream.message["usage"]):  # the second one reads a cache
        usage["prompt"] = usage.pop("input_tokens") + usage.pop("cache_read_input_tokens")
    assert unsigned({**stream.message, "id": message["id"]}) == unsigned(message)
    return message


async def streamed(world: World, words: str = "hi", **change: Any) -> Stream:
    got = await world.connect().ask(body(words, stream=True, **change), "POST")
    assert got.status == 200 and got.whole
    return read_stream(list(parse_sse(got.body)))


def saying(words: str, lanes: int = 1, **costs: float) -> FakeDevice:
    return FakeDevice(geometry(lanes), voice=Says(words), costs=Costs(**costs))


async def arrivals(world: World, raw: bytes) -> AsyncIterator[tuple[float, str]]:
    """When each thing of a stream came: a heartbeat, or an event by its name."""
    client = world.connect()
    await client.end.send(raw)
    seen, line = b"", b""
    while line != b"event: message_stop":
        while b"\n" not in seen:
            seen += await client.end.receive()
        line, _, seen = seen.partition(b"\n")
        line = line.strip()
        if line.startswith(b": keep-alive"):
            yield anyio.current_time(), "beat"
        elif line.startswith(b"event: "):
            yield anyio.current_time(), line[7:].decode()


# Admission


# A short prompt runs in two units: up to where the answer begins, and the beginning of the answer.


async def test_message_start_comes_with_admission_before_the_prompt_has_run(autojump_clock: Clock) -> None:
    async with serving(saying("one", prefill=6.0)) as world:
        begun = anyio.current_time()
        told = [(round(at - begun), name) async for at, name in arrivals(world, body(stream=True, **OFF))]
    assert told[:3] == [(0, "message_start"), (5, "beat"), (10, "beat")]
    assert told[3] == (12, "content_block_start")


async def test_a_waiting_stream_beats_before_message_start(autojump_clock: Clock) -> None:
    async with serving(saying("one", prefill=6.0)) as world:
        first = world.connect()
        await first.end.send(body("first", **OFF))
        await anyio.sleep(0.5)
        raw = body("second", stream=True, **OFF)
        told = [(at, name) async for at, name in arrivals(world, raw)]
    names = [name for _, name in told]
    assert names[:3] == ["beat", "beat", "message_start"]
    assert told[2][0] == pytest.approx(12, abs=0.5) and told[3][1] == "beat"
    assert {name: at for at, name in told}["content_block_start"] == pytest.approx(24, abs=0.5)


async def test_a_full_house_is_529_and_a_long_wait_504(autojump_clock: Clock) -> None:
    options = ServeOptions(ARTIFACT, engine=EngineOptions(max_context=1024, max_pending=1))
    answers: list[Answer] = []
    async with serving(saying("one", prefill=100.0), options) as world:
        await world.connect().end.send(body())
        await anyio.sleep(0.1)
        async with anyio.create_task_group() as tasks:

            async def late() -> None:
                answers.append(await world.connect().ask(body(), "POST"))

            tasks.start_soon(late)
            await anyio.sleep(0.1)
            refused = await world.connect().ask(body(), "POST")
            assert (refused.status, refused.json["error"]["type"]) == (529, "overloaded_error")
    assert (answers[0].status, answers[0].json["error"]["type"]) == (504, "timeout_error")
    assert answers[0].json["request_id"] == answers[0].headers["request-id"]


# Stops and limits


async def test_a_stop_sequence_is_named_and_never_sent(autojump_clock: Clock) -> None:
    async with serving(saying(WORDS)) as world:
        message = await ask(world, stop_sequences=["omega", "beta gamma"], **OFF)
    assert message["content"] == [{"type": "text", "text": "alpha "}]
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "beta gamma")
    assert message["usage"]["output_tokens"] >= 3


async def test_a_stop_sequence_ends_thinking_as_well(autojump_clock: Clock) -> None:
    async with serving(saying(WORDS)) as world:
        message = await ask(world, stop_sequences=["gamma"])
    assert [block["type"] for block in message["content"]] == ["thinking"]
    assert (message["content"][0]["thinking"], message["stop_sequence"]) == ("alpha beta ", "gamma")


async def test_a_natural_end_is_end_turn(autojump_clock: Clock) -> None:
    async with serving(saying("Hm.</think>\n\nHello")) as world:
        message = await ask(world)
    assert [block["type"] for block in message["content"]] == ["thinking", "text"]
    assert message["content"][1]["text"] == "Hello" and message["stop_reason"] == "end_turn"


async def test_a_limit_inside_thinking_is_max_tokens_in_a_whole_stream(autojump_clock: Clock) -> None:
    async with serving(saying(WORDS * 20)) as world:
        message = await ask(world, max_tokens=7)
    assert [block["type"] for block in message["content"]] == ["thinking"]
    assert (message["stop_reason"], message["usage"]["output_tokens"]) == ("max_tokens", 7)


async def test_a_full_context_has_its_own_reason(autojump_clock: Clock) -> None:
    async with serving(saying("word " * 100)) as world:
        message = await ask(world, "word " * 960, **OFF)
    assert message["stop_reason"] == "model_context_window_exceeded"
    assert message["usage"]["prompt"] + message["usage"]["output_tokens"] <= 1025


async def test_an_omitted_limit_is_the_servers_default(autojump_clock: Clock) -> None:
    options = ServeOptions(
        ARTIFACT, engine=EngineOptions(max_context=1024), defaults=GenerationDefaults(max_tokens=16)
    )
    async with serving(saying("word " * 300), options) as world:
        message = await ask(world, **OFF)
    assert (message["stop_reason"], message["usage"]["output_tokens"]) == ("max_tokens", 16)


CALL = (
    "I look.\n\n<tool_call>\n<function=look>\n<parameter=on>\nTrue\n</parameter>\n"
    "<parameter=n>\n5\n</parameter>\n</function>\n</tool_call>"
)
TYPED = {
    **TOOL,
    "input_schema": {
        "type": "object",
        "properties": {
            "on": {"type": ["boolean", "null"]},
            "n": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        },
    },
}


async def test_a_tool_call_is_a_block_with_its_input(autojump_clock: Clock) -> None:
    async with serving(saying(CALL)) as world:
        message = await ask(world, tools=[TYPED], **OFF)
    assert message["stop_reason"] == "tool_use"
    said, called = message["content"]
    assert said == {"type": "text", "text": "I look."}
    assert (called["name"], called["input"]) == ("look", {"on": True, "n": 5})


@pytest.mark.parametrize(
    "change", [{}, {"tools": [{**TYPED, "name": "other"}]}, {"tool_choice": {"type": "none"}}]
)
async def test_markup_of_no_declared_tool_is_text(autojump_clock: Clock, change: dict[str, Any]) -> None:
    async with serving(saying(CALL)) as world:
        message = await ask(world, **change, **OFF)
    assert message["content"] == [{"type": "text", "text": CALL}] and message["stop_reason"] == "end_turn"


async def test_a_limit_inside_a_call_gives_the_markup_back_as_text(autojump_clock: Clock) -> None:
    async with serving(saying(CALL)) as world:
        message = await ask(world, tools=[TYPED], max_tokens=20, **OFF)
    (block,) = message["content"]
    assert CALL.startswith(block["text"]) and "<tool_call>" in block["text"]
    assert message["stop_reason"] == "max_tokens"


# Reuse


async def test_the_same_request_again_reads_the_cache_and_says_so_at_once(autojump_clock: Clock) -> None:
    words = "many words " * 40
    async with serving(saying("one")) as world:
        counted = await world.connect().ask(
            request(
                COUNT, json.dumps({"model": "m", "messages": [{"role": "user", "content": words}]}).encode()
            ),
            "POST",
        )
        first, second = [await streamed(world, words) for _ in range(2)]
        whole = (await world.connect().ask(body(words), "POST")).json["usage"]
    total = counted.json["input_tokens"]
    assert (first.started["input_tokens"], first.started["cache_read_input_tokens"]) == (total, 0)
    assert second.started["cache_read_input_tokens"] > 0
    assert second.started["input_tokens"] + second.started["cache_read_input_tokens"] == total
    assert whole == second.message["usage"]


async def test_a_billing_header_that_changes_does_not_spoil_the_cache(autojump_clock: Clock) -> None:
    rest = [text("A long instruction. " * 30)]
    async with serving(saying("one")) as world:
        bare = await streamed(world, system=rest, **OFF)
        other = [
            await streamed(world, system=[text(f"{BILLING}; cch={n}"), *rest], **OFF) for n in range(2)
        ]
    for stream in other:
        usage = stream.started
        assert usage["cache_read_input_tokens"] > 0
        assert usage["input_tokens"] + usage["cache_read_input_tokens"] == bare.started["input_tokens"]


async def test_a_marked_system_text_is_shared_by_another_conversation(autojump_clock: Clock) -> None:
    system = [text("A long instruction. " * 30, cache_control={"type": "ephemeral"})]
    async with serving(saying("one")) as world:
        await streamed(world, "first question", system=system, **OFF)
        second = await streamed(world, "quite another one", system=system, **OFF)
    assert second.started["cache_read_input_tokens"] > 60


# Counting, logging


@pytest.mark.parametrize("query", ["", "?beta=true"])
async def test_a_count_takes_no_place_and_leaves_no_record(autojump_clock: Clock, query: str) -> None:
    async with serving(saying("one")) as world:
        raw = body()[len(b"POST /v1/messages") :]
        got = await world.connect().ask(f"POST {COUNT}{query}".encode() + raw, "POST")
        assert got.status == 200 and got.json["input_tokens"] > 5
        await anyio.sleep(1)
        assert world.idle() and not world.events("request_start")


async def test_the_log_names_the_protocol_and_the_message(autojump_clock: Clock) -> None:
    async with serving(saying("one")) as world:
        got = await world.connect().ask(body(output_config={"effort": "low"}, **OFF), "POST")
        long = await world.connect().ask(body("word " * 2000), "POST")
        await anyio.sleep(1)
        (start,) = world.events("request_start")
        (refused,) = world.events("request_rejected")
        assert got.json["id"] in json.dumps(start) and "anthropic_messages" in json.dumps(start)
        assert world.idle()
    assert long.status == 400 and "1024" in long.json["error"]["message"]
    assert '"status": 400' in json.dumps(refused) or '"http_status": 400' in json.dumps(refused)
