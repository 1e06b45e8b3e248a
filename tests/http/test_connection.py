"""What one connection promises: answers, deadlines to the second, and nothing left behind."""

from __future__ import annotations

import anyio
import attrs
import pytest
import trio
import trio.testing

from ninfer.faults import Fault, Kind, Refused, invalid
from ninfer.http.connection import Connection
from ninfer.http.exchange import Exchange, Reply, Request, Route
from ninfer.http.house import House
from ninfer.http.wire import Wire
from ninfer.settings import WireLimits
from tests.http.kit import Answer, Client, Crashes, connected, head, make_site, post
from tests.http.memory import pair

Clock = trio.testing.MockClock


async def timed(client: Client) -> tuple[Answer | None, float]:
    """The next answer, or None for a quiet close, and the clock when it came."""
    try:
        answer = await client.answer()
    except AssertionError:
        return None, trio.current_time()
    return answer, trio.current_time()


# Answers


async def test_requests_follow_each_other_on_one_connection(autojump_clock: Clock) -> None:
    async with connected(make_site()) as client:
        for number in range(3):
            answer = await client.ask(post(body=b"%d" % number))
            assert (answer.status, answer.reason, answer.json["body"]) == (200, "OK", str(number))


async def test_pipelined_requests_are_answered_in_order(autojump_clock: Clock) -> None:
    async with connected(make_site()) as client:
        await client.end.send(post(body=b"1") + post("/wait?3") + head() + post(body=b"4"))
        bodies = [(await client.answer()).body for _ in range(4)]
        assert bodies[1:3] == [b"done", b'{"status":"ok"}'] and b'"4"' in bodies[3]


async def test_pipelined_request_is_judged_as_strictly_as_the_first(autojump_clock: Clock) -> None:
    async with connected(make_site()) as client:
        await client.end.send(head() + b"GET /health HTTP/1.1\nHost: a\r\n\r\n")
        assert [(await client.answer()).status for _ in range(2)] == [200, 400]
        assert await client.is_closed()


async def test_a_pipelining_peer_is_held_back_by_its_own_socket(autojump_clock: Clock) -> None:
    async with connected(make_site(), room=1_000) as client, trio.open_nursery() as nursery:
        await client.end.send(post("/wait?50"))
        nursery.start_soon(client.end.send, head() * 2_000)
        await trio.sleep(40)
        assert client.end.most_held == 1_000  # 16 KiB were taken, the socket is full, the rest waits
        statuses = [(await client.answer()).status for _ in range(501)]
        assert set(statuses) == {200}
        nursery.cancel_scope.cancel()


async def test_every_answer_carries_its_own_id(autojump_clock: Clock) -> None:
    async with connected(make_site()) as client:
        requests = [head(), head("GET", "/things/1"), head("GET", "/nope"), post("/stream"), post("/crash")]
        answers = [await client.ask(raw) for raw in requests]
        ids = [a.headers.get("x-request-id") or a.headers["request-id"] for a in answers]
        assert len(set(ids)) == len(ids)
        assert "request-id" in answers[1].headers and "x-request-id" in answers[2].headers


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (head("GET", "/nope"), 404),
        (head("GET", "/health/"), 404),
        (head("GET", "//health"), 404),
        (head("GET", "/things/"), 404),
        (head("GET", "/things/a/b"), 404),
        (head("GET", "/things/%ff"), 400),
        (head("GET", "/things/%00"), 400),
        (head("PUT", "/health"), 405),
        (head("BREW", "/health"), 405),
        (post("/echo", b"x", "Content-Encoding: gzip"), 415),
        (head("POST", "/echo", "Content-Length: 999999999999"), 413),
        (head("POST", "/echo", "Content-Length: " + "9" * 30), 413),
    ],
)
async def test_requests_that_no_route_takes_are_told_why(
    autojump_clock: Clock, raw: bytes, status: int
) -> None:
    async with connected(make_site()) as client:
        answer = await client.ask(raw)
        assert (answer.status, answer.json["status"]) == (status, status)


async def test_405_names_the_methods_that_the_path_takes(autojump_clock: Clock) -> None:
    async with connected(make_site()) as client:
        answer = await client.ask(post("/things/1"))
        assert answer.headers["allow"] == "DELETE, GET, HEAD, OPTIONS"
        options = await client.ask(head("OPTIONS", "/things/1"))
        assert (options.status, options.headers["allow"], options.body) == (
            204,
            answer.headers["allow"],
            b"",
        )
        assert (await client.ask(head("OPTIONS", "*"))).status == 204


@pytest.mark.parametrize("target", ["/health", "/stream", "/nope"])
async def test_head_is_answered_like_get_without_the_body(autojump_clock: Clock, target: str) -> None:
    async with connected(make_site()) as client:
        want = await client.ask(head("GET", target))
        have = await client.ask(head("HEAD", target), "HEAD")
        assert (have.status, have.body) == (want.status, b"")
        keys = {"content-type", "content-length", "transfer-encoding"}
        assert {k for k in have.headers if k in keys} == {k for k in want.headers if k in keys}


async def test_http_1_0_is_answered_and_closed(autojump_clock: Clock) -> None:
    async with connected(make_site()) as client:
        answer = await client.ask(b"GET /health HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        assert await client.is_closed()


async def test_http_1_0_stream_ends_with_the_connection(autojump_clock: Clock) -> None:
    async with connected(make_site()) as client:
        answer = await client.ask(b"GET /stream HTTP/1.0\r\n\r\n")
        assert "transfer-encoding" not in answer.headers
        assert answer.body == b"data: 0\n\ndata: 1\n\ndata: 2\n\n"


@pytest.mark.parametrize(
    "field", ["Connection: close", "Connection: x, Close", "Upgrade: h2c\r\nConnection: upgrade"]
)
async def test_a_peer_that_wants_no_more_gets_a_close(autojump_clock: Clock, field: str) -> None:
    async with connected(make_site()) as client:
        answer = await client.ask(head("GET", "/health", field))
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        assert await client.is_closed()


async def test_a_chunked_request_is_served_and_is_the_last(autojump_clock: Clock) -> None:
    async with connected(make_site()) as client:
        raw = head("POST", "/echo", "Transfer-Encoding: chunked") + b"3;a=b\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
        answer = await client.ask(raw + head())
        assert (answer.json["body"], answer.headers["connection"]) == ("abcde", "close")
        assert await client.is_closed()


async def test_a_connection_carries_no_more_requests_than_allowed(autojump_clock: Clock) -> None:
    async with connected(make_site(limits=WireLimits(requests_per_connection=3))) as client:
        answers = [await client.ask(head()) for _ in range(3)]
        assert ["connection" in a.headers for a in answers] == [False, False, True]
        assert await client.is_closed()


# Bodies that are refused never become requests (case 15.1)

SMUGGLED = b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize(
    ("target", "key", "limit", "status"),
    [("/echo", "wrong", 999, 401), ("/nope", "right", 999, 404), ("/echo", "right", 10, 413)],
)
async def test_the_body_of_a_refused_request_is_never_taken_for_a_request(
    autojump_clock: Clock, target: str, key: str, limit: int, status: int, together: bool
) -> None:
    site = make_site(key="right", limits=WireLimits(body_bytes=limit))
    async with connected(site) as client:
        raw = post(target, SMUGGLED, f"x-api-key: {key}")
        cut = len(raw) if together else len(raw) - len(SMUGGLED)
        await client.end.send(raw[:cut])
        answer = await client.answer()
        assert answer.status == status
        if "connection" in answer.headers:
            assert await client.is_closed()
        else:
            assert (await client.ask(head())).body == b'{"status":"ok"}'


# Expect: 100-continue (case 15.2)

EXPECT = "Expect: 100-continue"


async def test_a_withheld_body_is_asked_for(autojump_clock: Clock) -> None:
    async with connected(make_site()) as client:
        await client.end.send(head("POST", "/echo", "Content-Length: 2", EXPECT))
        assert await client.end.receive() == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert (await client.ask(b"hi")).json["body"] == "hi"
        assert (await client.ask(head())).status == 200


async def test_a_body_that_will_be_refused_is_not_asked_for(autojump_clock: Clock) -> None:
    async with connected(make_site(limits=WireLimits(body_bytes=10))) as client:
        await client.end.send(head("POST", "/echo", "Content-Length: 11", EXPECT))
        assert (await client.end.receive()).startswith(b"HTTP/1.1 413 ")


async def test_a_body_sent_at_once_is_not_asked_for(autojump_clock: Clock) -> None:
    async with connected(make_site()) as client:
        await client.end.send(post("/echo", b"hi", EXPECT))
        assert (await client.end.receive()).startswith(b"HTTP/1.1 200 ")


# Slow peers, to the second


async def drip(client: Client, raw: bytes, gap: float) -> None:
    """Send a byte every ``gap`` seconds until nobody listens."""
    for byte in raw:
        await trio.sleep(gap)
        try:
            await client.end.send(bytes([byte]))
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            return


async def test_a_dripped_head_is_refused_ten_seconds_after_its_first_byte(autojump_clock: Clock) -> None:
    async with connected(make_site()) as client, trio.open_nursery() as nursery:
        nursery.start_soon(drip, client, head("GET", "/health", "X: " + "y" * 100), 0.9)
        answer, at = await timed(client)
        assert answer is not None and answer.status == 408 and at == pytest.approx(10.9)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("asked_before", [False, True])
async def test_an_idle_connection_closes_quietly(autojump_clock: Clock, asked_before: bool) -> None:
    async with connected(make_site()) as client:
        if asked_before:
            await client.ask(head())
        assert await timed(client) == (None, 75)


async def test_a_body_that_stalls_is_refused_fifteen_seconds_after_its_last_byte(
    autojump_clock: Clock,
) -> None:
    async with connected(make_site()) as client:
        await client.end.send(head("POST", "/echo", "Content-Length: 10"))
        await trio.sleep(4)
        await client.end.send(b"x")
        answer, at = await timed(client)
        assert answer is not None and (answer.status, at) == (408, 19)


async def test_a_body_below_the_floor_rate_is_refused_after_thirty_seconds(autojump_clock: Clock) -> None:
    async with connected(make_site()) as client, trio.open_nursery() as nursery:
        nursery.start_soon(drip, client, head("POST", "/echo", "Content-Length: 999") + b"x" * 900, 0.01)
        await trio.sleep(1)
        nursery.start_soon(drip, client, b"x" * 900, 5)
        answer, at = await timed(client)
        head_in = 0.01 * len(head("POST", "/echo", "Content-Length: 999"))
        assert answer is not None and answer.status == 408 and at == pytest.approx(30 + head_in)
        nursery.cancel_scope.cancel()


async def test_a_body_that_keeps_the_floor_rate_may_take_long(autojump_clock: Clock) -> None:
    async with connected(make_site(), room=1 << 20) as client, trio.open_nursery() as nursery:
        await client.end.send(head("POST", "/echo", f"Content-Length: {1_000_000 * 20}"))

        async def upload() -> None:
            for _ in range(20):
                await client.end.send(b"x" * 1_000_000)
                await trio.sleep(10)

        nursery.start_soon(upload)
        answer, at = await timed(client)
        assert answer is not None and (answer.status, at) == (200, 190)


@pytest.mark.parametrize("asked", ["/stream?1000,0", "/stream?2,9999"])
async def test_a_peer_that_stops_reading_is_given_up_after_fifteen_seconds(
    autojump_clock: Clock, asked: str
) -> None:
    house = House()
    async with connected(make_site(), house, room=100) as client:
        await client.end.send(post(asked))
        begun = {"/stream?1000,0": 0, "/stream?2,9999": 5}[asked]
        await trio.sleep_until(begun + 14.9)
        assert house.exchanges == 1
        await trio.sleep_until(begun + 15.1)
        assert (house.exchanges, house.departed) == (0, 1)


async def test_a_large_answer_may_take_long_but_not_stand_still(autojump_clock: Clock) -> None:
    async def large(request: Request, exchange: Exchange) -> None:
        await exchange.reply(Reply(200, b"x" * 1_000_000))

    house = House()
    async with connected(make_site([Route("GET", "/large", large)]), house) as client:
        await client.end.send(head("GET", "/large"))
        got = 0
        for _ in range(10):
            await trio.sleep(14)
            got += len(await client.end.receive())
        assert house.exchanges == 1 and got > 600_000
        await trio.sleep(15.1)
        assert (house.exchanges, house.departed) == (0, 1)


async def test_lingering_over_a_refused_body_ends_after_two_seconds(autojump_clock: Clock) -> None:
    house = House()
    async with connected(make_site(), house) as client:
        await client.end.send(head("POST", "/nope", "Content-Length: 999999"))
        assert (await client.answer()).status == 404
        for _ in range(19):
            await trio.sleep(0.1)
            await client.end.send(b"x" * 100)
        assert house.connections == 1
        await trio.sleep(0.2)
        assert house.connections == 0


# Peers that leave


@pytest.mark.parametrize("how", ["close", "half-close", "reset"])
@pytest.mark.parametrize("asked", ["/wait", "/stream?2,3600", "/stream?2,3"])
async def test_a_peer_that_leaves_cancels_its_handler_at_once(
    autojump_clock: Clock, how: str, asked: str
) -> None:
    house, crashes = House(), Crashes()
    async with connected(make_site(on_crash=crashes), house) as client:
        await client.end.send(post(asked))
        await trio.sleep(4)
        assert house.exchanges == 1
        if how == "reset":
            client.end.lose()
        else:
            await (client.end.send_eof() if how == "half-close" else client.end.aclose())
        await trio.testing.wait_all_tasks_blocked()
        assert (house.exchanges, house.departed, trio.current_time()) == (0, 1, 4)
        assert not crashes.heard


@pytest.mark.parametrize("raw", [head(), post(body=b"x"), head("GET", "/nope"), b"junk\r\n\r\n"])
async def test_a_short_question_is_answered_after_a_half_close(autojump_clock: Clock, raw: bytes) -> None:
    async with connected(make_site()) as client:
        await client.end.send(raw)
        await client.end.send_eof()
        assert (await client.answer()).whole
        assert await client.is_closed()


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("raw", [b"", b"GET / HT", head("POST", "/echo", "Content-Length: 5") + b"x"])
async def test_a_peer_that_leaves_in_its_own_sentence_is_let_go(
    autojump_clock: Clock, raw: bytes, reset: bool
) -> None:
    house, crashes = House(), Crashes()
    async with connected(make_site(on_crash=crashes), house) as client:
        await client.end.send(raw)
        await trio.testing.wait_all_tasks_blocked()
        client.end.lose() if reset else await client.end.aclose()
        await trio.testing.wait_all_tasks_blocked()
        assert (house.connections, trio.current_time()) == (0, 0)
        assert not crashes.heard


# Streams


async def test_silence_in_a_stream_is_filled_every_five_seconds(autojump_clock: Clock) -> None:
    heard: dict[float, bytes] = {}
    async with connected(make_site()) as client:
        await client.end.send(post("/stream?2,12"))
        while not b"".join(heard.values()).endswith(b"\r\n0\r\n\r\n"):
            data = await client.end.receive()
            heard[trio.current_time()] = heard.get(trio.current_time(), b"") + data
    heard[5] = heard[5].partition(b"\r\n\r\n")[2]
    beat, first, second = b"e\r\n: keep-alive\n\n\r\n", b"9\r\ndata: 0\n\n\r\n", b"9\r\ndata: 1\n\n\r\n"
    want = {5: beat, 10: beat, 12: first, 17: beat, 22: beat, 24: second + b"0\r\n\r\n"}
    assert heard == want


async def test_an_answer_that_is_no_stream_has_no_heartbeat(autojump_clock: Clock) -> None:
    async with connected(make_site()) as client:
        answer = await client.ask(post("/wait?60"))
        assert (answer.body, trio.current_time()) == (b"done", 60)


async def test_a_refusal_before_the_first_frame_is_a_plain_answer(autojump_clock: Clock) -> None:
    async with connected(make_site()) as client:
        for asked, status in [("/refuse?plain", 400), ("/refuse?early", 503)]:
            answer = await client.ask(post(asked))
            assert (answer.status, answer.headers["content-type"]) == (status, "application/json")
        assert (await client.ask(head())).status == 200


@pytest.mark.parametrize("asked", ["/refuse?late", "/crash?late"])
async def test_a_stream_that_fails_is_never_made_to_look_complete(
    autojump_clock: Clock, asked: str
) -> None:
    crashes = Crashes()
    async with connected(make_site(on_crash=crashes)) as client:
        answer = await client.ask(post(asked))
        assert (answer.status, answer.body, answer.whole) == (200, b"data: x\n\n", False)
        assert len(crashes.heard) == 1


@pytest.mark.parametrize("asked", ["/crash", "/silent"])
async def test_a_crash_is_reported_answered_500_and_survived(autojump_clock: Clock, asked: str) -> None:
    crashes = Crashes()
    async with connected(make_site(on_crash=crashes)) as client:
        answer = await client.ask(post(asked))
        assert (answer.status, answer.json["code"]) == (500, "internal_error")
        assert crashes.heard[0][0] == answer.headers["x-request-id"] == answer.json["id"]
        assert (await client.ask(head())).status == 200


@pytest.mark.parametrize(
    ("inner", "status"),
    [(invalid("no"), 400), (Refused(Fault(Kind.NOT_FOUND, "no")), 404), (KeyError(), 500)],
)
async def test_a_fault_out_of_task_groups_is_the_same_fault(
    autojump_clock: Clock, inner: Exception, status: int
) -> None:
    async def fail() -> None:
        raise inner

    async def grouped(request: Request, exchange: Exchange) -> None:
        async with anyio.create_task_group() as outer, anyio.create_task_group() as tasks:
            outer.start_soon(anyio.sleep, 1)
            tasks.start_soon(fail)

    crashes = Crashes()
    async with connected(make_site([Route("GET", "/", grouped)], on_crash=crashes)) as client:
        assert (await client.ask(head("GET", "/"))).status == status
        assert [exc for _, exc in crashes.heard] == ([inner] if status == 500 else [])


async def test_a_fault_in_our_own_reading_is_told_too(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(wire: Wire) -> None:
        raise KeyError("planted")

    monkeypatch.setattr(Wire, "next_event", broken)
    crashes = Crashes()
    async with connected(make_site(on_crash=crashes)) as client:
        assert (await client.ask(head())).status == 500
        assert await client.is_closed() and len(crashes.heard) == 1


@pytest.mark.parametrize("raw", [head("GET", "/nope"), post("/crash"), b"junk\r\n\r\n"])
async def test_a_fault_in_telling_costs_one_connection(autojump_clock: Clock, raw: bytes) -> None:
    def broken(*fault: object) -> bytes:
        raise KeyError("planted")

    crashes = Crashes()
    site = attrs.evolve(make_site(on_crash=crashes), render_fault=broken)
    house = House()
    async with connected(site, house) as other, connected(site, house) as client:
        await client.end.send(raw)
        assert await client.is_closed() and crashes.heard
        assert (await other.ask(head())).status == 200


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (head(), [("req_1", True)]),
        (post("/stream"), [("req_1", True)]),
        (post("/refuse?plain"), [("req_1", True)]),
        (post("/crash"), [("req_1", True)]),
        (post("/crash?late"), [("req_1", False)]),
        (post("/wait"), [("req_1", False)]),
        (head("GET", "/nope"), []),
    ],
)
async def test_every_handled_request_is_told_of_once(
    autojump_clock: Clock, raw: bytes, told: list[tuple[str, bool]]
) -> None:
    heard: list[tuple[str, bool]] = []
    site = attrs.evolve(
        make_site(), on_answered=lambda request_id, whole: heard.append((request_id, whole))
    )
    async with connected(site) as client:
        await client.end.send(raw)
        await trio.sleep(1)
    assert heard == told


async def test_answering_twice_is_a_crash(autojump_clock: Clock) -> None:
    async def twice(request: Request, exchange: Exchange) -> None:
        await exchange.reply(Reply(200, b"{}"))
        await exchange.reply(Reply(200, b"{}"))

    async def both(request: Request, exchange: Exchange) -> None:
        async with exchange.stream() as sink:
            await sink.send(b"data: x\n\n")
            await exchange.reply(Reply(200, b"{}"))

    crashes = Crashes()
    for handler in (twice, both):
        async with connected(make_site([Route("GET", "/", handler)], on_crash=crashes)) as client:
            assert (await client.ask(head("GET", "/"))).status == 200
            assert await client.is_closed()
    assert len(crashes.heard) == 2


async def test_an_empty_stream_is_a_whole_answer(autojump_clock: Clock) -> None:
    async with connected(make_site()) as client:
        answer = await client.ask(post("/stream?0,0"))
        assert (answer.status, answer.body, answer.whole) == (200, b"", True)
        assert (await client.ask(head())).status == 200


# Room


async def test_bodies_beyond_the_common_budget_are_turned_away(autojump_clock: Clock) -> None:
    site = make_site(limits=WireLimits(all_bodies_bytes=100))
    house = House(site.limits)
    async with connected(site, house) as first, connected(site, house) as second:
        await first.end.send(head("POST", "/echo", "Content-Length: 80") + b"x" * 70)
        await trio.testing.wait_all_tasks_blocked()
        assert house.body_bytes == 70
        assert (await second.ask(post(body=b"x" * 50))).status == 503
        assert (await first.ask(b"x" * 10)).status == 200
        await trio.testing.wait_all_tasks_blocked()
        assert house.body_bytes == 0


@pytest.mark.parametrize(("target", "status"), [("/health", 200), ("/echo", 503), ("/nope", 503)])
async def test_scarce_connections_serve_what_is_reserved(
    autojump_clock: Clock, target: str, status: int
) -> None:
    site = make_site()
    near, far = pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Connection(far, site, House(), scarce=True).run)
        client = Client(near)
        assert (await client.ask(head("GET", target))).status == status
        await near.aclose()
