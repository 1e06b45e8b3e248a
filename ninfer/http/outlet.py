"""The way out of one connection: the kernel's buffer at once if it has room, else the stream.

Owns every byte that leaves.  Promises that bytes leave in order and that nobody to take them is
``PeerGone``, whichever way they went.

The one thing a reader would get wrong: sending at once is no suspension.  A turn of the event loop
for every token would cost more than everything else here; but one writer could keep the loop for
itself, so after ``STREAK`` sends in a row the slow way, which yields, is taken once.
"""

from __future__ import annotations

import socket

import anyio
import attrs
from anyio.abc import ByteStream, SocketAttribute

from ninfer.http.exchange import PeerGone

STREAK = 64


@attrs.define(eq=False)
class Outlet:
    """Sends to one peer.  One task at a time."""

    stream: ByteStream
    _socket: socket.socket | None = attrs.field(init=False)
    _streak: int = 0

    def __attrs_post_init__(self) -> None:
        # Only a plain non-blocking socket can be written past its stream: trio's is one, a memory
        # stream has none, and asyncio's transport keeps a buffer of its own.
        raw: object = self.stream.extra(SocketAttribute.raw_socket, None)
        self._socket = raw if isinstance(raw, socket.socket) and raw.gettimeout() == 0 else None

    def at_once(self, data: bytes) -> int:
        """Hand over what the kernel takes without waiting; how many bytes that was, maybe none."""
        if self._socket is None or self._streak >= STREAK:
            return 0
        self._streak += 1
        try:
            return self._socket.send(data)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError:
            raise PeerGone from None

    async def send(self, data: bytes) -> None:
        """Hand over all, waiting as long as it takes."""
        self._streak = 0
        try:
            await self.stream.send(data)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            raise PeerGone from None

    async def send_in_time(self, data: bytes, seconds: float) -> None:
        """Hand over all; a peer that has not taken it after ``seconds`` is gone."""
        if sent := self.at_once(data):
            data = data[sent:]
        if not data:
            return
        try:
            with anyio.fail_after(seconds):
                await self.send(data)
        except TimeoutError:
            raise PeerGone from None
