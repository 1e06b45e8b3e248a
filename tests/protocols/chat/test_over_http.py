"""Chat behind the real HTTP room: heartbeats, ids, refusals late and early, clients that leave."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
import trio.testing

from ninfer.faults import Fault, Kind
from ninfer.http.site import Site
from ninfer.protocols.chat.handler import chat_routes
from tests.http.kit import connected, make_site, post
from tests.protocols.chat.cases import GOOD
from tests.protocols.fakes import ScriptedService, Wait, answer, check_chat_stream, content, kit, parse_sse

BEAT = b": keep-alive\n\n"
Clock = trio.testing.MockClock


def site(service: ScriptedService) -> Site:
    return make_site(chat_routes(kit(service)))


def ask(**change: Any) -> bytes:
    return post("/v1/chat/completions", json.dumps({**GOOD, **change}).encode())


async def test_a_long_wait_for_a_place_is_filled_with_heartbeats(autojump_clock: Clock) -> None:
    service = ScriptedService([answer(Wait(7), content("Hello"))], delay=12)
    async with connected(site(service)) as client:
        got = await client.ask(ask(stream=True))
    assert got.status == 200 and got.headers["content-type"].startswith("text/event-stream")
    assert got.body.startswith(BEAT * 2 + b"data: ") and got.body.count(BEAT) == 3
    assert got.body.endswith(b"data: [DONE]\n\n") and got.whole
    assert check_chat_stream(list(parse_sse(got.body))).content == "Hello"


async def test_heartbeats_change_no_event(autojump_clock: Clock) -> None:
    async def body(delay: float) -> bytes:
        async with connected(site(ScriptedService(delay=delay))) as client:
            return (await client.ask(ask(stream=True))).body

    assert (await body(60)).replace(BEAT, b"") == await body(0)


async def test_a_whole_answer_has_no_heartbeat(autojump_clock: Clock) -> None:
    async with connected(site(ScriptedService(delay=60))) as client:
        got = await client.ask(ask())
    assert BEAT not in got.body and got.json["choices"][0]["message"]["content"] == "Hello"


async def test_a_refusal_is_a_plain_reply_until_a_heartbeat_has_gone_out(autojump_clock: Clock) -> None:
    refusal = Fault(Kind.QUEUE_TIMEOUT, "too late")
    async with connected(site(ScriptedService(refusal=refusal, delay=3))) as client:
        got = await client.ask(ask(stream=True))
        assert (got.status, got.json["error"]["code"]) == (503, "request_queue_timeout")
    async with connected(site(ScriptedService(refusal=refusal, delay=30))) as client:
        got = await client.ask(ask(stream=True))
        assert got.status == 200 and got.whole
        out = check_chat_stream(list(parse_sse(got.body)))
        assert out.error and out.error["code"] == "request_queue_timeout"


async def test_every_answer_carries_an_id_of_its_own(autojump_clock: Clock) -> None:
    async with connected(site(ScriptedService())) as client:
        answers = [await client.ask(raw) for raw in (ask(), ask(stream=True), ask(n=2), ask())]
    ids = [got.headers["x-request-id"] for got in answers]
    assert len(set(ids)) == 4 and [got.status for got in answers] == [200, 200, 400, 200]


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
