"""Random schedules on random small machines: text, ledger, order and progress hold in all of them."""

from __future__ import annotations

import attrs
import pytest
import trio
import trio.testing
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ninfer.engine.device import Geometry
from ninfer.engine.job import Committed, Done, Failed, Job, ThinkingPlan
from ninfer.engine.loop import Engine
from ninfer.prompt.prepared import Mark, MarkKind, Prepared
from ninfer.settings import ContextCosts, EngineOptions
from tests.sim.fake_device import FakeDevice, Hashed, small
from tests.sim.harness import CLOSE, Heard, hear, job, prompt, running

PLAN = ThinkingPlan(6, (901, 902, CLOSE))
VOICE = Hashed(length=70)


@attrs.frozen
class Client:
    """One request: when it comes, what it asks, when it leaves (None: stays)."""

    comes: float
    shared: int
    own: int
    seed: int
    tokens: int
    thinks: bool
    marked: bool
    leaves: float | None

    def work(self) -> Job:
        """Build the job; equal clients build equal ones."""
        ids = prompt(self.shared, seed=1).ids + prompt(self.own, seed=2 + self.seed).ids
        marks = (Mark(max(self.shared, 1), MarkKind.EXPLICIT), Mark(len(ids), MarkKind.INPUT))
        prepared = Prepared(ids, self.thinks, marks=marks if self.marked else ())
        plan = PLAN if self.thinks and (self.tokens <= 6 or self.tokens >= 10) else None
        return job(prepared, self.tokens, seed=self.seed, thinking=plan)


clients = st.builds(
    Client,
    comes=st.sampled_from((0.0, 0.001, 0.02, 0.1, 0.3)),
    shared=st.sampled_from((0, 7, 16)),
    own=st.integers(1, 12),
    seed=st.integers(0, 3),
    tokens=st.sampled_from((0, 1, 5, 20, 30, 30, 30, 60)),
    thinks=st.booleans(),
    marked=st.booleans(),
    leaves=st.none() | st.none() | st.floats(0, 0.6),
)


@st.composite
def machines(draw: st.DrawFn) -> tuple[Geometry, EngineOptions]:
    """Draw a machine on which one context fits, and not much more."""
    page = draw(st.sampled_from((1, 4, 8, 64)))
    pages, lanes = 64 // page, draw(st.sampled_from((1, 2, 3, 4, 4)))
    geometry = small(
        lanes=lanes,
        slots=lanes + draw(st.integers(0, 3)),
        page_tokens=page,
        pages=max(pages + draw(st.sampled_from((0, 0, 1, pages // 2))), lanes),
        max_context=64,
        prefill_chunk=draw(st.sampled_from((4, 16, 64))),
        host_bytes=draw(st.sampled_from((0, 1_500, 6_000, 100_000))),
        drafts=draw(st.sampled_from((0, 0, 3))),
    )
    options = EngineOptions(
        prefix_reuse=draw(st.booleans()),
        checkpoint_every=draw(st.sampled_from((8, 24))),
        junction_tokens=draw(st.sampled_from((1, 8))),
        costs=ContextCosts(0.0, draw(st.sampled_from((1e5, 1e9))), 1e-3, 1e-6),
        max_pending=64,
        draft_tokens=geometry.drafts,
        draft_auto=draw(st.booleans()),
    )
    return geometry, options


async def alone(client: Client) -> list[int]:
    async with running(FakeDevice(small(lanes=1, pages=64, max_context=64), VOICE)) as engine:
        return (await hear(engine, client.work())).tokens


async def visit(engine: Engine, client: Client, heard: dict[int, Heard], index: int) -> None:
    await trio.sleep(client.comes)
    heard[index] = mine = Heard()
    with trio.move_on_after(float("inf") if client.leaves is None else client.leaves):
        async with engine.submit(client.work()) as events:
            async for event in events:
                mine.events.append(event)


async def inspect(engine: Engine) -> None:
    """Check the ledger again and again while everything runs."""
    while True:
        engine.check()
        await trio.sleep(0.0137)


async def play(machine: tuple[Geometry, EngineOptions], company: list[Client]) -> None:
    geometry, options = machine
    heard: dict[int, Heard] = {}
    async with running(FakeDevice(geometry, VOICE), options) as engine, trio.open_nursery() as nursery:
        nursery.start_soon(inspect, engine)
        async with trio.open_nursery() as visits:
            for index, client in enumerate(company):
                visits.start_soon(visit, engine, client, heard, index)
        nursery.cancel_scope.cancel()
    stats = engine.stats()
    assert stats.pages.held == stats.slots.held == 0
    for index, client in enumerate(company):
        tokens, expected = heard[index].tokens, await alone(client)
        ended = any(isinstance(event, Done | Failed) for event in heard[index].events)
        assert tokens == expected if ended else tokens == expected[: len(tokens)]
        assert ended or client.leaves is not None
        if ended:
            summary = heard[index].end.summary
            assert summary.output_tokens == tuple(expected)
            assert summary.snapshot_restores + summary.replay_restores <= summary.preemptions
            assert summary.cached_tokens + summary.computed_prefill_tokens == summary.prompt_tokens
        at = [event.at for event in heard[index].events if isinstance(event, Committed)]
        assert at == sorted(at)


@pytest.mark.slow
@settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck))
@given(machines(), st.lists(clients, min_size=1, max_size=8))
def test_any_schedule_on_any_machine_keeps_every_promise(machine, company):
    trio.run(play, machine, company, clock=trio.testing.MockClock(autojump_threshold=0))
