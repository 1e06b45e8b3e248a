"""Who is in the house: the shared account of open connections, exchanges and body bytes.

Owns every count that more than one connection touches.  Promises that what is taken is given back
when its ``with`` block ends, however it ends; at rest all of it is zero.

The one thing a reader would get wrong: an idle connection is a guest that may be shown out.  When
the house is full the one that has been idle longest makes room for a newcomer.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import anyio
import attrs

from ninfer.faults import Fault, Kind
from ninfer.http.refusals import Turned
from ninfer.settings import WireLimits


@attrs.frozen
class Statistics:
    """Counts of one moment (first four) and since the start."""

    connections: int
    idle: int
    exchanges: int
    body_bytes: int
    accepted: int
    turned_away: int
    evicted: int
    requests: int
    departed: int
    crashed: int


@attrs.define(eq=False)
class House:
    """The account of one server.  ``draining`` is set once, by a graceful stop."""

    limits: WireLimits = attrs.field(factory=WireLimits)
    draining: bool = False
    connections: int = 0
    exchanges: int = 0
    body_bytes: int = 0
    accepted: int = 0
    turned_away: int = 0
    evicted: int = 0
    requests: int = 0
    departed: int = 0
    crashed: int = 0
    _idle: dict[anyio.CancelScope, None] = attrs.field(factory=dict)

    @contextmanager
    def exchange(self) -> Iterator[Holding]:
        """Count one exchange and whatever body bytes it holds."""
        holding = Holding(self)
        self.exchanges += 1
        try:
            yield holding
        finally:
            self.exchanges -= 1
            self.body_bytes -= holding.held

    @contextmanager
    def idling(self, deadline: float) -> Iterator[anyio.CancelScope]:
        """Open a scope that ends at ``deadline`` (clock seconds), or when the guest is shown out."""
        scope = anyio.CancelScope(deadline=deadline)
        self._idle[scope] = None
        try:
            with scope:
                yield scope
        finally:
            self._idle.pop(scope, None)

    def make_room(self) -> bool:
        """Show out the connection that has been idle longest; False if none is idle."""
        scope = next(iter(self._idle), None)
        if scope is None:
            return False
        self._idle.pop(scope)
        scope.cancel()
        self.evicted += 1
        return True

    def show_out_idle(self) -> None:
        """Close every idle connection."""
        for scope in list(self._idle):
            scope.cancel()

    def statistics(self) -> Statistics:
        """Take the counts of this moment."""
        names = (field.name for field in attrs.fields(Statistics) if field.name != "idle")
        return Statistics(idle=len(self._idle), **{name: getattr(self, name) for name in names})


@attrs.define(eq=False)
class Holding:
    """The body bytes of one exchange."""

    house: House
    held: int = 0

    def take(self, count: int) -> None:
        """Account for ``count`` more bytes; raise ``Turned`` (503) when the house holds too many."""
        limit = self.house.limits.all_bodies_bytes
        if self.house.body_bytes + count > limit:
            message = "too many request bodies are being read"
            raise Turned(503, Fault(Kind.OVERLOADED, message, "server_overloaded"), (("retry-after", "1"),))
        self.house.body_bytes += count
        self.held += count
