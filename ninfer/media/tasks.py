"""Two ways in which tasks of the media room wait: in line for a condition, and for each other.

The one thing a reader would get wrong: a turnstile lets nobody overtake, not even a task whose condition
already holds, so that a large request cannot be starved by small ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import anyio
import attrs

from ninfer.faults import Refused

T = TypeVar("T")


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
