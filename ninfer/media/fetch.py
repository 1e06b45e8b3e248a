"""Acquisition of media bytes: data URIs and remote URLs, within bytes, time and address policy.

Owns the fetch policy: a host is resolved once, every answer must be admissible, and the connection
goes to a checked address while Host and SNI keep the name, so a resolver that changes its mind
(rebinding) gains nothing.  Each redirect is checked again.

The one thing a reader would get wrong: a refused address and an unreachable host give the same
message, so that answers do not map the inside of a network.
"""

from __future__ import annotations

import base64
import binascii
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Literal
from urllib.parse import unquote_to_bytes, urljoin

import anyio
import attrs
import h11
from anyio.abc import ByteStream
from anyio.streams.tls import TLSStream

from ninfer.faults import Fault, Kind, Refused, invalid
from ninfer.media.address import BadUrl, Target, public, read_url

Policy = Literal["public", "any", "off"]
Resolve = Callable[[str, int], Awaitable[list[str]]]
BASE64_STEP = 4 << 20  # characters decoded at a time, because decoding holds the interpreter lock


@attrs.frozen
class FetchLimits:
    """Bounds of one acquisition: bytes, seconds, hops."""

    item_bytes: int = 64 << 20
    seconds: float = 20.0
    stall_seconds: float = 5.0  # connecting, and each wait for bytes
    redirects: int = 5
    ports: frozenset[int] = frozenset({80, 443})


async def resolve(host: str, port: int) -> list[str]:
    """Resolve a host through the system, in the system's order."""
    found = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in found]


@attrs.frozen
class Fetcher:
    """Gets the bytes of a media source.  ``resolve_host`` is injected so that tests own the DNS."""

    policy: Policy = "public"
    limits: FetchLimits = attrs.field(factory=FetchLimits)
    resolve_host: Resolve = resolve
    tls: ssl.SSLContext | None = None

    async def acquire(self, source: str, param: str) -> bytes:
        """Return the bytes of ``source`` (data URI or http(s) URL).

        Raises ``Refused``: INVALID ``invalid_media`` for a malformed or oversized source,
        FETCH_FAILED or FETCH_TIMEOUT for a remote that does not deliver.
        """
        if source[:5].lower() == "data:":
            return await read_data_uri(source, param, self.limits.item_bytes)
        try:
            target = read_url(source)
        except BadUrl as fault:
            raise bad_media(str(fault), param) from None
        if self.policy == "off":
            raise bad_media("this server does not fetch remote media; send a data URI", param)
        return await self._remote(source, target, param)

    async def _remote(self, url: str, target: Target, param: str) -> bytes:
        try:
            with anyio.fail_after(self.limits.seconds):
                return await self._follow(url, target, param)
        except TimeoutError:
            message = f"the media URL did not deliver within {self.limits.seconds:g} s"
            raise Refused(Fault(Kind.FETCH_TIMEOUT, message, "media_fetch_timeout", param)) from None
        except (h11.RemoteProtocolError, anyio.BrokenResourceError, anyio.EndOfStream, OSError):
            raise _failed("the media URL could not be reached", param) from None

    async def _follow(self, url: str, target: Target, param: str) -> bytes:
        for _ in range(self.limits.redirects + 1):
            async with await self._connect(target) as stream:
                answer = await _Ask(stream, self.limits.stall_seconds).send(target)
                if answer.status not in (301, 302, 303, 307, 308):
                    return await self._body(answer, param)
            url = urljoin(url, answer.header(b"location"))
            try:
                target = read_url(url)
            except BadUrl:
                raise _failed("the media URL redirects to a URL that cannot be fetched", param) from None
        raise _failed(f"the media URL redirects more than {self.limits.redirects} times", param)

    async def _connect(self, target: Target) -> ByteStream:
        """Resolve once, refuse unless every answer is admissible, connect to the first."""
        if self.policy == "public" and target.port not in self.limits.ports:
            raise OSError("port not admitted")
        with anyio.fail_after(self.limits.stall_seconds):
            addresses = await self.resolve_host(target.host, target.port)
            if not addresses or (self.policy == "public" and not all(map(public, addresses))):
                raise OSError("no admissible address")
            stream = await anyio.connect_tcp(addresses[0], target.port)
            if target.scheme == "http":
                return stream
            return await TLSStream.wrap(
                stream, hostname=target.host, ssl_context=self.tls, standard_compatible=False
            )

    async def _body(self, answer: _Ask, param: str) -> bytes:
        if answer.status != 200:
            raise _failed(f"the media URL answered with status {answer.status}", param)
        limit = self.limits.item_bytes
        declared = answer.header(b"content-length")
        if declared.isdigit() and int(declared) > limit:
            raise too_big(limit, param)
        data = bytearray()
        while chunk := await answer.data():
            data += chunk
            if len(data) > limit:
                raise too_big(limit, param)
        return bytes(data)


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


async def read_data_uri(source: str, param: str, limit: int) -> bytes:
    """Decode a data URI in steps that never hold the interpreter for long.  Raises ``Refused``."""
    head, comma, payload = source.partition(",")
    if not comma:
        raise bad_media("the data URI has no comma", param)
    if not head.lower().endswith(";base64"):
        raise bad_media("the data URI must be base64", param)
    if len(payload) // 4 * 3 > limit + 3:
        raise too_big(limit, param)
    text = payload.encode("ascii", "replace")
    if b"%" in text:
        text = unquote_to_bytes(text)
    data = bytearray()
    try:
        for start in range(0, len(text), BASE64_STEP):
            data += base64.b64decode(text[start : start + BASE64_STEP], validate=True)
            if start:
                await anyio.lowlevel.checkpoint()
    except (binascii.Error, ValueError):
        raise bad_media("the data URI is not valid base64", param) from None
    if not data:
        raise bad_media("the data URI is empty", param)
    return bytes(data)


def bad_media(message: str, param: str) -> Refused:
    """Build the refusal of a media source that can never work."""
    return invalid(message, param=param, code="invalid_media")


def too_big(limit: int, param: str) -> Refused:
    """Build the refusal of a source over the byte budget."""
    message = f"the media item is larger than {limit} bytes"
    return invalid(message, param=param, code="media_budget_exceeded")


def _failed(message: str, param: str) -> Refused:
    return Refused(Fault(Kind.FETCH_FAILED, message, "media_fetch_failed", param))
