"""Files that take simulated time: reads what an engine asks for, as ``ninfer.contexts`` does."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from ninfer.engine.fetch import Fetch
from ninfer.engine.persist import Persistence


@asynccontextmanager
async def reading(there: Persistence) -> AsyncIterator[None]:
    """Read what requests wait for, one fetch after the other; at the end nothing is being read."""
    turn = anyio.Lock()

    async def read(fetch: Fetch) -> None:
        async with turn:
            await there.read(fetch)

    async with anyio.create_task_group() as tasks:

        def begin(fetch: Fetch) -> None:
            tasks.start_soon(read, fetch)

        there.engine.read_with(begin)
        yield
        await there.engine.rest()
        there.engine.read_with(None)
