"""Who is in the house: the shared account of open connections, exchanges and body bytes.

Owns every count that more than one connection touches.  Promises that what is taken is given back
when its ``with`` block ends, however it ends; at rest all of it is zero.

The one thing a reader would get wrong: an idle connection is a guest that may be shown out.  When
the house is full the one that has been idle longest makes room for a newcomer, unless it has hardly
sat down: its request may be on the way.
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
class Pool:
    """Places for one kind of connections."""

    places: int
    open: int = 0
    evicted: int = 0
    _idle: dict[anyio.CancelScope, float] = attrs.field(factory=dict)  # since when, oldest first

    @property
    def idle(self) -> int:
        """Connections between requests."""
        return len(self._idle)

    @contextmanager
    def idling(self, deadline: float) -> Iterator[None]:
        """Idle until ``deadline`` (clock seconds), or until shown out."""
        scope = anyio.CancelScope(deadline=deadline)
        self._idle[scope] = anyio.current_time()
        try:
            with scope:
                yield
        finally:
            self._idle.pop(scope, None)

    def make_place(self, settled: float) -> bool:
        """Say whether one more fits, showing out the longest idle for ``settled`` seconds if need be."""
        if self.open < self.places:
            return True
        scope, since = next(iter(self._idle.items()), (None, 0.0))
        if scope is None or anyio.current_time() - since < settled:
            return False
        self._idle.pop(scope)
        scope.cancel()
        self.evicted += 1
        return True

    def show_out_idle(self) -> None:
        """Close every idle connection."""
        for scope in list(self._idle):
            scope.cancel()


@attrs.define(eq=False)
class House:
    """The account of one server.  ``draining`` is set once, by a graceful stop."""

    limits: WireLimits = attrs.field(factory=WireLimits)
    draining: bool = False
    exchanges: int = 0
    body_bytes: int = 0
    accepted: int = 0
    turned_away: int = 0
    requests: int = 0
    departed: int = 0
    crashed: int = 0
    ordinary: Pool = attrs.field(init=False)
    reserve: Pool = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.reserve = Pool(self.limits.reserved_connections)
        self.ordinary = Pool(self.limits.connections - self.limits.reserved_connections)

    @property
    def connections(self) -> int:
        """Connections open now."""
        return self.ordinary.open + self.reserve.open

    def place(self, settled: float) -> Pool | None:
        """Find a place for a newcomer; None when even the reserve is full."""
        for pool in (self.ordinary, self.reserve):
            if pool.make_place(settled):
                return pool
        return None

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

    def show_out_idle(self) -> None:
        """Close every idle connection."""
        self.ordinary.show_out_idle()
        self.reserve.show_out_idle()

    def statistics(self) -> Statistics:
        """Take the counts of this moment."""
        return Statistics(
            connections=self.connections,
            idle=self.ordinary.idle + self.reserve.idle,
            exchanges=self.exchanges,
            body_bytes=self.body_bytes,
            accepted=self.accepted,
            turned_away=self.turned_away,
            evicted=self.ordinary.evicted + self.reserve.evicted,
            requests=self.requests,
            departed=self.departed,
            crashed=self.crashed,
        )


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
