"""Cancellation at every suspension of every path: nothing stays open, nothing is counted twice."""

from __future__ import annotations

import anyio
import pytest
import trio
import trio.testing

from ninfer.http.connection import Connection, turn_away
from ninfer.http.house import House
from ninfer.http.server import Server
from ninfer.http.site import Site
from ninfer.settings import WireLimits
from tests.http.kit import Client, Crashes, head, make_site, post
from tests.http.memory import MemoryListener, pair
from tests.sim.everywhere import cancelled_everywhere

Clock = trio.testing.MockClock

PATHS = {
    "plain": head(),
    "body": post(body=b"x" * 3_000),
    "chunked": head("POST", "/echo", "Transfer-Encoding: chunked") + b"3\r\nabc\r\n0\r\n\r\n",
    "100-continue": head("POST", "/echo", "Content-Length: 2", "Expect: 100-continue"),
    "pipelined": head() * 3,
    "waiting": post("/wait?7"),
    "stream": post("/stream?3,1"),
    "stream with heartbeats": post("/stream?2,12"),
    "stream to a stuck reader": post("/stream?9,0"),
    "HTTP/1.0 stream": b"GET /stream HTTP/1.0\r\n\r\n",
    "refused": head("POST", "/nope", "Content-Length: 9"),
    "malformed": b"GET / HTTP/1.1\r\n\r\n",
    "refusal of the handler": post("/refuse?early"),
    "late refusal": post("/refuse?late"),
    "crash": post("/crash"),
    "late crash": post("/crash?late"),
    "silence": post("/silent"),
    "large answer": head("GET", "/echo?" + "x" * 3_000),
    "cut-off head": b"GET / HT",
    "cut-off body": head("POST", "/echo", "Content-Length: 9") + b"x",
    "nothing": b"",
}


async def talk(site: Site, house: House, raw: bytes) -> None:
    """One peer that sends, reads a while through a narrow socket, and leaves."""
    near, far = pair(room=200)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Connection(far, site, house).run)
        nursery.start_soon(_send, near, raw)
        with trio.move_on_after(20):
            while await Client(near)._more():
                pass
        await near.aclose()


async def _send(near: anyio.abc.ByteSendStream, raw: bytes) -> None:
    try:
        await near.send(raw)
    except anyio.BrokenResourceError:
        return


@pytest.mark.parametrize("path", PATHS)
async def test_every_path_can_be_cancelled_anywhere(autojump_clock: Clock, path: str) -> None:
    crashes = Crashes()
    site = make_site(on_crash=crashes)
    house = House(site.limits)
    crashing = path in ("crash", "late crash", "silence", "late refusal")
    async for at in cancelled_everywhere(lambda: talk(site, house, PATHS[path])):
        held = house.statistics()
        assert (held.connections, held.idle, held.exchanges, held.body_bytes) == (0, 0, 0, 0), at
        assert crashing or not crashes.heard, at


async def test_turning_away_can_be_cancelled_anywhere(autojump_clock: Clock) -> None:
    async def scenario() -> None:
        near, far = pair(room=50)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(turn_away, far, make_site())
            await Client(near).answer()
            await trio.sleep(5)
        assert far.closed

    assert [at async for at in cancelled_everywhere(scenario)][-1] > 5


async def test_a_server_can_be_cancelled_anywhere(autojump_clock: Clock) -> None:
    site = make_site(limits=WireLimits(connections=2, reserved_connections=0))
    servers = []

    async def scenario() -> None:
        server, listener = Server(site), MemoryListener()
        servers.append(server)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.run, [listener])
            ends = [listener.connect() for _ in range(4)]
            for end in ends:
                nursery.start_soon(_send, end, post("/stream?2,6"))
            await trio.sleep(7)
            server.stop()

    async for at in cancelled_everywhere(scenario):
        held = servers.pop().statistics()
        assert (held.connections, held.idle, held.exchanges) == (0, 0, 0), at
