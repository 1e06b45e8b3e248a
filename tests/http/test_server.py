"""The whole server: caps, reserve, eviction, graceful stop, listeners; once over real sockets."""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import attrs
import pytest
import trio
import trio.testing
from anyio.abc import SocketAttribute

from ninfer.faults import StartupError
from ninfer.http.exchange import Exchange, Request, Route
from ninfer.http.server import TURNING_AWAY, Server, listen, tune
from ninfer.http.site import Site
from ninfer.settings import Patience, WireLimits
from tests.http.kit import ROUTES, Client, Crashes, head, make_site, post
from tests.http.memory import End, MemoryListener

Clock = trio.testing.MockClock


@attrs.define
class House:
    """A running server and a way in."""

    server: Server
    listener: MemoryListener

    def enter(self) -> Client:
        return Client(self.listener.connect())


@asynccontextmanager
async def serving(site: Site) -> AsyncIterator[House]:
    """Run a server on a memory listener; at the end it is stopped and must hold nothing."""
    listener, server = MemoryListener(), Server(site)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.run, [listener])
        yield House(server, listener)
        server.stop()
    assert listener.closed
    held = server.statistics()
    assert (held.connections, held.idle, held.exchanges, held.body_bytes) == (0, 0, 0, 0)


def tight(connections: int, reserved: int = 0) -> Site:
    return make_site(limits=WireLimits(connections=connections, reserved_connections=reserved))


async def test_connections_beyond_the_limit_are_told_503_and_closed(autojump_clock: Clock) -> None:
    async with serving(tight(3)) as house:
        busy = [house.enter() for _ in range(3)]
        for client in busy:
            await client.end.send(post("/wait?50"))
        await trio.testing.wait_all_tasks_blocked()
        late = house.enter()
        answer = await late.answer()
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert await late.is_closed() and trio.current_time() == 0
        assert [(await client.answer()).status for client in busy] == [200] * 3
        await trio.sleep(1)
        assert (await house.enter().ask(head())).status == 200


async def test_the_reserve_serves_health_and_metrics_alone(autojump_clock: Clock) -> None:
    async with serving(tight(5, reserved=2)) as house:
        for _ in range(3):
            await house.enter().end.send(post("/wait?50"))
        await trio.testing.wait_all_tasks_blocked()
        for raw, status in [
            (head("GET", "/health"), 200),
            (head("GET", "/metrics"), 200),
            (post(), 503),
        ] * 2:
            probe = house.enter()
            answer = await probe.ask(raw)
            assert (answer.status, answer.headers["connection"]) == (status, "close")
            assert await probe.is_closed()


async def test_silent_connections_do_not_sit_in_the_reserve(autojump_clock: Clock) -> None:
    async with serving(tight(5, reserved=2)) as house:
        for _ in range(3):
            await house.enter().end.send(post("/wait?50"))
        for _ in range(2):
            house.enter()
        await trio.sleep(1)
        assert (await house.enter().ask(head())).status == 200


async def test_an_idle_connection_makes_room_for_a_newcomer(autojump_clock: Clock) -> None:
    async with serving(tight(3)) as house:
        idle = [house.enter() for _ in range(3)]
        for client in idle:
            await client.ask(head())
            await trio.sleep(1)
        newcomer = house.enter()
        assert (await newcomer.ask(head())).status == 200
        assert await idle[0].is_closed() and trio.current_time() == 3
        assert (await idle[1].ask(head())).status == 200
        assert house.server.statistics().evicted == 1


async def test_a_thousand_silent_connections_keep_nobody_out(autojump_clock: Clock) -> None:
    async with serving(tight(50, reserved=5)) as house:
        for _ in range(20):
            for _ in range(50):
                house.enter()
            await trio.sleep(1)
            assert house.server.statistics().connections <= 50
            assert (await house.enter().ask(post(body=b"x"))).status == 200


async def test_a_connection_that_has_hardly_sat_down_is_not_shown_out(autojump_clock: Clock) -> None:
    async with serving(tight(2)) as house:
        young = [house.enter() for _ in range(2)]
        await trio.sleep(0.9)
        assert (await house.enter().answer()).status == 503
        assert [(await client.ask(head())).status for client in young] == [200, 200]


async def test_a_flood_is_closed_without_words(autojump_clock: Clock) -> None:
    async with serving(tight(1)) as house:
        await house.enter().end.send(post("/wait?50"))
        await trio.testing.wait_all_tasks_blocked()
        flood = [house.enter() for _ in range(TURNING_AWAY + 10)]
        await trio.testing.wait_all_tasks_blocked()
        told = sum([not await client.is_closed() for client in flood])
        assert told == TURNING_AWAY
        assert house.server.statistics().turned_away == TURNING_AWAY + 10


# Stopping


async def test_a_stop_closes_idle_connections_at_once(autojump_clock: Clock) -> None:
    async with serving(make_site()) as house:
        idle = house.enter()
        await idle.ask(head())
        house.server.stop()
        assert await idle.is_closed() and trio.current_time() == 0


async def test_a_stop_lets_answers_drain_and_closes_behind_them(autojump_clock: Clock) -> None:
    async with serving(make_site()) as house:
        waiting, streaming = house.enter(), house.enter()
        await waiting.end.send(post("/wait?20"))
        await streaming.end.send(post("/stream?3,8"))
        await trio.sleep(1)
        house.server.stop()
        answer = await waiting.answer()
        assert (answer.body, answer.headers["connection"]) == (b"done", "close")
        streamed = await streaming.answer()
        assert streamed.whole and streamed.body.endswith(b"data: 2\n\n")
        assert await waiting.is_closed() and await streaming.is_closed()
    assert trio.current_time() == 24


async def test_answers_that_do_not_drain_in_time_are_cut(autojump_clock: Clock) -> None:
    async with serving(make_site()) as house:
        waiting, streaming = house.enter(), house.enter()
        await waiting.end.send(post("/wait?99"))
        await streaming.end.send(post("/stream?9,8"))
        await trio.sleep(1)
        house.server.stop()
        assert not (await streaming.answer()).whole
        assert await waiting.is_closed()
    assert trio.current_time() == 31


async def test_a_stop_while_a_request_is_read_serves_that_request(autojump_clock: Clock) -> None:
    async with serving(make_site()) as house:
        client = house.enter()
        await client.end.send(head("POST", "/echo", "Content-Length: 2") + b"h")
        await trio.sleep(1)
        house.server.stop()
        answer = await client.ask(b"i")
        assert (answer.json["body"], answer.headers["connection"]) == ("hi", "close")


async def test_a_cancelled_server_leaves_nothing(autojump_clock: Clock) -> None:
    server = Server(make_site())
    listener = MemoryListener()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.run, [listener])
        for raw in (
            b"",
            head()[:9],
            post("/wait"),
            post("/stream?2,99"),
            head("POST", "/echo", "Content-Length: 9"),
        ):
            await listener.connect().send(raw)
        await trio.testing.wait_all_tasks_blocked()
        assert server.statistics().connections == 5
        nursery.cancel_scope.cancel()
    held = server.statistics()
    assert (held.connections, held.idle, held.exchanges, held.body_bytes) == (0, 0, 0, 0)


@attrs.define(eq=False)
class FailingListener:
    """A listener whose first accepts fail as ``errors`` say."""

    inner: MemoryListener
    errors: list[int]

    async def accept(self) -> End:
        if self.errors:
            raise anyio.BrokenResourceError from OSError(self.errors.pop(0), "no")
        return await self.inner.accept()

    async def aclose(self) -> None:
        await self.inner.aclose()


@pytest.mark.parametrize(
    ("errors", "seconds"), [([errno.EMFILE] * 3, 0.3), ([errno.ECONNABORTED] * 3, 0), ([errno.ENFILE], 0.1)]
)
async def test_a_failing_accept_is_tried_again_after_a_breath(
    autojump_clock: Clock, errors: list[int], seconds: float
) -> None:
    server, inner = Server(make_site()), MemoryListener()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.run, [FailingListener(inner, errors)])
        assert (await Client(inner.connect()).ask(head())).status == 200
        assert trio.current_time() == pytest.approx(seconds)
        server.stop()


# Real sockets: a real clock, and few of them


@attrs.define(eq=False)
class Endless:
    """A handler that works until it is cancelled, and says so."""

    begun: anyio.Event = attrs.field(factory=anyio.Event)
    ended: anyio.Event = attrs.field(factory=anyio.Event)

    async def __call__(self, request: Request, exchange: Exchange) -> None:
        self.begun.set()
        try:
            await anyio.sleep_forever()
        finally:
            self.ended.set()


async def over_sockets() -> None:
    endless = Endless()
    server = Server(make_site([*ROUTES, Route("POST", "/endless", endless)]))
    listeners = await listen("127.0.0.1", 0)
    port = listeners[0].extra(SocketAttribute.local_port)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.run, listeners)
        async with await anyio.connect_tcp("127.0.0.1", port) as stream:
            client = Client(stream)  # type: ignore[arg-type]
            assert (await client.ask(head())).status == 200
            assert (await client.ask(post(body=b"x" * 300_000))).json["body"] == "x" * 300_000
            assert (await client.ask(post("/stream?3,0"))).body.count(b"data") == 3
        with anyio.fail_after(5):
            async with await anyio.connect_tcp("127.0.0.1", port) as stream:
                await stream.send(post("/endless"))
                await endless.begun.wait()
            await endless.ended.wait()
        server.stop()
    assert (server.statistics().departed, server.statistics().connections) == (1, 0)


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_it_serves_over_real_sockets_on_both_backends(backend: str) -> None:
    anyio.run(over_sockets, backend=backend)


UNFINISHED = [
    b"GET / HT",
    head("POST", "/echo", "Content-Length: 5") + b"x",
    b"junk\r\n\r\n" + b"x" * 70_000,
]


def leave(port: int, raw: bytes, *, reset: bool) -> None:
    """Connect, say something and go, all before the server has a turn."""
    with socket.create_connection(("127.0.0.1", port)) as peer:
        if reset:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.sendall(raw)


async def outlive_peers_that_leave(connections: int, reset: bool) -> None:
    crashes = Crashes()
    server = Server(
        make_site(on_crash=crashes, limits=WireLimits(connections=connections, reserved_connections=0))
    )
    listeners = await listen("127.0.0.1", 0)
    port = listeners[0].extra(SocketAttribute.local_port)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.run, listeners)
        for raw in UNFINISHED:
            leave(port, raw, reset=reset)
        async with await anyio.connect_tcp("127.0.0.1", port) as stream:
            answer = await Client(stream).ask(head())  # type: ignore[arg-type]
            assert answer.status == (200 if connections else 503)
        server.stop()
    assert not crashes.heard


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("room", [0, 64])
def test_peers_that_leave_before_their_refusal_cost_nobody_else_anything(
    backend: str, reset: bool, room: int
) -> None:
    anyio.run(outlive_peers_that_leave, room, reset, backend=backend)


async def refused(host: str, port: int) -> str:
    with pytest.raises(StartupError) as problem:
        await listen(host, port)
    return str(problem.value)


async def test_a_taken_port_says_what_to_do() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        message = await refused("127.0.0.1", port)
        assert f"127.0.0.1:{port}" in message and "taken" in message and "--port" in message


@pytest.mark.parametrize(
    ("host", "advice"), [("no.such.host.invalid", "--host"), ("203.0.113.7", "--host")]
)
async def test_an_impossible_address_says_what_to_do(host: str, advice: str) -> None:
    assert advice in await refused(host, 0)


async def test_accepted_sockets_notice_peers_that_vanish() -> None:
    [listener] = await listen("127.0.0.1", 0)
    port = listener.extra(SocketAttribute.local_port)
    async with listener, await anyio.connect_tcp("127.0.0.1", port), await listener.accept() as stream:
        tune(stream, Patience())
        raw, tcp = stream.extra(SocketAttribute.raw_socket), socket.IPPROTO_TCP
        assert raw.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert raw.getsockopt(tcp, socket.TCP_NODELAY)
        assert raw.getsockopt(tcp, socket.TCP_KEEPIDLE) == raw.getsockopt(tcp, socket.TCP_KEEPINTVL) == 5
        assert raw.getsockopt(tcp, socket.TCP_USER_TIMEOUT) == 15_000
