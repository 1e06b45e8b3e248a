"""One generation from its opening to its last delta, for every protocol alike.

Promises that what comes out ends with ``Finished``, that a failure on the way is raised as ``Refused``, and
that the generation is closed whatever happens to its reader.

The one thing a reader would get wrong: a failure raised here may come after frames were sent; where it
is told to the peer is the caller's decision (``exchange.started``).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager

from ninfer.faults import Broken, Refused
from ninfer.protocols.service import Ask, Delta, Finished, Generation, GenerationFailed, Service


@asynccontextmanager
async def following(service: Service, ask: Ask) -> AsyncIterator[AsyncIterator[Delta]]:
    """Open a generation and yield the iterator of its deltas.  Raises ``Refused``."""
    async with service.open(ask) as generation, aclosing(_checked(generation)) as deltas:
        yield deltas


async def outcome(service: Service, ask: Ask) -> Finished:
    """Run a generation and return its last delta.  Raises ``Refused``."""
    async with following(service, ask) as deltas:
        async for delta in deltas:
            if isinstance(delta, Finished):
                return delta
    raise Broken("unreachable: a followed generation ends with Finished or raises")


async def _checked(generation: Generation) -> AsyncGenerator[Delta, None]:
    source = aiter(generation)
    try:
        async for delta in source:
            if isinstance(delta, GenerationFailed):
                raise Refused(delta.fault)
            yield delta
            if isinstance(delta, Finished):
                return
        raise Broken("a generation ended without a last delta")
    finally:
        if isinstance(source, AsyncGenerator):
            await source.aclose()
