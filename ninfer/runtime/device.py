"""The device's thread: units in, results out, in order, without ever blocking the event loop.

One thread builds the program, runs every unit and ends with the device; nothing else touches it.  A
program that can is given the next unit before the last one has ended, so a card never waits for the host.
The first fault wins: the unit that hit it and every later one fail with ``DeviceFailed``.  So does a device
that ends nothing for ``patience`` seconds: a kernel or a driver call that never returns cannot be ended, so
its thread is left behind.

The one thing a reader would get wrong: a unit that was submitted runs, even when nobody waits for it
any more; only its answer can be abandoned.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import anyio
import attrs
import outcome

from ninfer.engine.device import Archive, DeviceFailed, Geometry, Raw, Result, Unit
from ninfer.faults import StartupError
from ninfer.runtime.inventory import Inventory
from ninfer.runtime.threads import give_up
from ninfer.runtime.wake import Waker, waker
from ninfer.settings import DeviceWaits

T = TypeVar("T")
Finish = Callable[[], Result]
AHEAD = 2  # units under way at once
WAITS = DeviceWaits()


class Program(Protocol):
    """What runs units, on the device's thread alone."""

    @property
    def geometry(self) -> Geometry:
        """What is on offer."""

    @property
    def inventory(self) -> Inventory:
        """What it holds."""

    def run(self, unit: Unit) -> Result:
        """Run one unit to its end."""


@runtime_checkable
class AheadProgram(Program, Protocol):
    """A program that can take the next unit before the last one has ended."""

    def start(self, unit: Unit) -> Finish:
        """Submit one unit; what is returned waits for its result."""


@runtime_checkable
class ArchiveProgram(Program, Protocol):
    """A program that gives out state as bytes and takes it back; see ``engine.device.Archive``.

    Called on the device's thread; what gives out, when no unit is under way.
    """

    @property
    def signature(self) -> str:
        """Everything but the weights that the bytes depend on."""

    def export(self, slot: int | None, pages: tuple[int, ...]) -> Raw:
        """Give out the image in ``slot``, or else ``pages``."""

    def export_host(self, key: int, skip: int, count: int) -> Raw:
        """Give out what ``key`` holds: its image, or ``count`` pages from ``skip`` on."""

    def room(self, key: int, pages: int) -> memoryview:
        """Set host memory aside under a new ``key``, for an image or for ``pages`` pages."""


@attrs.define(eq=False)
class Watch:
    """How long anybody waits for a device that ends nothing; ``ended`` counts what it has ended."""

    patience: float
    ended: int = 0
    stuck: TimeoutError | None = None

    async def wait(self, done: anyio.Event) -> None:
        """Wait while the device gets on; raises ``DeviceFailed`` once it does not, and ever after."""
        while self.stuck is None:
            seen = self.ended
            with anyio.move_on_after(self.patience):
                await done.wait()
                return
            if self.ended == seen:
                self.stuck = TimeoutError(stuck(self.patience))
        raise DeviceFailed("the device failed") from self.stuck


def stuck(patience: float) -> str:
    """Say for the operator what happened, and what helps."""
    return (
        f"the device has ended nothing for {patience:g} s and is given up: restart the server, and the "
        "machine if the card does not come back; --device-patience-seconds bounds one piece of work"
    )


@attrs.define(eq=False)
class Errand(Generic[T]):
    """A call on the device's thread; its fault is the caller's alone.

    It waits for the units before it to end, unless it is ``apart`` from them.
    """

    call: Callable[[], T]
    wake: Waker
    watch: Watch
    apart: bool = False
    _done: anyio.Event = attrs.field(factory=anyio.Event)
    _outcome: outcome.Value[T] | outcome.Error | None = None
    _lost: BaseException | None = None

    async def result(self) -> T:
        """Wait for it; raises ``MemoryError`` if the call did, ``DeviceFailed`` for whatever else."""
        await self.watch.wait(self._done)
        if isinstance(self._outcome, outcome.Value):
            value: T = self._outcome.value
            return value
        problem = self._lost if self._outcome is None else self._outcome.error
        if isinstance(problem, MemoryError):
            raise problem
        raise DeviceFailed("the device failed") from problem

    def run(self, lost: BaseException | None) -> None:
        """Make the call, unless the device is lost."""
        self._lost = lost
        if lost is None:
            self._outcome = outcome.capture(self.call)
        self.watch.ended += 1
        self.wake(self._done.set)


@attrs.define(eq=False)
class Pending:
    """A submitted unit; implements ``Ticket``."""

    unit: Unit
    wake: Waker
    watch: Watch
    _done: anyio.Event = attrs.field(factory=anyio.Event)
    _outcome: Result | BaseException | None = None

    async def result(self) -> Result:
        """Wait for the unit; raises ``DeviceFailed`` once the device is lost."""
        await self.watch.wait(self._done)
        if isinstance(self._outcome, Result):
            return self._outcome
        raise DeviceFailed("the device failed") from self._outcome

    def settle(self, outcome: Result | BaseException) -> None:
        """Store the outcome and wake the waiter; called on the device's thread."""
        self._outcome = outcome
        self.watch.ended += 1
        self.wake(self._done.set)


@attrs.define(eq=False)
class ThreadDevice:
    """Implements ``Device`` over a program.  Make it with ``start``."""

    _watch: Watch
    _program: Program | None = None
    _failure: BaseException | None = None
    _units: queue.SimpleQueue[Pending | Errand[Any] | None] = attrs.field(factory=queue.SimpleQueue)

    @classmethod
    @asynccontextmanager
    async def start(
        cls, build: Callable[[], Program], waits: DeviceWaits = WAITS
    ) -> AsyncIterator[ThreadDevice]:
        """Build a program on a thread of its own; the thread ends, after its units, with the context.

        Leaving waits for it for ``waits.stop`` seconds at most, and not at all when it is stuck; then it is
        left behind (see ``threads.give_up``).  Raises ``StartupError`` when building takes too long.
        """
        device, ready, ended = cls(Watch(waits.work)), anyio.Event(), anyio.Event()
        wake = waker()
        thread = threading.Thread(
            target=device._work,
            args=(build, lambda: wake(ready.set), lambda: wake(ended.set)),
            name="ninfer-device",
            daemon=True,
        )
        thread.start()
        try:
            with anyio.move_on_after(waits.load):
                await ready.wait()
            if not ready.is_set():
                why = f"the device was not ready within {waits.load:g} s; look at its driver"
                device._watch.stuck = TimeoutError(why)
                raise StartupError(why)
            if device._failure is not None:
                raise device._failure
            yield device
        finally:
            device._units.put(None)
            lost = device._watch.stuck is not None
            with anyio.move_on_after(0 if lost else waits.stop, shield=True):
                await ended.wait()
            if not ended.is_set():
                give_up(thread)

    @property
    def geometry(self) -> Geometry:
        """What the device offers."""
        assert self._program is not None
        return self._program.geometry

    @property
    def inventory(self) -> Inventory:
        """What the device holds, and where it runs."""
        assert self._program is not None
        return self._program.inventory

    def submit(self, unit: Unit) -> Pending:
        """Queue a unit; never blocks."""
        pending = Pending(unit, waker(), self._watch)
        self._units.put(pending)
        return pending

    @property
    def archive(self) -> Archive | None:
        """What gives out state as bytes, if the program can."""
        return ThreadArchive(self, self._program) if isinstance(self._program, ArchiveProgram) else None

    async def call(self, call: Callable[[], T], *, apart: bool = False) -> T:
        """Make a call on the device's thread, in its place among the units or ``apart`` from them."""
        errand = Errand(call, waker(), self._watch, apart)
        self._units.put(errand)
        return await errand.result()

    def _work(
        self, build: Callable[[], Program], ready: Callable[[], None], ended: Callable[[], None]
    ) -> None:
        built = outcome.capture(build)
        if isinstance(built, outcome.Value):
            self._program = built.value
        else:
            self._failure = built.error
        ready()
        self._serve()
        ended()

    def _serve(self) -> None:
        """Take units until told to end; wait for the oldest when there is nothing to submit."""
        under_way: deque[tuple[Pending, Finish]] = deque()
        while True:
            if under_way and (len(under_way) == AHEAD or self._units.empty()):
                pending, finish = under_way.popleft()
                pending.settle(self._attempt(finish))
                continue
            taken = self._units.get()
            if taken is None:
                break
            if isinstance(taken, Errand):
                if not taken.apart:
                    self._finish(under_way)
                taken.run(self._failure)
            else:
                under_way.append((taken, self._start(taken.unit)))
        self._finish(under_way)

    def _finish(self, under_way: deque[tuple[Pending, Finish]]) -> None:
        while under_way:
            pending, finish = under_way.popleft()
            pending.settle(self._attempt(finish))

    def _start(self, unit: Unit) -> Finish:
        program = self._program
        if self._failure is None and isinstance(program, AheadProgram):
            started = outcome.capture(program.start, unit)
            if isinstance(started, outcome.Value):
                return started.value
            self._failure = started.error
        return lambda: self._run(unit)

    def _run(self, unit: Unit) -> Result:
        assert self._program is not None
        return self._program.run(unit)

    def _attempt(self, finish: Finish) -> Result | BaseException:
        if self._failure is None:
            done = outcome.capture(finish)
            if isinstance(done, outcome.Value):
                return done.value
            self._failure = done.error
        return self._failure


@attrs.frozen(eq=False)
class ThreadArchive:
    """Implements ``Archive`` over a program on its thread."""

    device: ThreadDevice
    program: ArchiveProgram

    @property
    def signature(self) -> str:
        """The program's."""
        return self.program.signature

    async def export(self, slot: int | None, pages: tuple[int, ...]) -> Raw:
        """Give out the image in ``slot``, or else ``pages``."""
        return await self.device.call(lambda: self.program.export(slot, pages))

    async def export_host(self, key: int, skip: int, count: int) -> Raw:
        """Give out what ``key`` holds."""
        return await self.device.call(lambda: self.program.export_host(key, skip, count))

    async def room(self, key: int, pages: int) -> memoryview:
        """Set host memory aside under a new ``key``, without waiting for a turn among the units."""
        return await self.device.call(lambda: self.program.room(key, pages), apart=True)
