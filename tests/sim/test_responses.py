"""Responses through the whole server: chains, caches, waits, leaving clients, what is logged."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest

from ninfer.settings import EngineOptions, ResponseStoreLimits
from ninfer.startup import ServeOptions
from tests.http.kit import Client, head
from tests.protocols.fakes import parse_sse
from tests.protocols.responses.desk import LOOK, check_stream, result
from tests.sim.fake_device import Costs, FakeDevice
from tests.sim.server import ARTIFACT, Says, World, geometry, request, serving

MARKUP = "<tool_call>\n<function=look>\n<parameter=at>\nsky\n</parameter>\n</function>\n</tool_call>"
CALL = f"Let me look.\n\n{MARKUP}"


def create(**change: Any) -> bytes:
    body = {"model": "tiny", "input": "hi", "temperature": 0, "reasoning": {"effort": "none"}, **change}
    return request("/v1/responses", json.dumps(body).encode())


def slow(text: str = "one two three four five", **costs: float) -> FakeDevice:
    return FakeDevice(geometry(), voice=Says(text), costs=Costs(**costs))


async def ask(world: World, **change: Any) -> Any:
    answer = await world.connect().ask(create(**change), "POST")
    assert answer.status == 200, answer.body
    return answer.json


def text(body: Any) -> str:
    return "".join(
        part["text"] for item in body["output"] if item["type"] == "message" for part in item["content"]
    )


async def test_both_forms_say_the_same_and_everything_comes_back(autojump_clock) -> None:  # type: ignore[no-untyped-def]
    async with serving() as world:
        whole = await ask(world)
        raw = await world.connect().ask(create(stream=True), "POST")
        streamed = check_stream(list(parse_sse(raw.body)))
        assert text(whole) == text(streamed) == "hello there"
        assert whole["usage"]["output_tokens"] == streamed["usage"]["output_tokens"]
        await anyio.sleep(1)
        assert world.idle()
        done = world.events("request_done")
        assert [event["result"]["finish_reason"] for event in done] == ["stop_token"] * 2


async def test_a_chain_reuses_what_was_said_and_survives_its_root(autojump_clock) -> None:  # type: ignore[no-untyped-def]
    async with serving() as world:
        first = await ask(world, input="word " * 100)
        second = await ask(world, previous_response_id=first["id"])
        assert second["usage"]["input_tokens_details"]["cached_tokens"] > 100
        gone = await world.connect().ask(head("DELETE", f"/v1/responses/{first['id']}"), "DELETE")
        assert gone.json["deleted"] is True
        third = await ask(world, previous_response_id=second["id"])
        assert third["usage"]["input_tokens"] > second["usage"]["input_tokens"]
        lost = await world.connect().ask(create(previous_response_id=first["id"]), "POST")
        assert (lost.status, lost.json["error"]["code"]) == (404, "response_not_found")


async def test_a_count_is_exactly_the_prompt_of_its_create(autojump_clock) -> None:  # type: ignore[no-untyped-def]
    async with serving() as world:
        first = await ask(world, tools=[LOOK])
        body = {
            "model": "tiny",
            "input": "and then?",
            "instructions": "Be brief.",
            "previous_response_id": first["id"],
            "tools": [LOOK],
            "reasoning": {"effort": "none"},
        }
        counted = await world.connect().ask(
            request("/v1/responses/input_tokens", json.dumps(body).encode()), "POST"
        )
        second = await ask(world, **body)
        assert counted.json["input_tokens"] == second["usage"]["input_tokens"]
        assert len(world.events("request_done")) == 2


async def test_a_call_is_structured_and_its_replay_reuses_past_it(autojump_clock) -> None:  # type: ignore[no-untyped-def]
    async with serving(FakeDevice(geometry(), voice=Says(CALL))) as world:
        first = await ask(world, input="look " * 80, tools=[LOOK])
        function = first["output"][1]
        assert text(first) == "Let me look."
        assert (function["name"], function["arguments"]) == ("look", '{"at":"sky"}')
        before = first["usage"]["input_tokens"] + first["usage"]["output_tokens"] - 8
        back = [result(function["call_id"], "blue")]
        second = await ask(world, input=back, previous_response_id=first["id"], tools=[LOOK])
        assert second["usage"]["input_tokens_details"]["cached_tokens"] > before
        none = await ask(world, tools=[LOOK], tool_choice="none")
        assert text(none) == CALL


@pytest.mark.parametrize("limit", [0, 1, 3])
async def test_the_limit_ends_an_incomplete_response(autojump_clock, limit: int) -> None:  # type: ignore[no-untyped-def]
    async with serving(slow()) as world:
        body = await ask(world, max_output_tokens=limit)
        assert (body["status"], body["incomplete_details"]) == (
            "incomplete",
            {"reason": "max_output_tokens"},
        )
        assert (body["max_output_tokens"], body["usage"]["output_tokens"]) == (limit, limit)
        assert body["completed_at"] is None


async def test_an_open_limit_is_the_servers_and_stays_null(autojump_clock) -> None:  # type: ignore[no-untyped-def]
    from ninfer.settings import GenerationDefaults

    options = ServeOptions(
        ARTIFACT, engine=EngineOptions(max_context=1024), defaults=GenerationDefaults(max_tokens=2)
    )
    async with serving(slow(), options) as world:
        body = await ask(world)
        assert (body["max_output_tokens"], body["usage"]["output_tokens"]) == (None, 2)


async def test_silence_is_filled_and_a_late_refusal_is_a_failed_response(autojump_clock) -> None:  # type: ignore[no-untyped-def]
    async with serving(slow(prefill=100.0)) as world:
        first, second = world.connect(), world.connect()
        await first.end.send(create())
        await anyio.sleep(0.5)
        answer = await second.ask(create(stream=True), "POST")
        assert answer.body.startswith(b": keep-alive\n\n")
        terminal = check_stream(list(parse_sse(answer.body)))
        assert terminal["error"]["code"] == "request_queue_timeout"


async def test_a_device_fault_is_a_failed_response(autojump_clock) -> None:  # type: ignore[no-untyped-def]
    device = FakeDevice(geometry(), voice=Says("a b c d e f"), costs=Costs(decode=1.0), faults={4: "fail"})
    async with serving(device) as world:
        answer = await world.connect().ask(create(stream=True), "POST")
        terminal = check_stream(list(parse_sse(answer.body)))
        assert (terminal["status"], terminal["error"]["code"]) == ("failed", "engine_failed")


async def test_a_client_that_leaves_stores_nothing(autojump_clock) -> None:  # type: ignore[no-untyped-def]
    async with serving(slow(decode=1.0)) as world:
        client: Client = world.connect()
        await client.end.send(create(stream=True))
        seen = b""
        while b"response.output_text.delta" not in seen:
            seen += await client.end.receive()
        await client.end.aclose()
        await anyio.sleep(3)
        assert world.idle() and world.app.metrics.outcomes["cancelled"] == 1
        id = json.loads(seen.split(b"data: ")[1].split(b"\n")[0])["response"]["id"]
        assert (await world.connect().ask(head(target=f"/v1/responses/{id}"))).status == 404


async def test_the_store_keeps_to_its_options(autojump_clock) -> None:  # type: ignore[no-untyped-def]
    options = ServeOptions(
        ARTIFACT, engine=EngineOptions(max_context=1024), responses=ResponseStoreLimits(records=2)
    )
    async with serving(options=options) as world:
        ids = [(await ask(world))["id"] for _ in range(3)]
        found = [(await world.connect().ask(head(target=f"/v1/responses/{id}"))).status for id in ids]
        assert found == [404, 200, 200]


async def test_the_log_knows_protocol_and_semantic_change_and_nothing_said(autojump_clock) -> None:  # type: ignore[no-untyped-def]
    async with serving() as world:
        first = await ask(world, input="CANARY", preserve_thinking=True)
        await ask(world, previous_response_id=first["id"], preserve_thinking=False)
        starts = world.events("request_start")
        assert [start["request"]["protocol"] for start in starts] == ["openai_responses"] * 2
        changes = [start["request"]["preserve_thinking_semantic_change"] for start in starts]
        assert changes == [False, True]
        assert "CANARY" not in world.stderr.getvalue()
