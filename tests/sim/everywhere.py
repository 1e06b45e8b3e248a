"""Cancel a scenario at its 1st, 2nd, 3rd... suspension, until it outruns us."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import attrs
import trio


@attrs.define(eq=False)
class _CancelAt(trio.abc.Instrument):
    """Counts the steps of every task below ``root``; cancels ``scope`` at number ``at``."""

    at: int
    scope: trio.CancelScope
    root: trio.lowlevel.Task
    seen: int = 0

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if self._is_ours(task):
            self.seen += 1
            if self.seen == self.at:
                self.scope.cancel()

    def _is_ours(self, task: trio.lowlevel.Task | None) -> bool:
        while task is not None and task is not self.root:
            nursery = task.parent_nursery
            task = nursery.parent_task if nursery else None
        return task is self.root


@asynccontextmanager
async def cancelled_at(at: int) -> AsyncIterator[trio.CancelScope]:
    """Cancel the body at its ``at``-th suspension, counting tasks that it starts."""
    scope = trio.CancelScope()
    probe = _CancelAt(at, scope, trio.lowlevel.current_task())
    trio.lowlevel.add_instrument(probe)
    try:
        with scope:
            yield scope
    finally:
        trio.lowlevel.remove_instrument(probe)


async def cancelled_everywhere(
    scenario: Callable[[], Awaitable[None]], *, most: int = 100_000
) -> AsyncIterator[int]:
    """Run ``scenario`` afresh with a cancellation at suspension 1, 2, 3, ...; yield after each run.

    Stops after the first run that finishes without being cancelled.
    """
    for at in range(1, most):
        async with cancelled_at(at) as scope:
            await scenario()
        yield at
        if not scope.cancelled_caught:
            return
    raise AssertionError(f"the scenario still runs after {most} suspensions")
