"""The way out: bytes leave in order whichever way they go, and no writer keeps the loop for itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest
import trio
import trio.testing
from anyio.abc import SocketStream

from ninfer.http.exchange import PeerGone
from ninfer.http.outlet import STREAK, Outlet
from ninfer.http.server import listen
from tests.http.memory import pair


@asynccontextmanager
async def sockets() -> AsyncIterator[tuple[SocketStream, SocketStream]]:
    """Both ends of a real connection."""
    [listener] = await listen("127.0.0.1", 0)
    port = listener.extra(anyio.abc.SocketAttribute.local_port)
    async with listener, await anyio.connect_tcp("127.0.0.1", port) as near, await listener.accept() as far:
        yield near, far


async def send_all(outlet: Outlet, pieces: list[bytes]) -> None:
    for piece in pieces:
        sent = outlet.at_once(piece)
        if sent < len(piece):
            await outlet.send(piece[sent:])
    await outlet.stream.send_eof()


async def everything_arrives_in_order() -> None:
    pieces = [bytes([number % 256]) * (number * 97 % 70_000 + 1) for number in range(400)]
    heard = bytearray()
    async with sockets() as (near, far), anyio.create_task_group() as tasks:
        tasks.start_soon(send_all, Outlet(far), pieces)
        try:
            while True:
                heard += await near.receive()
        except anyio.EndOfStream:
            pass
    assert heard == b"".join(pieces)


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_more_than_the_kernel_holds_arrives_in_order(backend: str) -> None:
    anyio.run(everything_arrives_in_order, backend=backend)


async def test_after_a_streak_the_loop_gets_its_turn() -> None:
    async with sockets() as (_, far):
        outlet = Outlet(far)
        assert [outlet.at_once(b"x") for _ in range(STREAK + 2)] == [1] * STREAK + [0, 0]
        with trio.testing.assert_checkpoints():
            await outlet.send(b"x")
        assert outlet.at_once(b"x") == 1


async def test_nobody_to_take_it_is_told_on_every_way() -> None:
    async with sockets() as (near, far):
        outlet = Outlet(far)
        await near.aclose()
        for way in (outlet.send_in_time(b"x" * 9_999_999, 5), outlet.send_in_time(b"x", 5)):
            with pytest.raises(PeerGone):
                await way
        with pytest.raises(PeerGone):
            await outlet.send(b"x")
        await far.aclose()
        with pytest.raises(PeerGone):
            outlet.at_once(b"x")


async def test_a_peer_that_takes_nothing_in_time_is_gone(autojump_clock: trio.testing.MockClock) -> None:
    near, far = pair(room=10)
    outlet = Outlet(far)
    assert outlet.at_once(b"x") == 0  # memory has no kernel
    await outlet.send_in_time(b"x" * 10, 3)
    with pytest.raises(PeerGone):
        await outlet.send_in_time(b"y", 3)
    assert trio.current_time() == 3 and await near.receive() == b"x" * 10
