"""Server-sent events: one event in, one event out, and a sign of life in every silence.

Owns the framing and the heartbeat.  Promises that data can neither split nor end an event, and that
after ``quiet`` seconds without a frame the peer hears a comment, also before the first frame.

The one thing a reader would get wrong: the pulse also guards the writes.  One task wakes for
whichever is due, the next heartbeat or the end of patience with a peer that does not read, so a
frame costs no timer of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Protocol

import anyio
import attrs

from ninfer.http.exchange import PeerGone

HEARTBEAT = b": keep-alive\n\n"
_LINE_END = re.compile("\r\n|\r|\n")
_EVENT_NAME = re.compile("[A-Za-z0-9_.-]+")


def frame(event: str | None, data: str) -> bytes:
    """Write one event; a line end in ``data`` becomes a new data line, as EventSource rejoins them."""
    if "\n" in data or "\r" in data:
        data = "\ndata: ".join(_LINE_END.split(data))
    if event is None:
        return f"data: {data}\n\n".encode()
    if not _EVENT_NAME.fullmatch(event):
        raise ValueError(f"not an event name: {event!r}")
    return f"event: {event}\ndata: {data}\n\n".encode()


class Outlet(Protocol):
    """What a pulse needs of ``outlet.Outlet``."""

    def at_once(self, data: bytes) -> int:
        """Hand over what is taken without waiting."""

    async def send(self, data: bytes) -> None:
        """Hand over all; raise ``PeerGone``."""


@attrs.define(eq=False)
class Pulse:
    """Sends frames through ``outlet`` and heartbeats between them.

    ``encode`` puts a frame into the transfer coding of the answer; ``give_up`` is called once, when
    one write has lasted ``patience`` seconds or a heartbeat found nobody.  ``send`` belongs to one
    task at a time; ``beat`` runs beside it.
    """

    outlet: Outlet
    encode: Callable[[bytes], bytes]
    give_up: Callable[[], object]
    quiet: float
    patience: float
    _since: float | None = None  # when the write under way began
    _last: float = attrs.field(factory=anyio.current_time)  # when the last write ended
    _beating: anyio.Event | None = None
    _over: bool = False

    async def send(self, frame: bytes) -> None:
        """Write one frame, after a heartbeat that may be under way."""
        while self._beating is not None:
            await self._beating.wait()
        data = self.encode(frame)
        sent = self.outlet.at_once(data)
        if sent == len(data):
            self._last = anyio.current_time()
            return
        self._since = anyio.current_time()
        try:
            await self.outlet.send(data[sent:])
        finally:
            self._last = anyio.current_time()
            self._since = None

    async def settle(self) -> None:
        """Begin no more heartbeats; return once none is under way."""
        self._over = True
        while self._beating is not None:
            await self._beating.wait()

    async def beat(self) -> None:
        """Fill silences until settled, cancelled, or the peer is given up."""
        while not self._over:
            now = anyio.current_time()
            if self._since is not None and now >= self._since + self.patience:
                self._over = True
                self.give_up()
            elif self._since is None and now >= self._last + self.quiet:
                await self._beat_once()
            else:
                await anyio.sleep_until(self._next_look(now))

    def _next_look(self, now: float) -> float:
        """When something may be due: never later than a write that begins or ends now could need."""
        if self._since is not None:
            return min(self._since + self.patience, now + self.quiet)
        return min(self._last + self.quiet, now + self.patience)

    async def _beat_once(self) -> None:
        self._beating = anyio.Event()
        try:
            with anyio.fail_after(self.patience):
                await self.outlet.send(self.encode(HEARTBEAT))
        except (PeerGone, TimeoutError):
            self._over = True
            self.give_up()
        finally:
            self._last = anyio.current_time()
            self._beating.set()
            self._beating = None
