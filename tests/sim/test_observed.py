"""What operators see of the whole server: a documented log, metrics that agree with it, no secrets."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import anyio
import pytest
import trio

from ninfer.settings import EngineOptions, WireLimits
from ninfer.startup import ServeOptions
from tests.http.kit import head
from tests.observe.schema import audit, event_names
from tests.sim.books import agree, named
from tests.sim.fake_device import Costs, FakeDevice
from tests.sim.server import ARTIFACT, Says, World, chat, geometry, request, serving

T = TypeVar("T")
STORY = "one two three four five six seven eight nine ten " * 12
MARKUP = "<tool_call>\n<function=unknown>\n</function>\n</tool_call>"
TOOL = {
    "type": "function",
    "function": {"name": "look", "parameters": {"type": "object", "properties": {}}},
}
COSTS = Costs(prefill=0.05, decode=0.02, host_byte=1e-6)


def options(**engine: Any) -> ServeOptions:
    return ServeOptions(
        ARTIFACT, engine=EngineOptions(**{"max_context": 1024, "max_pending": 64, **engine})
    )


def cramped(text: str = STORY, **changes: Any) -> FakeDevice:
    """Four lanes over pages for little more than one context, so that requests must be paused."""
    return FakeDevice(geometry(4, pages=18, **changes), voice=Says(text), costs=COSTS)


async def flood(world: World, count: int, **members: Any) -> None:
    """Ask many things at once and hear all answers."""
    async with trio.open_nursery() as nursery:
        for number in range(count):
            raw = chat(f"{number} " + "word " * 150, reasoning_effort="none", **members)
            nursery.start_soon(world.connect().ask, raw, "POST")


async def finish(world: World) -> dict[str, float]:
    """Let everything come to rest; return the metrics of the whole run."""
    await anyio.sleep(2)
    assert world.idle()
    found = await world.scrape()
    world.app.throughput.report(final=True)
    return found


async def leave(world: World, after: float, content: str = "word " * 300) -> None:
    """Ask for a stream and vanish."""
    client = world.connect()
    await client.end.send(chat(content, stream=True))
    await anyio.sleep(after)
    await client.end.aclose()


@pytest.mark.parametrize(("host", "route"), [(0, "replay"), (1 << 20, "snapshot")])
async def test_pauses_are_logged_step_by_step_and_the_books_agree(autojump_clock, host, route) -> None:  # type: ignore[no-untyped-def]
    async with serving(cramped(host_bytes=host), options()) as world:
        await flood(world, 6)
        metrics = await finish(world)
        audit(world.log)
        agree(world.log, metrics)
        steps = named(world.log, "request_scheduling")
        assert metrics["ninfer_preemptions_total"] > 0
        assert metrics[f"ninfer_{route}_restores_total"] > 0
        assert route in {step["route"] for step in steps if step["transition"] == "restored"}
        paused = sum(step["transition"] == "paused" for step in steps)
        assert paused == metrics["ninfer_preemptions_total"]
        ends = [step for step in steps if step["transition"] == "terminal"]
        assert len(ends) == len({step["request"]["request_id"] for step in steps})


async def test_speculation_is_in_the_books(autojump_clock) -> None:  # type: ignore[no-untyped-def]
    device = FakeDevice(geometry(2, drafts=3), voice=Says(STORY), costs=COSTS)
    async with serving(device, options(spec="mtp", draft_tokens=3)) as world:
        await flood(world, 4)
        metrics = await finish(world)
        audit(world.log)
        agree(world.log, metrics)
        assert metrics["ninfer_spec_decode_accepted_tokens_total"] > 0
        assert metrics["ninfer_spec_decode_draft_window"] == 3
        (one, *_) = named(world.log, "request_done")
        assert (one["speculative"]["backend"], one["speculative"]["draft_window"]) == ("mtp", 3)
        assert "mtp accepted" in world.stderr.getvalue()


async def test_every_way_to_end_is_told_once_and_counted_once(autojump_clock) -> None:  # type: ignore[no-untyped-def]
    device = FakeDevice(geometry(2), voice=Says(MARKUP), costs=COSTS, faults={10: "nan"})
    async with serving(device, options(max_pending=6, pending_timeout=0.4)) as world:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(leave, world, 0.02)
            nursery.start_soon(leave, world, 0.25)
            await anyio.sleep(0.01)
            for raw in (
                chat("plain", reasoning_effort="none"),
                chat("tools", reasoning_effort="none", tools=[TOOL]),
                chat("stream", stream=True),
                chat("none", max_tokens=0),
                chat("long " * 3000),
                *(chat(f"word {number} " * 40) for number in range(8)),
            ):
                nursery.start_soon(world.connect().ask, raw, "POST")
        metrics = await finish(world)
        audit(world.log)
        agree(world.log, metrics)
        for outcome in ("completed", "cancelled", "failed", "rejected"):
            assert metrics[f'ninfer_requests_total{{outcome="{outcome}"}}'] > 0, outcome
        codes = {event["error"]["code"] for event in named(world.log, "request_rejected")}
        assert {"context_length_exceeded", "server_overloaded"} <= codes
        lost = {event["error"]["code"] for event in named(world.log, "request_error")}
        assert {"request_queue_timeout", "non_finite_logits"} <= lost


async def test_a_lost_device_and_a_shutdown_leave_no_request_untold(autojump_clock) -> None:  # type: ignore[no-untyped-def]
    device = cramped()
    device.faults = {60: "fail"}
    async with serving(device, options()) as world:
        await flood(world, 6, stream=True)
        refused = await world.connect().ask(chat(), "POST")
        assert refused.status == 503
    audit(world.log)
    assert named(world.log, "request_error")
    assert named(world.log, "request_rejected")[-1]["error"]["code"] == "engine_unavailable"


async def test_a_stop_in_the_middle_of_everything_tells_every_request(autojump_clock) -> None:  # type: ignore[no-untyped-def]
    async with serving(cramped(), options()) as world, trio.open_nursery() as nursery:
        for number in range(8):
            nursery.start_soon(leave, world, 1.0 + number, f"{number} " + "word " * 150)
        await anyio.sleep(0.9)
        world.app.server.stop()
        nursery.cancel_scope.cancel()
    audit(world.log)
    assert len(named(world.log, "request_start")) == 8


async def slowly(work: Callable[[], T]) -> T:
    """A worker that takes ten seconds."""
    await anyio.sleep(10)
    return work()


async def brokenly(work: Callable[[], T]) -> T:
    """A worker that breaks by a fault of ours."""
    raise ZeroDivisionError


async def test_a_client_that_leaves_during_preparation_is_told_as_such(autojump_clock) -> None:  # type: ignore[no-untyped-def]
    async with serving(options=options(), run_blocking=slowly) as world:
        await leave(world, 3.0)
        metrics = await finish(world)
        (event,) = world.log
        assert event["event"] == "request_rejected"
        assert (event["error"]["status"], event["error"]["code"]) == (None, "client_disconnected")
        assert metrics['ninfer_requests_total{outcome="cancelled"}'] == 1
        audit(world.log)


async def test_preparation_counts_against_the_wait_for_admission(autojump_clock) -> None:  # type: ignore[no-untyped-def]
    async with serving(options=options(pending_timeout=4.0), run_blocking=slowly) as world:
        begun = anyio.current_time()
        answer = await world.connect().ask(chat(), "POST")
        assert (answer.status, answer.json["error"]["code"]) == (503, "request_queue_timeout")
        assert anyio.current_time() - begun == pytest.approx(4.0)
        (event,) = world.log
        assert event["error"]["status"] == 503
        assert (await finish(world))['ninfer_requests_total{outcome="rejected"}'] == 1
        audit(world.log)


async def test_a_preparation_that_breaks_is_a_failure_of_ours(autojump_clock) -> None:  # type: ignore[no-untyped-def]
    async with serving(options=options(), run_blocking=brokenly) as world:
        assert (await world.connect().ask(chat("CANARY"), "POST")).status == 500
        (event,) = world.log
        assert (event["error"]["status"], event["error"]["code"]) == (500, "internal_error")
        assert (await finish(world))['ninfer_requests_total{outcome="failed"}'] == 1
        assert "ERROR req#1 rejected during prepare" in world.stderr.getvalue()
        assert "CANARY" not in world.stderr.getvalue()
        audit(world.log)


def test_every_documented_event_is_met_by_a_test() -> None:
    assert set(event_names()) == {
        "server_start",  # tests/e2e/test_lifecycle.py
        "request_start",
        "request_rejected",
        "request_done",
        "request_error",
        "request_scheduling",
        "throughput",
    }


async def test_engine_time_of_a_request_adds_up(autojump_clock) -> None:  # type: ignore[no-untyped-def]
    async with serving(cramped(host_bytes=0), options()) as world:
        await flood(world, 4)
        for done in named(world.log, "request_done"):
            timing, spans = done["engine_timing"], done["timings_seconds"]
            exposed = timing["host_exposed_seconds"]["total"] + timing["device_wait_exposed_seconds"]
            resident = spans["total"] - spans["prepare"] - timing["queue_wait_seconds"]
            paused = done["generation"]["scheduling"]["paused_ns"] / 1e9
            assert exposed == pytest.approx(resident - paused, abs=1e-6)
            first = done["first_output_timing"]
            assert 0 < first["elapsed_seconds"] <= spans["total"]
            assert first["prefill"]["gpu_seconds"] > 0


async def test_a_scrape_delays_no_token(autojump_clock) -> None:  # type: ignore[no-untyped-def]
    async def times(scrapes: int) -> list[float]:
        device = FakeDevice(geometry(1), voice=Says(STORY), costs=COSTS)
        async with serving(device, options()) as world, trio.open_nursery() as nursery:
            begun = anyio.current_time()

            async def watch() -> None:
                for _ in range(scrapes):
                    for target in ("/metrics", "/stats", "/health"):
                        assert (await world.connect().ask(head(target=target))).status == 200
                    await anyio.sleep(0.011)

            nursery.start_soon(watch)
            await flood(world, 1, stream=True)
            (done,) = named(world.log, "request_done")
            return [anyio.current_time() - begun, *done["timings_seconds"].values()]

    assert await times(100) == pytest.approx(await times(0))


async def test_an_answer_that_cannot_be_delivered_is_a_response_failure(autojump_clock) -> None:  # type: ignore[no-untyped-def]
    async with serving(FakeDevice(geometry(1), voice=Says(STORY), costs=Costs())) as world:
        client = world.connect(room=64)  # takes 64 bytes and reads no more
        await client.end.send(chat(reasoning_effort="none", stream=True))
        await anyio.sleep(60)
        assert world.idle()
        metrics = await world.scrape()
        assert metrics['ninfer_requests_total{outcome="completed"}'] == 1
        assert metrics["ninfer_response_failures_total"] == 1


async def test_a_full_disk_is_told_once_and_serving_goes_on(autojump_clock) -> None:  # type: ignore[no-untyped-def]
    async with serving() as world:
        world.journal.fault = OSError(28, "No space left on device")
        for _ in range(3):
            assert (await world.connect().ask(chat(), "POST")).status == 200
        assert world.stderr.getvalue().count("No space left on device") == 1
        world.journal.fault = None
        assert (await world.connect().ask(chat(), "POST")).status == 200
        assert "events were lost" in world.stderr.getvalue()
        assert len(named(world.log, "request_done")) == 1


# Secrets

CANARY = "CANARY7f3a"
POISONED: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "model": "tiny",
        "messages": [
            {"role": "system", "content": CANARY},
            {"role": "user", "content": [{"type": "text", "text": CANARY}]},
            {
                "role": "assistant",
                "content": CANARY,
                "reasoning_content": CANARY,
                "tool_calls": [
                    {
                        "id": CANARY,
                        "type": "function",
                        "function": {"name": CANARY, "arguments": json.dumps({CANARY: CANARY})},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": CANARY, "content": CANARY},
            {"role": "user", "content": CANARY},
        ],
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": CANARY,
                    "description": CANARY,
                    "parameters": {"type": "object", "properties": {CANARY: {"type": "string"}}},
                },
            }
        ],
        "stop": [CANARY],
        "user": CANARY,
        "metadata": {CANARY: CANARY},
        "prompt_cache_key": CANARY,
        "chat_template_kwargs": {CANARY: CANARY},
        CANARY: CANARY,
    },
    "/v1/messages": {
        "model": "tiny",
        "max_tokens": 8,
        "system": [{"type": "text", "text": CANARY}],
        "messages": [
            {"role": "user", "content": CANARY},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": CANARY, "signature": CANARY},
                    {"type": "text", "text": CANARY},
                    {"type": "tool_use", "id": CANARY, "name": CANARY, "input": {CANARY: CANARY}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": CANARY, "content": CANARY},
                    {"type": "text", "text": CANARY},
                ],
            },
        ],
        "tools": [{"name": CANARY, "description": CANARY, "input_schema": {"type": "object"}}],
        "stop_sequences": [CANARY],
        "metadata": {"user_id": CANARY},
    },
    "/v1/responses": {
        "model": "tiny",
        "instructions": CANARY,
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": CANARY}]},
            {
                "type": "function_call",
                "call_id": CANARY,
                "name": CANARY,
                "arguments": '{"a":"' + CANARY + '"}',
            },
            {"type": "function_call_output", "call_id": CANARY, "output": CANARY},
        ],
        "tools": [
            {"type": "function", "name": CANARY, "description": CANARY, "parameters": {"type": "object"}}
        ],
        "metadata": {CANARY: CANARY},
        "user": CANARY,
        "prompt_cache_key": CANARY,
    },
}


def spoiled(body: dict[str, Any]) -> list[dict[str, Any]]:
    """The same request, wrong in ways that make refusals quote it."""
    return [
        body,
        {**body, "stream": True},
        {**body, "temperature": CANARY},
        {**body, "tool_choice": CANARY},
        {**body, "model": CANARY + "-model"},
        {**body, "previous_response_id": CANARY},
        {**body, "messages": [{"role": CANARY, "content": CANARY}], "input": [{"type": CANARY}]},
        {
            **body,
            "messages": [{"role": "user", "content": (CANARY + " ") * 3000}],
            "input": (CANARY + " ") * 3000,
        },
        {
            **body,
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "image_url", "image_url": {"url": "http://" + CANARY}}],
                }
            ],
        },
    ]


@pytest.mark.parametrize("path", POISONED)
async def test_nothing_that_a_client_says_reaches_log_records_or_metrics(autojump_clock, path) -> None:  # type: ignore[no-untyped-def]
    given = ServeOptions(
        ARTIFACT,
        engine=EngineOptions(max_context=1024),
        log_level="trace",
        api_key="hush-key",
        wire=WireLimits(),
    )
    key = b"Authorization: Bearer hush-key\r\nX-Secret: " + CANARY.encode() + b"\r\n"
    async with serving(options=given) as world:
        statuses = []
        for body in spoiled(POISONED[path]):
            raw = request(path + f"?q={CANARY}", json.dumps(body).encode())
            first, _, rest = raw.partition(b"\r\n")
            answer = await world.connect().ask(first + b"\r\n" + key + rest, "POST")
            statuses.append(answer.status)
        await world.connect().ask(head(target=f"/{CANARY}"))
        page = await world.connect().ask(head("GET", "/metrics", "Authorization: Bearer hush-key"))
        assert statuses[:2] == [200, 200] and 400 in statuses
        written = world.stderr.getvalue() + page.body.decode()
        journal = b"".join(world.journal.lines).decode()
        assert CANARY not in written and "hush-key" not in written + journal
        told = [line for line in journal.splitlines() if CANARY in line]
        # the one text of a client's own in the log is the model label that an answer repeats
        assert all(json.loads(line)["request"]["model"] == CANARY + "-model" for line in told)
        assert all(line.count(CANARY) == 1 for line in told)
        assert "hello" not in written + journal
        audit(world.log)
