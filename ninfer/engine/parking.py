"""Trio's own way for one task to wait for another: no event, no queue, one reschedule.

The one module that speaks trio's low-level names.  The one thing a reader would get wrong: a task is
rescheduled exactly once for each wait, so ``wake`` forgets the task before it wakes it.
"""

from __future__ import annotations

import attrs
import trio


@attrs.define(eq=False)
class TaskParking:
    """Parks one task; implements ``channel.Parking``."""

    _task: trio.lowlevel.Task | None = None

    async def wait(self) -> None:
        """Wait for ``wake``; a cancelled wait forgets the task."""
        self._task = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(self._abort)

    def wake(self) -> None:
        """Let the task go on, if it waits."""
        task, self._task = self._task, None
        if task is not None:
            trio.lowlevel.reschedule(task)

    def _abort(self, _: object) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED
