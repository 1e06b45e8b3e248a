"""How tasks of the media room wait: for a thread, in line for a condition, and for each other.

The one thing a reader would get wrong: a turnstile lets nobody overtake, not even a task whose condition
already holds, so that a large request cannot be starved by small ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Protocol, TypeVar

import anyio
import anyio.lowlevel
import attrs

from ninfer.faults import Broken, Refused

T = TypeVar("T")


class RunBlocking(Protocol):
    """Runs work on a bounded pool of threads."""

    def __call__(self, work: Callable[[], T], /) -> Awaitable[T]:
        """Wait for ``work`` and return what it returns."""


async def at_work(run: RunBlocking, work: Callable[[], T]) -> T:
    """Run work on a thread; what ends it there comes back as a value and is raised here.

    An exception that travels between threads is caught in a cycle with the frames that it passed, and
    these hold the sources and arrays of the work until the collector comes by.  Raises ``Refused``.
    """
    found = await run(partial(_outcome, work, anyio.get_cancelled_exc_class()))
    if isinstance(found, _Gone):
        await anyio.lowlevel.checkpoint()  # raises what the thread was told
        raise Broken("work was given up that nobody had cancelled")
    if isinstance(found, Refused):
        try:
            raise found
        finally:
            del found
    return found


class _Gone:
    """The outcome of work whose task was cancelled."""


def _outcome(work: Callable[[], T], cancelled: type[BaseException]) -> T | Refused | _Gone:
    try:
        return work()
    except Refused as refused:
        return refused.with_traceback(None)
    except cancelled:
        return _Gone()


@attrs.define(eq=False)
class Turnstile:
    """Lets tasks through in order of arrival, each as soon as its condition holds."""

    _line: deque[object] = attrs.field(factory=deque)
    _changed: anyio.Event = attrs.field(factory=anyio.Event)

    async def pass_when(self, ready: Callable[[], bool]) -> None:
        """Wait in line; ``ready`` takes what it asks for and returns True, or takes nothing."""
        turn = object()
        self._line.append(turn)
        try:
            while self._line[0] is not turn or not ready():
                await self._changed.wait()
        finally:
            self._line.remove(turn)
            self.ring()

    def ring(self) -> None:
        """Let those in line look again."""
        self._changed.set()
        self._changed = anyio.Event()


async def together(work: Sequence[Callable[[], Awaitable[T]]], most: int) -> list[T]:
    """Run all, ``most`` at a time; returns their results in order.

    The first that is refused ends the others.  Raises ``Refused``.
    """
    waiting = iter(list(enumerate(work)))
    results: dict[int, T] = {}
    refusals: list[Refused] = []

    async def labour() -> None:
        try:
            for index, job in waiting:
                results[index] = await job()
        except Refused as refused:
            refusals.append(refused)
            tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        for _ in range(min(most, len(work))):
            tasks.start_soon(labour)
    if refusals:
        raise refusals.pop(0)  # kept here, it would form a cycle that holds the sources until collected
    return [results[index] for index in range(len(work))]
