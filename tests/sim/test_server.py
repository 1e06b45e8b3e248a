"""The whole server on the mock clock: exact seconds, and everything given back at once."""

from __future__ import annotations

import json

import anyio
import pytest
import trio

from ninfer.settings import EngineOptions
from ninfer.startup import ServeOptions
from tests.http.kit import head
from tests.sim.fake_device import Costs, FakeDevice
from tests.sim.server import ARTIFACT, Says, World, chat, geometry, serving


def slow(**costs: float) -> FakeDevice:
    """One lane whose units cost what the test says, in seconds."""
    return FakeDevice(geometry(), voice=Says("one two three four five"), costs=Costs(**costs))


async def read_until(world: World, end: anyio.abc.ByteStream, mark: bytes) -> float:
    """Read until ``mark`` has come; return the clock's time then."""
    seen = b""
    while mark not in seen:
        seen += await end.receive()
    return anyio.current_time()


async def test_an_answer_comes_whole_and_everything_comes_back(autojump_clock) -> None:  # type: ignore[no-untyped-def]
    async with serving() as world:
        answer = await world.connect().ask(chat(reasoning_effort="none"), "POST")
        assert answer.status == 200
        assert answer.json["choices"][0]["message"]["content"] == "hello there"
        await anyio.sleep(1)
        assert world.idle()
        (done,) = world.events("request_done")
        assert done["result"]["finish_reason"] == "stop_token"
        assert done["result"]["completion_tokens"] == answer.json["usage"]["completion_tokens"]


async def test_silence_in_a_stream_is_filled_at_exactly_five_seconds(autojump_clock) -> None:  # type: ignore[no-untyped-def]
    async with serving(slow(prefill=12.0)) as world:
        client = world.connect()
        begun = anyio.current_time()
        await client.end.send(chat(stream=True))
        assert await read_until(world, client.end, b": keep-alive\n\n") - begun == pytest.approx(5.0)
        assert await read_until(world, client.end, b": keep-alive\n\n") - begun == pytest.approx(10.0)
        await read_until(world, client.end, b"[DONE]")


async def test_an_aggregate_answer_holds_no_heartbeat(autojump_clock) -> None:  # type: ignore[no-untyped-def]
    async with serving(slow(prefill=12.0)) as world:
        answer = await world.connect().ask(chat(), "POST")
        assert json.loads(answer.body)["object"] == "chat.completion"


async def test_waiting_ends_at_exactly_thirty_seconds(autojump_clock) -> None:  # type: ignore[no-untyped-def]
    async with serving(slow(prefill=100.0)) as world:
        first, second = world.connect(), world.connect()
        await first.end.send(chat())
        await anyio.sleep(0.5)
        begun = anyio.current_time()
        answer = await second.ask(chat(), "POST")
        assert anyio.current_time() - begun == pytest.approx(30.0, abs=1e-6)
        assert (answer.status, answer.json["error"]["code"]) == (503, "request_queue_timeout")


async def test_a_stream_that_waited_too_long_ends_with_an_error_event(autojump_clock) -> None:  # type: ignore[no-untyped-def]
    async with serving(slow(prefill=100.0)) as world:
        first, second = world.connect(), world.connect()
        await first.end.send(chat())
        await anyio.sleep(0.5)
        answer = await second.ask(chat(stream=True), "POST")
        assert answer.status == 200 and answer.whole
        assert b"request_queue_timeout" in answer.body and b"[DONE]" not in answer.body


async def test_a_full_house_is_refused_at_once(autojump_clock) -> None:  # type: ignore[no-untyped-def]
    options = ServeOptions(ARTIFACT, engine=EngineOptions(max_context=1024, max_pending=1))
    async with serving(slow(prefill=50.0), options) as world:
        for _ in range(2):
            await world.connect().end.send(chat())
        await anyio.sleep(0.1)
        begun = anyio.current_time()
        answer = await world.connect().ask(chat(), "POST")
        assert (answer.status, answer.json["error"]["code"]) == (429, "server_overloaded")
        assert anyio.current_time() == begun
        health = await world.connect().ask(head())
        assert (health.status, health.json) == (200, {"status": "ok"})


@pytest.mark.parametrize("phase", ["queued", "prefilling", "decoding"])
async def test_a_client_that_leaves_frees_lane_and_pages_with_the_unit_in_flight(autojump_clock, phase):
    async with serving(slow(prefill=1.0, prefill_token=0.0, decode=1.0)) as world:
        blocker = world.connect()
        if phase == "queued":
            await blocker.end.send(chat("word " * 300))
            await anyio.sleep(0.5)
        client = world.connect()
        await client.end.send(chat("word " * 300, stream=True))
        await anyio.sleep({"queued": 0.25, "prefilling": 1.5, "decoding": 8.5}[phase])
        states = world.app.engine.stats()
        assert {"queued": states.waiting, "prefilling": states.prefilling, "decoding": states.decode_ready}[
            phase
        ]
        await client.end.aclose()
        await anyio.sleep(2.0)  # the unit in flight, and the one that was run ahead
        if phase == "queued":
            await blocker.end.aclose()
            await anyio.sleep(2.0)
        assert world.idle()
        assert world.app.metrics.outcomes["cancelled"] >= 1
        assert world.app.metrics.outcomes["completed"] == 0


async def test_a_device_fault_is_told_to_all_and_health_says_so(autojump_clock) -> None:  # type: ignore[no-untyped-def]
    device = FakeDevice(geometry(2), voice=Says("a b c d e f"), costs=Costs(decode=1.0), faults={4: "fail"})
    async with serving(device) as world:
        answers = {}

        async def ask(name: str, raw: bytes) -> None:
            answers[name] = await world.connect().ask(raw, "POST")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, "aggregate", chat())
            nursery.start_soon(ask, "stream", chat(stream=True))
        assert answers["aggregate"].status == 500
        assert b"engine_failed" in answers["stream"].body
        health = await world.connect().ask(head())
        assert (health.status, health.json) == (503, {"status": "unavailable"})
        assert b"ninfer_engine_ready 0.0" in (await world.connect().ask(head(target="/metrics"))).body
        refused = await world.connect().ask(chat(), "POST")
        assert refused.status == 503
        assert len(world.events("request_error")) == 2


async def test_metric_totals_equal_the_sums_of_the_request_log(autojump_clock) -> None:  # type: ignore[no-untyped-def]
    device = FakeDevice(geometry(4), voice=Says("one two three"), costs=Costs())
    async with serving(device) as world:
        async with trio.open_nursery() as nursery:
            for count in range(12):
                nursery.start_soon(world.connect().ask, chat("x " * count, max_tokens=count), "POST")
        page = (await world.connect().ask(head(target="/metrics"))).body.decode()
        totals = dict(line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#"))
        results = [event["result"] for event in world.events("request_done")]
        assert len(results) == 12
        assert float(totals['ninfer_requests_total{outcome="completed"}']) == 12
        assert float(totals["ninfer_prompt_tokens_total"]) == sum(r["prompt_tokens"] for r in results)
        assert float(totals["ninfer_generation_tokens_total"]) == sum(
            r["completion_tokens"] for r in results
        )
        stats = (await world.connect().ask(head(target="/stats"))).json
        assert stats["total_tasks"] == 12 and stats["active_tasks"] == 0


async def test_nothing_a_client_says_reaches_stderr(autojump_clock) -> None:  # type: ignore[no-untyped-def]
    async with serving() as world:
        await world.connect().ask(chat("CANARY-prompt", stop=["CANARY-stop"], user="CANARY-user"), "POST")
        await world.connect().ask(chat("CANARY", temperature="CANARY-type"), "POST")
        await world.connect().ask(chat("CANARY" * 4000), "POST")
        await anyio.sleep(1)
        assert "CANARY" not in world.stderr.getvalue()
        assert "hello" not in world.stderr.getvalue()
