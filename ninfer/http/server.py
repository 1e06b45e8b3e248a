"""Listeners and the life of the whole server: accept, cap, drain, stop.

Owns the accept loops and the task group of all connections.  Promises that no more connections are
open than the limits say, that the reserve answers health and metrics when the rest is taken, and
that a graceful stop ends within the drain time.

The one thing a reader would get wrong: ``stop`` only begins the end.  ``run`` returns when the open
answers are out or the drain time is over, whichever comes first.
"""

from __future__ import annotations

import errno
import socket
import sys
from collections.abc import Sequence
from typing import Protocol

import anyio
import attrs
from anyio.abc import ByteStream, SocketAttribute, SocketListener, TaskGroup

from ninfer.faults import StartupError
from ninfer.http.connection import Connection, turn_away
from ninfer.http.house import House, Statistics
from ninfer.http.site import Site
from ninfer.settings import Patience

BACKLOG = 1_024
TURNING_AWAY = 64  # connections beyond the limit that may be told so at one time
BREATH = 0.1  # seconds to wait when the process is out of file descriptors


class Listener(Protocol):
    """Where connections come from; anyio's socket listeners are such."""

    async def accept(self) -> ByteStream:
        """Wait for the next connection."""

    async def aclose(self) -> None:
        """Accept no more."""


@attrs.define(eq=False)
class Server:
    """Serves one site on any number of listeners."""

    site: Site
    house: House = attrs.field(default=attrs.Factory(lambda self: House(self.site.limits), takes_self=True))
    _stopping: anyio.Event = attrs.field(factory=anyio.Event)
    _turning_away: int = 0

    async def run(self, listeners: Sequence[Listener]) -> None:
        """Serve until ``stop`` is called and the answers are out; the listeners are closed."""
        try:
            async with anyio.create_task_group() as guests:
                async with anyio.create_task_group() as doors:
                    for listener in listeners:
                        doors.start_soon(self._accept, listener, guests)
                    await self._stopping.wait()
                    doors.cancel_scope.cancel()
                await _close_all(listeners)  # newcomers are refused, not kept waiting in the backlog
                self.house.show_out_idle()
                guests.cancel_scope.deadline = anyio.current_time() + self.site.patience.drain
        finally:
            await _close_all(listeners)

    def stop(self) -> None:
        """Begin a graceful stop: accept nothing more, close idle connections, let answers drain."""
        self.house.draining = True
        self._stopping.set()

    def statistics(self) -> Statistics:
        """Take the counts of this moment."""
        return self.house.statistics()

    async def _accept(self, listener: Listener, guests: TaskGroup) -> None:
        while True:
            try:
                stream = await listener.accept()
            except anyio.BrokenResourceError as exc:
                if getattr(exc.__cause__, "errno", None) != errno.ECONNABORTED:
                    await anyio.sleep(BREATH)  # most likely out of file descriptors
            else:
                self.house.accepted += 1
                tune(stream, self.site.patience)
                self._welcome(stream, guests)

    def _welcome(self, stream: ByteStream, guests: TaskGroup) -> None:
        house = self.house
        pool = house.place(self.site.patience.settled)
        if pool is not None:
            connection = Connection(stream, self.site, house, scarce=pool is house.reserve)
            guests.start_soon(connection.run)
            return
        house.turned_away += 1
        if self._turning_away == TURNING_AWAY:
            guests.start_soon(_close, stream)
            return
        self._turning_away += 1
        guests.start_soon(self._turn_away, stream)

    async def _turn_away(self, stream: ByteStream) -> None:
        try:
            await turn_away(stream, self.site)
        finally:
            self._turning_away -= 1


async def listen(host: str, port: int) -> list[SocketListener]:
    """Open listeners on every address of ``host``; port 0 picks a free one.  Raises ``StartupError``."""
    try:
        opened = await anyio.create_tcp_listener(local_host=host, local_port=port, backlog=BACKLOG)
    except OSError as exc:
        raise StartupError(f"cannot listen on {host}:{port}: {_explain(exc)}") from exc
    return [listener for listener in opened.listeners if isinstance(listener, SocketListener)]


def _explain(exc: OSError) -> str:
    """What to do about a failed bind."""
    if isinstance(exc, socket.gaierror):
        return "the host name is unknown; give an address of this machine with --host"
    advice = {
        errno.EADDRINUSE: "the port is taken; stop the other server or choose another --port",
        errno.EACCES: "this port needs privileges; choose a --port from 1024 up",
        errno.EADDRNOTAVAIL: "this machine has no such address; choose another --host",
    }
    return advice.get(exc.errno or 0, f"{exc.strerror or exc}; choose another --host or --port")


def tune(stream: ByteStream, patience: Patience) -> None:
    """Make the kernel notice a peer that is gone without a word; memory streams have no kernel."""
    raw = stream.extra(SocketAttribute.raw_socket, None)
    if raw is None or raw.family not in (socket.AF_INET, socket.AF_INET6):
        return
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":
        for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL):
            raw.setsockopt(socket.IPPROTO_TCP, option, patience.keepalive)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, patience.user_timeout_ms)


async def _close_all(listeners: Sequence[Listener]) -> None:
    for listener in listeners:
        await listener.aclose()


async def _close(stream: ByteStream) -> None:
    await stream.aclose()
