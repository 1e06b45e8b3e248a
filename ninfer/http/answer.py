"""The answering half of one exchange: implements ``exchange.Exchange`` over one wire and stream.

Owns what has been sent.  Promises one answer: whole, or streamed and ended; a stream that did not
end by itself is never given the bytes that would make it look complete.

The one thing a reader would get wrong: a peer that leaves cancels the handler's scope only while
the answer is still being made.  A whole answer on its way, or the end of a stream, is sent to its
end, so a client that half-closes after a short request still hears us.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio
import attrs
from anyio.abc import TaskGroup

from ninfer.faults import Broken
from ninfer.http.exchange import Reply
from ninfer.http.outlet import Outlet
from ninfer.http.refusals import Fields
from ninfer.http.sse import Pulse
from ninfer.http.wire import Wire
from ninfer.settings import Patience

SLICE = 65_536  # bytes that one send may hold back; each has the whole write patience
STREAM_FIELDS: Fields = (
    ("content-type", "text/event-stream; charset=utf-8"),
    ("cache-control", "no-cache"),
    ("x-accel-buffering", "no"),
)


@attrs.define(eq=False)
class Answer:
    """Writes one answer.

    ``fields`` go out with every head.  ``closes`` is asked when the head is written whether the
    connection ends with this answer.
    ``scope`` holds the handler; ``tasks`` outlives the handler and holds its stream's pulse.
    """

    wire: Wire
    outlet: Outlet
    patience: Patience
    fields: Fields
    closes: Callable[[], bool]
    scope: anyio.CancelScope = attrs.field(factory=anyio.CancelScope)
    tasks: TaskGroup | None = None
    started: bool = False
    finished: bool = False
    peer_left: bool = False
    _ending: bool = False
    _streaming: bool = False
    _fields_of_stream: Fields = ()

    # Exchange

    async def reply(self, reply: Reply) -> None:
        """Send a whole answer."""
        self._claim()
        typed = () if not reply.body else (("content-type", reply.content_type),)
        fields = (*self.fields, *typed, *reply.headers, *self._closing)
        data = memoryview(self.wire.whole(reply.status, fields, reply.body))
        self.started = self._ending = True
        for at in range(0, len(data), SLICE):
            await self.outlet.send_in_time(bytes(data[at : at + SLICE]), self.patience.write)
        self.finished = True

    @asynccontextmanager
    async def stream(self, headers: tuple[tuple[str, str], ...] = ()) -> AsyncIterator[Pulse]:
        """Open an SSE answer; see ``exchange.Exchange``."""
        if self.tasks is None:
            raise Broken("a stream outside its connection")
        self._claim()
        self._streaming = True
        self._fields_of_stream = (*self.fields, *STREAM_FIELDS, *headers, *self._closing)
        pulse = Pulse(self.outlet, self._encode, self.leave, self.patience.heartbeat, self.patience.write)
        self.tasks.start_soon(pulse.beat)
        try:
            yield pulse
        finally:
            await pulse.settle()
            self._streaming = self.started
        self._ending = True
        end = self._opening() + self.wire.close_stream()
        await self.outlet.send_in_time(end, self.patience.write)
        self.finished = True

    # The connection's side

    def leave(self) -> None:
        """Hear that the peer is gone or hopeless: stop whoever still works for it."""
        self.peer_left = True
        if not self._ending:
            self.scope.cancel()

    @property
    def _is_last(self) -> bool:
        return self.closes() or (self.wire.head is not None and self.wire.head.must_close)

    @property
    def _closing(self) -> Fields:
        return (("connection", "close"),) if self._is_last else ()

    def _claim(self) -> None:
        if self.started or self._streaming:
            raise Broken("answered twice")

    def _opening(self) -> bytes:
        """The head of the stream, the first time."""
        if self.started:
            return b""
        self.started = True
        return self.wire.open_stream(self._fields_of_stream)

    def _encode(self, frame: bytes) -> bytes:
        if self.started:
            return self.wire.piece(frame)
        return self._opening() + self.wire.piece(frame)
