"""Cancelling a client at every single suspension, in every kind of work; the ledger is zero each time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import attrs
import pytest
import trio

from ninfer.engine.job import Done, Failed, Finish, ThinkingPlan
from ninfer.engine.loop import Engine
from ninfer.prompt.prepared import Mark, MarkKind, Prepared
from ninfer.settings import ContextCosts, EngineOptions
from tests.sim.everywhere import cancelled_everywhere
from tests.sim.fake_device import FakeDevice, Hashed, small
from tests.sim.harness import CLOSE, hear, hear_all, idle, job, prompt, running

OPTIONS = EngineOptions(
    max_pending=8,
    checkpoint_every=16,
    junction_tokens=4,
    costs=ContextCosts(0.0, 1e9, 1e-3, 0.0),
    draft_tokens=3,
)
PLAN = ThinkingPlan(4, (901, 902, CLOSE))
GEOMETRY = small(lanes=2, pages=16, max_context=128, host_bytes=20_000)
Scenario = Callable[[Engine, list[Done | Failed]], Awaitable[None]]


async def a_short_answer(engine: Engine, ends: list[Done | Failed]) -> None:
    with engine.seat():
        await hear(engine, job(10, 6, on_end=ends.append))


async def a_long_prompt_in_chunks(engine: Engine, ends: list[Done | Failed]) -> None:
    with engine.seat():
        await hear(engine, job(100, 3, on_end=ends.append))


async def a_cached_prompt(engine: Engine, ends: list[Done | Failed]) -> None:
    marks = (Mark(21, MarkKind.EXPLICIT), Mark(40, MarkKind.INPUT))
    with engine.seat():
        ask = Prepared(prompt(40).ids, False, marks=marks)
        await hear(engine, job(ask, 3, on_end=ends.append))


async def inserted_control(engine: Engine, ends: list[Done | Failed]) -> None:
    with engine.seat():
        await hear(engine, job(prompt(9, thinking=True), 12, thinking=PLAN, on_end=ends.append))


async def a_crowd(engine: Engine, ends: list[Done | Failed]) -> None:
    """Two lanes, four requests that do not fit together: waiting, pausing, coming back."""
    with engine.seat():
        await hear_all(engine, [job(prompt(40 + n, n), 30, on_end=ends.append) for n in range(4)])


async def a_deadline(engine: Engine, ends: list[Done | Failed]) -> None:
    with engine.seat():
        works = [job(prompt(20, n), 20, deadline=0.05, on_end=ends.append) for n in range(5)]
        await hear_all(engine, works)


SCENARIOS = [a_short_answer, a_long_prompt_in_chunks, a_cached_prompt, inserted_control, a_deadline]


async def everywhere(scenario: Scenario, drafts: int) -> int:
    device = FakeDevice(attrs.evolve(GEOMETRY, drafts=drafts), Hashed())
    runs = 0
    async with running(device, OPTIONS) as engine:
        ends: list[Done | Failed] = []
        async for at in cancelled_everywhere(lambda: scenario(engine, ends)):
            runs = at
            await idle(engine)
            stats = engine.stats()
            assert engine.failure is None
            assert stats.pages.held == stats.slots.held == stats.seats_taken == 0
            assert len({id(end) for end in ends}) == len(ends)
            assert all(isinstance(end, Failed) or end.finish in set(Finish) for end in ends)
    return runs


@pytest.mark.parametrize("drafts", [0, 3])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_no_suspension_leaks(autojump_clock, scenario, drafts):
    assert await everywhere(scenario, drafts) > 5


@pytest.mark.slow
@pytest.mark.parametrize("drafts", [0, 3])
async def test_no_suspension_of_a_crowd_leaks(autojump_clock, drafts):
    assert await everywhere(a_crowd, drafts) > 50


async def test_cancelling_the_engine_everywhere_ends_every_request_once(autojump_clock):
    """The engine itself is stopped at its 1st, 2nd, 3rd... suspension while requests are open."""
    for at in range(1, 60):
        device = FakeDevice(attrs.evolve(GEOMETRY, drafts=at % 2 * 3), Hashed())
        engine = Engine(device, OPTIONS)
        ends: list[Done | Failed] = []
        streams = [engine.submit(job(prompt(20, n), 12, on_end=ends.append)) for n in range(4)]

        async def serve(engine: Engine = engine, at: int = at) -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(engine.run)
                await trio.sleep(0.002 * at)
                nursery.cancel_scope.cancel()

        await serve()
        assert len(ends) == 4
        for stream in streams:
            with stream:
                events = [event async for event in stream]
            assert sum(isinstance(event, Done | Failed) for event in events) == 1
        engine.check()
