"""A small site to serve in tests, and a client that reads answers with a parser of its own."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import attrs
import h11

from ninfer.faults import Fault, Kind, Refused, invalid
from ninfer.http.auth import KeyCheck
from ninfer.http.connection import Connection
from ninfer.http.exchange import Exchange, Reply, Request, Route
from ninfer.http.house import House
from ninfer.http.routes import build_router
from ninfer.http.site import Site
from ninfer.settings import Patience, WireLimits
from tests.http.memory import End, pair


def render_fault(path: str, status: int, fault: Fault, request_id: str) -> bytes:
    """An error shape that shows everything."""
    shown = {"path": path, "status": status, "code": fault.code, "message": fault.message, "id": request_id}
    return json.dumps(shown).encode()


# Handlers


async def ok(request: Request, exchange: Exchange) -> None:
    """Answer at once."""
    await exchange.reply(Reply(200, b'{"status":"ok"}'))


async def echo(request: Request, exchange: Exchange) -> None:
    """Answer with what was asked."""
    shown = {
        "method": request.method,
        "path": request.path,
        "query": request.query,
        "variables": dict(request.variables),
        "body": request.body.decode("latin-1"),
    }
    await exchange.reply(Reply(200, json.dumps(shown).encode()))


async def wait(request: Request, exchange: Exchange) -> None:
    """Work for ``?seconds`` and answer."""
    await anyio.sleep(float(request.query or "inf"))
    await exchange.reply(Reply(200, b"done", "text/plain"))


async def stream(request: Request, exchange: Exchange) -> None:
    """Stream the frames ``0`` to ``n-1`` with ``gap`` seconds before each: ``?n,gap``."""
    match = re.fullmatch(r"([0-9]{1,4}),([0-9]{1,4}(?:[.][0-9]+)?)", request.query)
    count, gap = match.groups() if match else ("3", "0")
    async with exchange.stream() as sink:
        for number in range(int(count)):
            await anyio.sleep(float(gap))
            await sink.send(f"data: {number}\n\n".encode())


async def refuse(request: Request, exchange: Exchange) -> None:
    """Refuse, before or after a stream began."""
    if request.query == "plain":
        raise invalid("no", code="no_way")
    async with exchange.stream() as sink:
        if request.query == "late":
            await sink.send(b"data: x\n\n")
        raise Refused(Fault(Kind.OVERLOADED, "full"))


async def crash(request: Request, exchange: Exchange) -> None:
    """Fail by a fault of ours."""
    if request.query == "late":
        async with exchange.stream() as sink:
            await sink.send(b"data: x\n\n")
            raise ZeroDivisionError
    raise ZeroDivisionError


async def silent(request: Request, exchange: Exchange) -> None:
    """Return without an answer."""


ROUTES = (
    Route("GET", "/health", ok, open=True, reserved=True),
    Route("GET", "/metrics", ok, reserved=True),
    Route("POST", "/echo", echo),
    Route("GET", "/echo", echo),
    Route("GET", "/things/{id}", echo),
    Route("DELETE", "/things/{id}", echo),
    Route("POST", "/wait", wait),
    Route("POST", "/stream", stream),
    Route("GET", "/stream", stream),
    Route("POST", "/refuse", refuse),
    Route("POST", "/crash", crash),
    Route("POST", "/silent", silent),
)


@attrs.define(eq=False)
class Crashes:
    """What ``on_crash`` heard."""

    heard: list[tuple[str, BaseException]] = attrs.field(factory=list)

    def __call__(self, request_id: str, exc: BaseException) -> None:
        """Keep it."""
        self.heard.append((request_id, exc))


def make_site(
    routes: Sequence[Route] = ROUTES,
    *,
    key: str | None = None,
    cors: bool = False,
    limits: WireLimits | None = None,
    patience: Patience | None = None,
    on_crash: Crashes | None = None,
) -> Site:
    """A site over ``routes`` with counted ids."""
    numbers = itertools.count(1)
    return Site(
        router=build_router(routes),
        render_fault=render_fault,
        new_id=lambda: f"req_{next(numbers)}",
        on_crash=on_crash or Crashes(),
        id_fields=(("/things", "request-id"),),
        key=KeyCheck(key),
        cors=cors,
        limits=limits or WireLimits(),
        patience=patience or Patience(),
        wall_clock=lambda: 0.0,
    )


# The client


@attrs.frozen
class Answer:
    """One answer as a client read it; ``whole`` is False when it was cut off."""

    status: int
    reason: str
    headers: dict[str, str]
    body: bytes
    whole: bool = True

    @property
    def json(self) -> Any:
        """The body, parsed."""
        return json.loads(self.body)


def head(method: str = "GET", target: str = "/health", *fields: str, host: str = "Host: a") -> bytes:
    """A request head."""
    lines = (f"{method} {target} HTTP/1.1", host, *fields, "", "")
    return "\r\n".join(lines).encode("latin-1")


def post(target: str = "/echo", body: bytes = b"", *fields: str) -> bytes:
    """A whole POST."""
    return head("POST", target, f"Content-Length: {len(body)}", *fields) + body


@attrs.define(eq=False)
class Client:
    """Reads answers off one end of a connection."""

    end: End
    _seen: bytes = b""
    _reader: h11.Connection = attrs.field(init=False)

    async def ask(self, raw: bytes, method: str = "GET") -> Answer:
        """Send a request and read its answer."""
        await self.end.send(raw)
        return await self.answer(method)

    async def answer(self, method: str = "GET") -> Answer:
        """Read the next answer."""
        reader = h11.Connection(h11.CLIENT)
        reader.send(h11.Request(method=method, target="/", headers=[("host", "a")]))
        reader.send(h11.EndOfMessage())
        if self._seen:
            reader.receive_data(self._seen)
        head, body = None, bytearray()
        while True:
            try:
                event = reader.next_event()
            except h11.RemoteProtocolError:
                assert head is not None, "the connection closed without an answer"
                return _answer(head, bytes(body), whole=False)
            if event is h11.NEED_DATA:
                reader.receive_data(await self._more())
            elif isinstance(event, h11.Response):
                head = event
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                assert head is not None
                self._seen = bytes(reader.trailing_data[0])
                return _answer(head, bytes(body))

    async def is_closed(self) -> bool:
        """Read to the end; True if nothing more comes."""
        return not self._seen and await self._more() == b""

    async def _more(self) -> bytes:
        try:
            return await self.end.receive()
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            return b""


def _answer(event: h11.Response, body: bytes, whole: bool = True) -> Answer:
    headers = {name.decode(): value.decode("latin-1") for name, value in event.headers}
    return Answer(event.status_code, bytes(event.reason).decode(), headers, body, whole)


@asynccontextmanager
async def connected(site: Site, house: House | None = None, room: int = 65_536) -> AsyncIterator[Client]:
    """Serve one connection of ``site``; the client's end is closed afterwards and nothing may leak."""
    house = house or House(site.limits)
    others = house.connections
    near, far = pair(room)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(Connection(far, site, house).run)
        yield Client(near)
        await near.aclose()
    assert house.connections == others
    assert others or (house.exchanges, house.body_bytes) == (0, 0)
