"""Messages behind the real HTTP room: heartbeats, ids, refusals late and early, clients that leave."""

from __future__ import annotations

import json
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from ninfer.faults import Fault, Kind
from ninfer.http.auth import KeyCheck
from ninfer.http.site import Site
from ninfer.protocols.messages.handler import messages_routes
from ninfer.protocols.status import render_fault
from tests.http.kit import connected, make_site, post
from tests.protocols.fakes import ScriptedService, Wait, answer, content, kit, parse_sse
from tests.protocols.messages.cases import GOOD
from tests.protocols.messages.reader import COUNT, PATH, read_stream

BEAT = b": keep-alive\n\n"
Clock = trio.testing.MockClock


def site(service: ScriptedService, **more: Any) -> Site:
    base = make_site(messages_routes(kit(service)))
    return attrs.evolve(base, id_fields=((PATH, "request-id"),), render_fault=render_fault, **more)


def ask(path: str = PATH, **change: Any) -> bytes:
    return post(path, json.dumps({**GOOD, **change}).encode())


async def test_a_long_wait_for_a_place_is_filled_with_heartbeats(autojump_clock: Clock) -> None:
    service = ScriptedService([answer(Wait(7), content("Hello"))], delay=12)
    async with connected(site(service)) as client:
        got = await client.ask(ask(stream=True))
    assert got.status == 200 and got.headers["content-type"].startswith("text/event-stream")
    assert got.body.startswith(BEAT * 2 + b"event: message_start\n") and got.body.count(BEAT) == 3
    assert got.body.endswith(b'data: {"type":"message_stop"}\n\n') and got.whole
    assert read_stream(list(parse_sse(got.body))).message["content"][0]["text"] == "Hello"


async def test_heartbeats_change_no_event(autojump_clock: Clock) -> None:
    async def body(delay: float) -> bytes:
        async with connected(site(ScriptedService(delay=delay))) as client:
            return (await client.ask(ask(stream=True))).body

    assert (await body(60)).replace(BEAT, b"") == await body(0)


async def test_a_whole_answer_has_no_heartbeat(autojump_clock: Clock) -> None:
    async with connected(site(ScriptedService(delay=60))) as client:
        got = await client.ask(ask())
    assert BEAT not in got.body and got.json["content"][0]["text"] == "Hello"


async def test_a_refusal_is_a_plain_reply_until_a_heartbeat_has_gone_out(autojump_clock: Clock) -> None:
    refusal = Fault(Kind.QUEUE_TIMEOUT, "too late")
    async with connected(site(ScriptedService(refusal=refusal, delay=3))) as client:
        got = await client.ask(ask(stream=True))
        assert (got.status, got.json["error"]["type"]) == (504, "timeout_error")
        assert got.json["request_id"] == got.headers["request-id"]
    async with connected(site(ScriptedService(refusal=refusal, delay=30))) as client:
        got = await client.ask(ask(stream=True))
        assert got.status == 200 and got.whole
        out = read_stream(list(parse_sse(got.body)))
        assert out.error and out.error["error"]["type"] == "timeout_error"
        assert out.error["request_id"] == got.headers["request-id"]


async def test_every_answer_carries_an_id_of_its_own_and_errors_repeat_it(autojump_clock: Clock) -> None:
    requests = [ask(), ask(stream=True), ask(max_tokens=0), ask(COUNT), ask(COUNT, model="")]
    requests += [ask("/v1/messages/batches")]
    async with connected(site(ScriptedService())) as client:
        answers = [await client.ask(raw) for raw in requests]
    ids = [got.headers["request-id"] for got in answers]
    assert len(set(ids)) == 6 and all("x-request-id" not in got.headers for got in answers)
    assert [got.status for got in answers] == [200, 200, 400, 200, 400, 404]
    for got in answers[2], answers[4], answers[5]:
        assert got.json["request_id"] == got.headers["request-id"] and got.json["type"] == "error"


@pytest.mark.parametrize("path", [PATH, COUNT])
async def test_a_query_changes_nothing(autojump_clock: Clock, path: str) -> None:
    async with connected(site(ScriptedService())) as client:
        plain = await client.ask(ask(path))
        beta = await client.ask(ask(f"{path}?beta=true"))
    assert plain.status == beta.status == 200 and plain.json.keys() == beta.json.keys()


@pytest.mark.parametrize(
    "bearer, key, status",
    [
        ("right", None, 200),
        (None, "right", 200),
        ("right", "wrong", 200),
        ("wrong", "right", 200),
        ("wrong", "wrong", 401),
        (None, None, 401),
    ],
)
async def test_either_key_opens(
    autojump_clock: Clock, bearer: str | None, key: str | None, status: int
) -> None:
    fields = [f"Authorization: Bearer {bearer}"] if bearer else []
    fields += [f"x-api-key: {key}"] if key else []
    raw = json.dumps(GOOD).encode()
    async with connected(site(ScriptedService(), key=KeyCheck("right"))) as client:
        got = await client.ask(post(PATH, raw, *fields))
    assert got.status == status
    if status == 401:
        assert got.json["error"]["type"] == "authentication_error" and got.json["request_id"]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_frees_its_place_at_once(autojump_clock: Clock, stream: bool) -> None:
    service = ScriptedService([answer(Wait(1000), content("never"))])
    async with connected(site(service)) as client:
        await client.end.send(ask(stream=stream))
        await trio.sleep(3)
        assert service.open_now == 1
        await client.end.aclose()
        await trio.testing.wait_all_tasks_blocked()
        assert (service.open_now, trio.current_time()) == (0, 3)
