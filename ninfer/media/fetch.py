"""Acquisition of remote media, within bytes, time and address policy.

Owns the fetch policy: a host is resolved once, every answer must be admissible, and the connection
goes to a checked address while Host and SNI keep the name, so a resolver that changes its mind
(rebinding) gains nothing.  Each redirect is checked again.

The one thing a reader would get wrong: a refused address and an unreachable host give the same
message, so that answers do not map the inside of a network.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from typing import Literal
from urllib.parse import urljoin

import anyio
import attrs
import h11
from anyio.abc import ByteStream
from anyio.streams.tls import TLSStream

from ninfer.faults import Fault, Kind, Refused
from ninfer.media.address import BadUrl, Target, public, read_url
from ninfer.media.sources import Purse, bad_media, too_big

Policy = Literal["public", "any", "off"]
Resolve = Callable[[str, int], Awaitable[list[str]]]
Connect = Callable[[str, int], Awaitable[ByteStream]]
MOST_ADDRESSES = 4  # of one host are tried


@attrs.frozen
class FetchLimits:
    """Bounds of one acquisition: seconds, hops, ports under the public policy."""

    seconds: float = 20.0
    stall_seconds: float = 5.0  # connecting, and each wait for bytes
    redirects: int = 5
    ports: frozenset[int] = frozenset({80, 443})


async def resolve(host: str, port: int) -> list[str]:
    """Resolve a host through the system, in the system's order."""
    found = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in found]


async def connect(address: str, port: int) -> ByteStream:
    """Open a TCP connection to a literal address."""
    return await anyio.connect_tcp(address, port)


@cache
def trusted() -> ssl.SSLContext:
    """Load the system's certificates, once: it takes tens of milliseconds."""
    return ssl.create_default_context()


@attrs.frozen
class Fetcher:
    """Gets the bytes of media URLs.  DNS and connections are injected so that tests own them."""

    policy: Policy = "public"
    limits: FetchLimits = attrs.field(factory=FetchLimits)
    resolve: Resolve = resolve
    connect: Connect = connect
    trust: Callable[[], ssl.SSLContext] = trusted

    async def fetch(self, url: str, param: str, purse: Purse) -> list[bytes]:
        """Return the body of ``url`` in pieces, none of them joined on the event loop.

        Raises ``Refused``: INVALID ``invalid_media`` for a URL that can never work,
        ``media_budget_exceeded`` beyond the purse, FETCH_FAILED or FETCH_TIMEOUT for a remote that
        does not deliver.
        """
        try:
            target = read_url(url)
        except BadUrl as fault:
            raise bad_media(str(fault), param) from None
        if self.policy == "off":
            raise bad_media("this server does not fetch remote media; send a data URI", param)
        try:
            with anyio.fail_after(self.limits.seconds):
                return await self._follow(url, target, param, purse)
        except TimeoutError:
            message = f"{param}: the media URL did not deliver within {self.limits.seconds:g} s"
            raise Refused(Fault(Kind.FETCH_TIMEOUT, message, "media_fetch_timeout", param)) from None
        except (h11.ProtocolError, anyio.BrokenResourceError, anyio.EndOfStream, OSError, UnicodeError):
            raise _failed("the media URL could not be reached", param) from None

    async def _follow(self, url: str, target: Target, param: str, purse: Purse) -> list[bytes]:
        for _ in range(self.limits.redirects + 1):
            async with await self._reach(target) as stream:
                answer = await _Ask(stream, self.limits.stall_seconds).send(target)
                if answer.status not in (301, 302, 303, 307, 308):
                    return await _body(answer, param, purse)
            try:
                url = urljoin(url, answer.header(b"location"))
                target = read_url(url)
            except ValueError:  # BadUrl is one
                raise _failed("the media URL redirects to a URL that cannot be fetched", param) from None
        raise _failed(f"the media URL redirects more than {self.limits.redirects} times", param)

    async def _reach(self, target: Target) -> ByteStream:
        """Resolve once, refuse unless every answer is admissible, connect to the first that listens."""
        if self.policy == "public" and target.port not in self.limits.ports:
            raise OSError("port not admitted")
        with anyio.fail_after(self.limits.stall_seconds):
            addresses = await self.resolve(target.host, target.port)
            if not addresses or (self.policy == "public" and not all(map(public, addresses))):
                raise OSError("no admissible address")
            stream = await self._first(addresses[:MOST_ADDRESSES], target.port)
            if target.scheme == "http":
                return stream
            try:
                return await TLSStream.wrap(
                    stream, hostname=target.host, ssl_context=self.trust(), standard_compatible=False
                )
            except BaseException:
                await anyio.aclose_forcefully(stream)
                raise

    async def _first(self, addresses: Sequence[str], port: int) -> ByteStream:
        for address in addresses[:-1]:
            try:
                with anyio.fail_after(self.limits.stall_seconds / len(addresses)):
                    return await self.connect(address, port)
            except OSError:  # TimeoutError is one
                continue
        return await self.connect(addresses[-1], port)


async def _body(answer: _Ask, param: str, purse: Purse) -> list[bytes]:
    if answer.status != 200:
        raise _failed(f"the media URL answered with status {answer.status}", param)
    declared, size = answer.header(b"content-length"), 0
    if declared.isdigit() and int(declared) > purse.item:
        raise too_big(purse.item, param)
    pieces = []
    while piece := await answer.data():
        size += len(piece)
        if size > purse.item:
            raise too_big(purse.item, param)
        purse.take(len(piece), param)
        pieces.append(piece)
    if not pieces:
        raise _failed("the media URL answered with an empty body", param)
    return pieces


@attrs.define(eq=False)
class _Ask:
    """One GET on one connection; ``stall`` bounds each wait for bytes, in seconds."""

    stream: ByteStream
    stall: float
    status: int = 0
    _headers: list[tuple[bytes, bytes]] = attrs.field(factory=list)
    _h11: h11.Connection = attrs.field(factory=lambda: h11.Connection(h11.CLIENT))

    async def send(self, target: Target) -> _Ask:
        """Send the request and wait for the head of the answer."""
        headers = [("Host", target.authority), ("Accept", "image/*, video/*"), ("Connection", "close")]
        head = h11.Request(method="GET", target=target.path, headers=headers)
        await self.stream.send((self._h11.send(head) or b"") + (self._h11.send(h11.EndOfMessage()) or b""))
        event = await self._next()
        while isinstance(event, h11.InformationalResponse):
            event = await self._next()
        if not isinstance(event, h11.Response):
            raise OSError("no answer")
        self.status, self._headers = event.status_code, list(event.headers)
        return self

    async def data(self) -> bytes:
        """Return the next piece of the body, empty at its end."""
        event = await self._next()
        return bytes(event.data) if isinstance(event, h11.Data) else b""

    def header(self, name: bytes) -> str:
        """Return a header's first value, or an empty string."""
        return next((value.decode("latin-1") for key, value in self._headers if key == name), "")

    async def _next(self) -> object:
        while (event := self._h11.next_event()) is h11.NEED_DATA:
            with anyio.fail_after(self.stall):
                try:
                    received = await self.stream.receive(65536)
                except anyio.EndOfStream:
                    received = b""
            self._h11.receive_data(received)
        return event


def _failed(message: str, param: str) -> Refused:
    return Refused(Fault(Kind.FETCH_FAILED, f"{param}: {message}", "media_fetch_failed", param))
