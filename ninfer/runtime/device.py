"""The device's thread: units in, results out, in order, without ever blocking the event loop.

One thread builds the program, runs every unit and ends with the device; nothing else touches it.
The first fault wins: the unit that hit it and every later one fail with ``DeviceFailed``.

The one thing a reader would get wrong: a unit that was submitted runs, even when nobody waits for it
any more; only its answer can be abandoned.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Protocol

import anyio
import attrs
import outcome

from ninfer.engine.device import DeviceFailed, Geometry, Result, Unit
from ninfer.runtime.wake import Waker, waker


class Program(Protocol):
    """What runs units, on the device's thread alone."""

    @property
    def geometry(self) -> Geometry:
        """What is on offer."""

    def run(self, unit: Unit) -> Result:
        """Run one unit to its end."""


@attrs.define(eq=False)
class Pending:
    """A submitted unit; implements ``Ticket``."""

    unit: Unit
    wake: Waker
    _done: anyio.Event = attrs.field(factory=anyio.Event)
    _outcome: Result | BaseException | None = None

    async def result(self) -> Result:
        """Wait for the unit; raises ``DeviceFailed`` once the device is lost."""
        await self._done.wait()
        if isinstance(self._outcome, Result):
            return self._outcome
        raise DeviceFailed("the device failed") from self._outcome

    def settle(self, outcome: Result | BaseException) -> None:
        """Store the outcome and wake the waiter; called on the device's thread."""
        self._outcome = outcome
        self.wake(self._done.set)


@attrs.define(eq=False)
class ThreadDevice:
    """Implements ``Device`` over a program.  Make it with ``start``."""

    _program: Program | None = None
    _failure: BaseException | None = None
    _units: queue.SimpleQueue[Pending | None] = attrs.field(factory=queue.SimpleQueue)

    @classmethod
    @asynccontextmanager
    async def start(
        cls, build: Callable[[], Program], stop_seconds: float = 10.0
    ) -> AsyncIterator[ThreadDevice]:
        """Build a program on a thread of its own; the thread ends, after its units, with the context.

        Leaving waits for it for ``stop_seconds`` at most; it is a daemon, so it never holds up the process.
        """
        device, ready, ended = cls(), anyio.Event(), anyio.Event()
        wake = waker()
        thread = threading.Thread(
            target=device._work,
            args=(build, lambda: wake(ready.set), lambda: wake(ended.set)),
            name="ninfer-device",
            daemon=True,
        )
        thread.start()
        try:
            await ready.wait()
            if device._failure is not None:
                raise device._failure
            yield device
        finally:
            device._units.put(None)
            with anyio.move_on_after(stop_seconds, shield=True):
                await ended.wait()

    @property
    def geometry(self) -> Geometry:
        """What the device offers."""
        assert self._program is not None
        return self._program.geometry

    def submit(self, unit: Unit) -> Pending:
        """Queue a unit; never blocks."""
        pending = Pending(unit, waker())
        self._units.put(pending)
        return pending

    def _work(
        self, build: Callable[[], Program], ready: Callable[[], None], ended: Callable[[], None]
    ) -> None:
        built = outcome.capture(build)
        if isinstance(built, outcome.Value):
            self._program = built.value
        else:
            self._failure = built.error
        ready()
        while (pending := self._units.get()) is not None:
            pending.settle(self._run(pending.unit))
        ended()

    def _run(self, unit: Unit) -> Result | BaseException:
        if self._failure is None:
            assert self._program is not None
            done = outcome.capture(self._program.run, unit)
            if isinstance(done, outcome.Value):
                return done.value
            self._failure = done.error
        return self._failure
