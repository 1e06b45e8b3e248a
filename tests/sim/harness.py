"""Small tools to drive an engine on a ``FakeDevice``: jobs, judges, collecting, auditing."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import attrs

from ninfer.engine.device import Decode, Prefill, Unit
from ninfer.engine.job import (
    Admitted,
    Committed,
    Done,
    Event,
    Failed,
    Finish,
    Job,
    Progress,
    Sampling,
    ThinkingPlan,
    Verdict,
)
from ninfer.engine.loop import Engine
from ninfer.prompt.prepared import Prepared
from ninfer.settings import EngineOptions
from tests.sim.fake_device import STOP, FakeDevice

CLOSE = 900  # ends the reasoning channel for ``Reader``


@attrs.define
class Reader:
    """A judge: stops at ``stops``, closes the reasoning channel at ``CLOSE``, passes ids as pieces."""

    stops: frozenset[int] = frozenset({STOP})
    thinking: bool = False
    taken: list[int] = attrs.field(factory=list)
    finished: int = 0

    def take(self, token: int) -> Verdict:
        """See one token."""
        self.taken.append(token)
        self.thinking = self.thinking and token != CLOSE
        stop = Finish.STOP_TOKEN if token in self.stops else None
        return Verdict(stop, self.thinking, (token,))

    def finish(self) -> Any:
        """Set nothing free at the end."""
        self.finished += 1
        return ()


@attrs.define
class Heard:
    """Everything one request heard, with clock times."""

    events: list[Event] = attrs.field(factory=list)

    @property
    def tokens(self) -> list[int]:
        """All committed tokens."""
        return [token for event in self.events if isinstance(event, Committed) for token in event.tokens]

    @property
    def admitted(self) -> Admitted:
        """The admission; there must be one."""
        (admitted,) = (event for event in self.events if isinstance(event, Admitted))
        return admitted

    @property
    def progress(self) -> list[int]:
        """How much of the prompt had state, event by event."""
        return [event.processed for event in self.events if isinstance(event, Progress)]

    @property
    def end(self) -> Done | Failed:
        """The one terminal event, which is the last."""
        ends = [event for event in self.events if isinstance(event, Done | Failed)]
        assert len(ends) == 1
        assert self.events[-1] is ends[0]
        return ends[0]

    @property
    def finish(self) -> Finish:
        """Why it ended by itself."""
        assert isinstance(self.end, Done), self.end
        return self.end.finish


def prompt(length: int, seed: int = 0, *, thinking: bool = False, **more: Any) -> Prepared:
    """A text prompt of ``length`` tokens; equal seeds give equal prefixes."""
    return Prepared(
        ids=tuple(3 + (seed * 101 + i * 7) % 800 for i in range(length)), thinking=thinking, **more
    )


def job(
    prepared: Prepared | int = 10,
    max_tokens: int = 8,
    *,
    stops: Sequence[int] = (STOP,),
    deadline: float = math.inf,
    thinking: ThinkingPlan | None = None,
    seed: int = 0,
    **more: Any,
) -> Job:
    """A job with a ``Reader``; a number stands for a prompt of that length."""
    if isinstance(prepared, int):
        prepared = prompt(prepared, seed=prepared)
    return Job(
        request_id=more.pop("request_id", "r"),
        prompt=prepared,
        sampling=Sampling(seed=seed),
        max_tokens=max_tokens,
        judge=more.pop("judge", Reader(frozenset(stops), prepared.thinking)),
        deadline=deadline,
        thinking=thinking,
        **more,
    )


def audited(engine: Engine, device: FakeDevice) -> None:
    """Make the device refuse work on a page that the books call free."""
    space = engine.scheduler.memory.space

    def guard(unit: Unit) -> None:
        pages = unit.pages if isinstance(unit, Prefill) else ()
        for row in unit.rows if isinstance(unit, Decode) else ():
            pages += row.pages
        assert all(space.pages.lives(page) for page in pages), unit

    device.guard = guard


@asynccontextmanager
async def running(
    device: FakeDevice | None = None, options: EngineOptions | None = None, engine: Engine | None = None
) -> AsyncIterator[Engine]:
    """Run an engine; at the end nothing may be open, lost or leaked."""
    device = device or FakeDevice()
    engine = engine or Engine(device, options or EngineOptions(max_pending=64))
    audited(engine, device)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(engine.run)
        try:
            yield engine
            await idle(engine)
        finally:
            if engine.failure is not None and device.lost is None:
                raise engine.failure
        tasks.cancel_scope.cancel()
    engine.check()


async def idle(engine: Engine) -> None:
    """Wait until no request is open, then check the ledgers."""
    while True:
        stats = engine.stats()
        if engine.failure or not (stats.running or stats.waiting or stats.paused or engine._flights):
            break
        await anyio.sleep(0.001)
    engine.check()


async def hear(engine: Engine, work: Job) -> Heard:
    """Submit a job and listen to its end."""
    heard = Heard()
    async with engine.submit(work) as events:
        async for event in events:
            heard.events.append(event)
    return heard


async def hear_all(engine: Engine, works: Sequence[Job], *, gap: float = 0.0) -> list[Heard]:
    """Submit jobs in order, ``gap`` seconds apart, and listen to all of them."""
    heard = [Heard() for _ in works]

    async def listen(index: int) -> None:
        heard[index] = await hear(engine, works[index])

    async with anyio.create_task_group() as tasks:
        for index in range(len(works)):
            tasks.start_soon(listen, index)
            await anyio.sleep(gap or 1e-6)  # keeps the order of submission
    return heard
