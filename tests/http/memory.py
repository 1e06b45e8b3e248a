"""Byte streams in memory with anyio's API, on any backend and any clock.

A ``pair`` is two ends of one connection.  Each direction holds at most ``room`` bytes, so a reader
that stops makes its writer wait as a full socket does; ``lose`` breaks both ends as a reset does.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from typing import Any

import anyio
import attrs
from anyio.abc import ByteStream


@attrs.define(eq=False)
class _Pipe:
    room: int
    held: bytearray = attrs.field(factory=bytearray)
    ended: bool = False  # the writer will write no more
    broken: bool = False
    most: int = 0  # bytes ever held at one time
    _bell: anyio.Event = attrs.field(factory=anyio.Event)

    def ring(self) -> None:
        self._bell.set()
        self._bell = anyio.Event()

    async def until(self, ready: Callable[[], bool]) -> None:
        await anyio.lowlevel.checkpoint()
        while not ready():
            await self._bell.wait()

    async def read(self, limit: int) -> bytes:
        await self.until(lambda: bool(self.held or self.ended or self.broken))
        if self.broken:
            raise anyio.BrokenResourceError
        if not self.held:
            raise anyio.EndOfStream
        taken = bytes(self.held[:limit])
        del self.held[:limit]
        self.ring()
        return taken

    async def write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            await self.until(lambda: self.broken or self.ended or len(self.held) < self.room)
            if self.broken or self.ended:
                raise anyio.BrokenResourceError
            part = self.room - len(self.held)
            self.held += rest[:part]
            self.most = max(self.most, len(self.held))
            rest = rest[part:]
            self.ring()


@attrs.define(eq=False)
class End(ByteStream):
    """One end of a connection in memory."""

    _inward: _Pipe
    _outward: _Pipe
    closed: bool = False

    async def receive(self, max_bytes: int = 65_536) -> bytes:
        """Take what is there, at most ``max_bytes``."""
        if self.closed:
            raise anyio.ClosedResourceError
        return await self._inward.read(max_bytes)

    async def send(self, item: bytes) -> None:
        """Write all, waiting for room."""
        if self.closed:
            raise anyio.ClosedResourceError
        await self._outward.write(item)

    async def send_eof(self) -> None:
        """Write no more; the other direction stays open.  Fails as anyio's sockets do."""
        if self._outward.broken:
            raise OSError(errno.ENOTCONN, "not connected")
        self._outward.ended = True
        self._outward.ring()
        await anyio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        """Close both directions: the peer reads to the end, its writes fail."""
        self.closed = True
        self._outward.ended = True
        self._inward.broken = True
        self._outward.ring()
        self._inward.ring()
        await anyio.lowlevel.checkpoint()

    def lose(self) -> None:
        """Reset the connection: both ends fail at once, bytes on the way are gone."""
        for pipe in (self._inward, self._outward):
            pipe.broken = True
            pipe.ring()

    @property
    def most_held(self) -> int:
        """Most bytes that this end's writes ever had waiting."""
        return self._outward.most

    @property
    def extra_attributes(self) -> Mapping[Any, Callable[[], Any]]:
        """No attributes: there is no socket."""
        return {}


def pair(room: int = 65_536) -> tuple[End, End]:
    """Make both ends of a connection; ``room`` is the bytes one direction can hold."""
    there, back = _Pipe(room), _Pipe(room)
    return End(back, there), End(there, back)


@attrs.define(eq=False)
class MemoryListener:
    """A listener whose connections are made by ``connect``."""

    _send: Any = None
    _receive: Any = None
    closed: bool = False

    def __attrs_post_init__(self) -> None:
        self._send, self._receive = anyio.create_memory_object_stream[End](1_000)

    async def accept(self) -> End:
        """Wait for the next connection."""
        end: End = await self._receive.receive()
        return end

    async def aclose(self) -> None:
        """Accept no more."""
        self.closed = True
        self._send.close()
        self._receive.close()

    def connect(self, room: int = 65_536) -> End:
        """Open a connection and return the client's end."""
        client, server = pair(room)
        self._send.send_nowait(server)
        return client
