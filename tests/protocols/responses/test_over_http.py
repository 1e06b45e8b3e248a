"""Responses behind the real HTTP room: heartbeats, ids, methods, clients that leave."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
import trio.testing

from ninfer.faults import Fault, Kind
from ninfer.http.site import Site
from ninfer.protocols.responses.handler import responses_routes
from tests.http.kit import connected, make_site, post
from tests.protocols.fakes import ScriptedService, Wait, answer, content, kit, parse_sse
from tests.protocols.responses.desk import GOOD, check_stream

BEAT = b": keep-alive\n\n"
Clock = trio.testing.MockClock


def site(service: ScriptedService) -> Site:
    return make_site(responses_routes(kit(service)))


def ask(**change: Any) -> bytes:
    return post("/v1/responses", json.dumps({**GOOD, **change}).encode())


def get(path: str, method: str = "GET") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode()


async def test_a_silence_is_filled_with_heartbeats_and_they_change_no_event(autojump_clock: Clock) -> None:
    async def body(delay: float, pause: float) -> bytes:
        service = ScriptedService([answer(Wait(pause), content("Hello"))], delay=delay)
        async with connected(site(service)) as client:
            got = await client.ask(ask(stream=True))
        assert got.status == 200 and got.whole
        assert got.headers["content-type"].startswith("text/event-stream")
        return got.body

    slow, fast = await body(12, 7), await body(0, 0)
    assert slow.startswith(BEAT * 2 + b"event: response.created\n") and slow.count(BEAT) == 3
    assert slow.replace(BEAT, b"") == fast
    assert check_stream(list(parse_sse(slow)))["status"] == "completed"


async def test_a_whole_answer_has_no_heartbeat_and_is_stored_as_it_was_sent(autojump_clock: Clock) -> None:
    async with connected(site(ScriptedService(delay=60))) as client:
        got = await client.ask(ask())
        assert BEAT not in got.body
        kept = await client.ask(get(f"/v1/responses/{got.json['id']}"))
        assert kept.body == got.body


async def test_a_refusal_after_a_heartbeat_is_a_whole_failed_stream(autojump_clock: Clock) -> None:
    refusal = Fault(Kind.QUEUE_TIMEOUT, "too late")
    async with connected(site(ScriptedService(refusal=refusal, delay=3))) as client:
        got = await client.ask(ask(stream=True))
        assert (got.status, got.json["error"]["code"]) == (503, "request_queue_timeout")
    async with connected(site(ScriptedService(refusal=refusal, delay=30))) as client:
        got = await client.ask(ask(stream=True))
        assert got.status == 200 and got.whole
        terminal = check_stream(list(parse_sse(got.body)))
        assert terminal["error"]["code"] == "request_queue_timeout"


async def test_every_answer_carries_an_id_of_its_own(autojump_clock: Clock) -> None:
    asked = [ask(), ask(stream=True), ask(background=True), get("/v1/responses/resp_x")]
    async with connected(site(ScriptedService())) as client:
        answers = [await client.ask(raw) for raw in asked]
    assert [got.status for got in answers] == [200, 200, 400, 404]
    assert len({got.headers["x-request-id"] for got in answers}) == 4


async def test_every_resource_is_routed(autojump_clock: Clock) -> None:
    async with connected(site(ScriptedService())) as client:
        id = (await client.ask(ask())).json["id"]
        path = f"/v1/responses/{id}"
        assert (await client.ask(get(path))).status == 200
        assert (await client.ask(get(f"{path}/input_items?order=asc&limit=5"))).json["object"] == "list"
        assert (await client.ask(post(f"{path}/cancel", b"{}"))).status == 400
        assert (await client.ask(post("/v1/responses/compact", b"{}"))).status == 400
        counted = await client.ask(post("/v1/responses/input_tokens", json.dumps(GOOD).encode()))
        assert counted.json == {"object": "response.input_tokens", "input_tokens": 10}
        assert (await client.ask(get("/v1/responses/input_tokens"))).status == 405
        assert (await client.ask(get(path, "DELETE"))).json["deleted"] is True
        assert (await client.ask(get(path))).status == 404


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_frees_its_place_and_leaves_nothing(
    autojump_clock: Clock, stream: bool
) -> None:
    service = ScriptedService([answer(content("x"), Wait(1000))])
    async with connected(site(service)) as client:
        await client.end.send(ask(stream=stream))
        await trio.sleep(3)
        assert service.open_now == 1
        await client.end.aclose()
        await trio.testing.wait_all_tasks_blocked()
        assert (service.open_now, trio.current_time()) == (0, 3)
    async with connected(site(service)) as client:
        assert (await client.ask(get(f"/v1/responses/{service.asks[0].response_id}"))).status == 404
