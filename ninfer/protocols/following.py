"""One generation from its opening to its last delta, for every protocol alike.

Promises that what comes out ends with ``Finished``, that a failure on the way is raised as ``Refused``, and
that the generation is closed whatever happens to its reader.

The one thing a reader would get wrong: a refusal can come after a heartbeat has opened the stream (a
long wait for a lane), so where it is told is decided by ``exchange.started``, not by the phase.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import aclosing, asynccontextmanager

from ninfer.faults import Broken, Fault, Refused
from ninfer.http.exchange import Exchange, Sink
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


async def send_stream(
    service: Service,
    ask: Ask,
    exchange: Exchange,
    frames: Callable[[Delta], Iterable[bytes]],
    tell: Callable[[Fault], bytes],
) -> None:
    """Answer with a stream of what ``frames`` makes of each delta.

    A failure after the stream has begun becomes its last frame, made by ``tell``; one before that is
    raised as ``Refused``.
    """
    async with exchange.stream() as sink:
        try:
            async with following(service, ask) as deltas:
                await _pour(deltas, frames, sink)
        except Refused as refused:
            if not exchange.started:
                raise
            await sink.send(tell(refused.fault))


async def _pour(
    deltas: AsyncIterator[Delta], frames: Callable[[Delta], Iterable[bytes]], sink: Sink
) -> None:
    async for delta in deltas:
        for frame in frames(delta):
            await sink.send(frame)


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
