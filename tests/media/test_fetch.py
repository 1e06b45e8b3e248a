"""Acquisition: policy, budgets, redirects and rebinding, against a scripted local origin."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import anyio
import pytest
import trio

from ninfer.faults import Kind, Refused
from ninfer.media.fetch import Fetcher, FetchLimits
from ninfer.media.sources import Purse

PIXEL = b"\x89PNG pretend"
Origin = Callable[[bytes], Awaitable[bytes]]


async def get(fetcher: Fetcher, url: str, most: int = 1 << 20) -> bytes:
    """Fetch within a budget of ``most`` bytes."""
    return b"".join(await fetcher.fetch(url, "p", Purse(most, most)))


def answer(status: str, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


@pytest.fixture
async def origin() -> AsyncIterator[tuple[str, dict[str, bytes], list[bytes]]]:
    """A loopback origin: path -> raw answer; what was asked is recorded."""
    pages: dict[str, bytes] = {}
    heard: list[bytes] = []

    async def serve(stream: trio.SocketStream) -> None:
        head = await stream.receive_some(65536)
        heard.append(head)
        path = head.split(b" ")[1].decode()
        with anyio.move_on_after(5):
            if path == "/silent":
                await trio.sleep_forever()
            await stream.send_all(pages[path])
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, serve, listeners)
        port = listeners[0].socket.getsockname()[1]
        yield f"http://127.0.0.1:{port}", pages, heard
        nursery.cancel_scope.cancel()


def resolver(*answers: list[str]) -> tuple[Callable[[str, int], Awaitable[list[str]]], list[str]]:
    """A DNS that gives the next answer each time it is asked."""
    asked: list[str] = []

    async def resolve(host: str, port: int) -> list[str]:
        asked.append(host)
        return answers[min(len(asked), len(answers)) - 1]

    return resolve, asked


async def test_any_policy_fetches_from_loopback(origin) -> None:  # type: ignore[no-untyped-def]
    base, pages, heard = origin
    pages["/a.png"] = answer("200 OK", PIXEL)
    assert await get(Fetcher("any"), f"{base}/a.png") == PIXEL
    assert heard[0].startswith(b"GET /a.png HTTP/1.1\r\n")


async def test_public_policy_connects_nowhere_inside(origin) -> None:  # type: ignore[no-untyped-def]
    base, pages, heard = origin
    pages["/a.png"] = answer("200 OK", PIXEL)
    port = int(base.rsplit(":", 1)[1])
    limits = FetchLimits(ports=frozenset({port}))
    for host in ("127.0.0.1", "localhost", "2130706433", "0x7f000001", "127.1", "[::ffff:127.0.0.1]"):
        with pytest.raises(Refused) as caught:
            await get(Fetcher("public", limits), f"http://{host}:{port}/a.png")
        assert caught.value.fault.code == "media_fetch_failed"
    assert heard == []


async def test_a_host_with_one_inside_answer_is_refused(origin) -> None:  # type: ignore[no-untyped-def]
    _, _, heard = origin
    resolve, _ = resolver(["93.184.216.34", "127.0.0.1"])
    with pytest.raises(Refused):
        await get(Fetcher("public", resolve=resolve), "http://mixed.example/a")
    assert heard == []


async def test_rebinding_between_check_and_connect_gains_nothing(origin) -> None:  # type: ignore[no-untyped-def]
    base, pages, heard = origin
    pages["/a.png"] = answer("200 OK", PIXEL)
    port = int(base.rsplit(":", 1)[1])
    resolve, asked = resolver(["192.0.2.1"], ["127.0.0.1"])
    limits = FetchLimits(ports=frozenset({port}), stall_seconds=0.2)
    with pytest.raises(Refused):
        await get(Fetcher("public", limits, resolve), f"http://rebind.example:{port}/a.png")
    assert asked == ["rebind.example"] and heard == []


async def test_redirects_are_followed_and_checked_again(origin) -> None:  # type: ignore[no-untyped-def]
    base, pages, _ = origin
    pages["/one"] = answer("302 Found", b"", "Location: /two")
    pages["/two"] = answer("200 OK", PIXEL)
    pages["/file"] = answer("302 Found", b"", "Location: file:///etc/passwd")
    pages["/loop"] = answer("302 Found", b"", "Location: /loop")
    assert await get(Fetcher("any"), f"{base}/one") == PIXEL
    for path in ("/file", "/loop"):
        with pytest.raises(Refused) as caught:
            await get(Fetcher("any"), base + path)
        assert caught.value.fault.kind is Kind.FETCH_FAILED


async def test_byte_budget_holds_for_declared_and_endless_bodies(origin) -> None:  # type: ignore[no-untyped-def]
    base, pages, _ = origin
    pages["/declared"] = answer("200 OK", b"x" * 4096)
    pages["/chunked"] = (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"400\r\n" + b"x" * 1024 + b"\r\n"
    )
    pages["/chunked"] += b"400\r\n" + b"x" * 1024 + b"\r\n0\r\n\r\n"
    for path in ("/declared", "/chunked"):
        with pytest.raises(Refused) as caught:
            await get(Fetcher("any"), base + path, 1500)
        assert caught.value.fault.code == "media_budget_exceeded"


async def test_a_silent_origin_times_out_with_its_own_code(origin) -> None:  # type: ignore[no-untyped-def]
    base, _, _ = origin
    for limits in (FetchLimits(seconds=0.1), FetchLimits(stall_seconds=0.1)):
        with pytest.raises(Refused) as caught:
            await get(Fetcher("any", limits), f"{base}/silent")
        assert caught.value.fault.code == "media_fetch_timeout"


@pytest.mark.parametrize(
    "raw", [answer("404 Not Found"), answer("500 No"), b"not http at all\r\n\r\n", b""]
)
async def test_bad_answers_are_fetch_failures(origin, raw: bytes) -> None:  # type: ignore[no-untyped-def]
    base, pages, _ = origin
    pages["/bad"] = raw
    with pytest.raises(Refused) as caught:
        await get(Fetcher("any"), f"{base}/bad")
    assert caught.value.fault.code == "media_fetch_failed"


async def test_off_policy_fetches_nothing() -> None:
    with pytest.raises(Refused, match="does not fetch"):
        await get(Fetcher("off"), "http://example.com/a.png")
