"""The channel between the engine and one request: events in, one reader, closing is the cancel.

Owns the events that the reader has not taken.  Promises that sending never waits, that what was sent
before the end is read before the end is seen, and that a waiting reader costs one wake-up an event.

The one thing a reader would get wrong: this is a memory stream of one sender and one reader, written
out because every token of every request passes here; the general one spends as much again on locks,
statistics and a turn of the event loop for each event.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar

import anyio
import anyio.lowlevel
import attrs

T = TypeVar("T")


class Parking(Protocol):
    """Where the one reader waits."""

    async def wait(self) -> None:
        """Wait for ``wake``; cancellation leaves nothing behind."""

    def wake(self) -> None:
        """Let the reader go on, if it waits."""


@attrs.define(eq=False)
class EventParking:
    """Waits on an event; for any event loop."""

    _event: anyio.Event | None = None

    async def wait(self) -> None:
        """Wait for ``wake``."""
        self._event = event = anyio.Event()
        try:
            await event.wait()
        finally:
            self._event = None

    def wake(self) -> None:
        """Let the reader go on, if it waits."""
        if self._event is not None:
            self._event.set()


def best_parking() -> Parking:
    """Return trio's own parking in a trio run, an event elsewhere."""
    if anyio.lowlevel.current_token().backend_class.__module__.endswith("_trio"):
        from ninfer.engine.parking import TaskParking

        return TaskParking()
    return EventParking()


@attrs.define(eq=False)
class Channel(Generic[T]):
    """The sending end; ``reader`` is the other one.  At most ``room`` events may be unread."""

    room: int
    park: Callable[[], Parking] = best_parking
    reader: Reader[T] = attrs.field(init=False)
    _held: deque[T] = attrs.field(factory=deque)
    _parking: Parking = attrs.field(init=False)
    _ended: bool = False
    _left: bool = False

    def __attrs_post_init__(self) -> None:
        self._parking = self.park()
        self.reader = Reader(self)

    @property
    def left(self) -> bool:
        """Whether the reader has closed its end."""
        return self._left

    def send_nowait(self, event: T) -> None:
        """Hand over one event.  Raises BrokenResourceError when the reader has left, WouldBlock when
        ``room`` events are unread."""
        if self._left or self._ended:
            raise anyio.BrokenResourceError
        if len(self._held) >= self.room:
            raise anyio.WouldBlock
        self._held.append(event)
        self._parking.wake()

    def close(self) -> None:
        """Send nothing more; the reader still gets what was sent."""
        self._ended = True
        self._parking.wake()


@attrs.define(eq=False)
class Reader(Generic[T]):
    """The receiving end.  Closing it is the only cancel."""

    _channel: Channel[T]

    async def receive(self) -> T:
        """Take the next event.  Raises EndOfStream after the last, ClosedResourceError once closed."""
        channel = self._channel
        await anyio.lowlevel.checkpoint_if_cancelled()
        while True:
            if channel._left:
                raise anyio.ClosedResourceError
            if channel._held:
                return channel._held.popleft()
            if channel._ended:
                raise anyio.EndOfStream
            await channel._parking.wait()

    def close(self) -> None:
        """Take nothing more; what was not taken is dropped."""
        self._channel._left = True
        self._channel._held.clear()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
