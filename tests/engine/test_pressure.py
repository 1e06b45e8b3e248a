"""Memory too small for everyone: pauses, snapshots, replays; nobody notices but the clock."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial

import attrs
import pytest
import trio

from ninfer.engine.device import HostLoad, HostSave, Prefill
from ninfer.engine.job import Committed, Done, Finish, Job, Shifted, ThinkingPlan
from ninfer.settings import ContextCosts, EngineOptions
from tests.sim.everywhere import cancelled_at
from tests.sim.fake_device import FakeDevice, Hashed, small
from tests.sim.harness import CLOSE, Heard, hear, hear_all, idle, job, prompt, running

OPTIONS = EngineOptions(max_pending=64, prefix_reuse=False, costs=ContextCosts(0.0, 1e9, 1e-3, 0.0))
PLAN = ThinkingPlan(20, (901, 902, CLOSE, 903))
TIGHT = {"lanes": 4, "pages": 32, "page_tokens": 8, "max_context": 256}  # one context fits, four do not
ROUTES = [pytest.param(100_000, id="snapshots"), pytest.param(0, id="replay-only")]


def works(count: int = 4, tokens: int = 120, length: int = 30) -> list[Job]:
    """Requests that grow to some 160 tokens each; every second one has a thinking budget."""
    return [
        job(
            prompt(length + 7 * n, seed=n, thinking=n % 2 == 1),
            tokens,
            seed=n,
            thinking=PLAN if n % 2 else None,
            request_id=f"r{n}",
        )
        for n in range(count)
    ]


async def run(device: FakeDevice, jobs: Sequence[Job], options: EngineOptions = OPTIONS) -> list[Heard]:
    async with running(device, options) as engine:
        heard = await hear_all(engine, jobs)
        assert engine.stats().host.used == 0 or options.prefix_reuse
    return heard


async def roomy(jobs: Sequence[Job]) -> list[Heard]:
    return await run(FakeDevice(small(lanes=4, pages=500)), jobs)


@pytest.mark.parametrize("host", ROUTES)
async def test_four_growing_requests_finish_with_the_text_of_an_empty_machine(autojump_clock, host):
    free = await roomy(works())
    device = FakeDevice(small(**TIGHT, host_bytes=host))
    tight = await run(device, works())
    assert [one.tokens for one in tight] == [one.tokens for one in free]
    for one, other in zip(tight, free, strict=True):
        assert one.finish is Finish.OUTPUT_LIMIT
        mine, theirs = one.end.summary, other.end.summary
        for name in (
            "prompt_tokens",
            "output_tokens",
            "thinking_tokens",
            "control_tokens",
            "cached_tokens",
        ):
            assert getattr(mine, name) == getattr(theirs, name), name
        assert mine.computed_prefill_tokens == theirs.computed_prefill_tokens
        assert one.progress == other.progress
    paused = [one.end.summary for one in tight if one.end.summary.preemptions]
    assert paused
    assert max(one.preemptions for one in paused) <= 3  # nobody is thrown out again and again
    assert all(one.snapshot_restores + one.replay_restores == one.preemptions for one in paused)
    assert any(isinstance(unit, HostLoad) for unit in device.log) == (host > 0)
    assert any(one.replayed_tokens for one in paused) == (host == 0)


@pytest.mark.parametrize("host", ROUTES)
async def test_the_oldest_always_advances_and_is_never_paused(autojump_clock, host):
    tight = await run(FakeDevice(small(**TIGHT, host_bytes=host)), works())
    free = await roomy(works())
    assert tight[0].end.summary.preemptions == 0
    # Alone on the machine it would be this quick; company may only add its own prompts and replays.
    times = [event.at for event in tight[0].events if isinstance(event, Committed)]
    pauses = [b - a for a, b in itertools.pairwise(times)]
    assert max(pauses) <= 2 * (0.010 + 0.001 + 32 * 0.0001) + 1e-9
    assert len(times) == len(free[0].tokens)


@pytest.mark.parametrize("host", ROUTES)
async def test_each_restore_commits_at_least_one_unit_before_the_next_pause(autojump_clock, host):
    tight = await run(FakeDevice(small(**TIGHT, host_bytes=host)), works(6))
    for one in tight:
        steps = [event.transition for event in one.events if isinstance(event, Shifted)]
        cycles = " ".join(steps).split("pause_started")
        for cycle in cycles[1:-1]:
            assert "recovery_complete" in cycle, steps
        assert [step for step in steps if step == "terminal"] == ["terminal"][: len(cycles) > 1]
        tokens = 0
        for event in one.events:
            tokens += isinstance(event, Committed)
            if isinstance(event, Shifted) and event.transition == "pause_started":
                assert tokens > 0 or event.preemption == 0
                tokens = 0


async def test_pause_events_come_in_order_and_account_for_the_time(autojump_clock):
    tight = await run(FakeDevice(small(**TIGHT, host_bytes=100_000)), works())
    (one,) = [one for one in tight if one.end.summary.preemptions == 1][:1]
    steps = [event for event in one.events if isinstance(event, Shifted)]
    assert [step.transition for step in steps] == [
        "pause_started",
        "paused",
        "restore_started",
        "restored",
        "recovery_complete",
        "terminal",
    ]
    assert [step.route for step in steps] == [None, *["snapshot"] * 4, None]
    assert one.end.summary.paused_seconds == pytest.approx(steps[3].at - steps[0].at)
    assert steps[3].everyone.decode > steps[1].everyone.decode
    assert steps[3].own == steps[1].own


async def test_a_replay_is_cheaper_where_the_prompt_is_still_cached(autojump_clock):
    options = attrs.evolve(OPTIONS, prefix_reuse=True, checkpoint_every=16, costs=ContextCosts(0, 1, 1, 0))
    device = FakeDevice(small(**TIGHT, slots=20))
    tight = await run(device, works(), options)
    assert [one.tokens for one in tight] == [one.tokens for one in await roomy(works())]
    replays = [one.end.summary for one in tight if one.end.summary.replay_restores]
    assert replays
    assert not any(isinstance(unit, HostSave) for unit in device.log)


async def test_a_paused_request_does_not_block_a_fresh_one_that_fits(autojump_clock):
    device = FakeDevice(small(**TIGHT, host_bytes=100_000))
    async with running(device, OPTIONS) as engine, trio.open_nursery() as nursery:
        heard: dict[str, Heard] = {}

        async def listen(name: str, work: Job) -> None:
            heard[name] = await hear(engine, work)

        nursery.start_soon(listen, "old", job(prompt(100, 1), 150))
        await trio.sleep(0.01)
        nursery.start_soon(listen, "young", job(prompt(100, 2), 100))
        await trio.sleep(0.45)
        assert engine.stats().paused == 1
        nursery.start_soon(listen, "fresh", job(prompt(4, 3), 3))
        await trio.sleep(0.2)
        assert engine.stats().paused == 1
        assert heard["fresh"].finish is Finish.OUTPUT_LIMIT
    assert heard["young"].end.summary.preemptions >= 1


async def test_a_stream_of_fresh_requests_cannot_starve_a_paused_one(autojump_clock):
    device = FakeDevice(small(**TIGHT, host_bytes=100_000))
    async with running(device, OPTIONS) as engine, trio.open_nursery() as nursery:
        ends: dict[str, float] = {}

        async def listen(name: str, work: Job) -> None:
            await hear(engine, work)
            ends[name] = trio.current_time()

        nursery.start_soon(listen, "old", job(prompt(100, 1), 120))
        await trio.sleep(0.01)
        nursery.start_soon(listen, "young", job(prompt(100, 2), 140))
        for n in range(400):
            nursery.start_soon(listen, f"fresh{n}", job(prompt(60, 3 + n), 30))
            await trio.sleep(0.04)
            if "young" in ends:
                break
        assert "young" in ends


@pytest.mark.slow
@pytest.mark.parametrize("host", ROUTES)
@pytest.mark.parametrize("victim", [1, 3])
async def test_cancelling_at_every_suspension_leaks_nothing(autojump_clock, host, victim):
    """Cancel one client of a tight machine wherever it may wait; the others keep their text."""
    jobs = partial(works, 4, 32, 8)
    free = [one.tokens for one in await roomy(jobs())]
    device = FakeDevice(small(**{**TIGHT, "pages": 8, "max_context": 64}, host_bytes=host))

    async with running(device, OPTIONS) as engine:
        kept: dict[int, list[int]] = {}

        async def listen(n: int, work: Job) -> None:
            kept[n] = (await hear(engine, work)).tokens

        async def together() -> None:
            async with trio.open_nursery() as clients:
                for n, work in enumerate(jobs()):
                    clients.start_soon(listen, n, work)
                    await trio.sleep(1e-6)

        async def one_leaves(at: int) -> bool:
            async with trio.open_nursery() as clients:
                for n, work in enumerate(jobs()):
                    if n != victim:
                        clients.start_soon(listen, n, work)
                    await trio.sleep(1e-6)
                async with cancelled_at(at) as scope:
                    await hear(engine, jobs()[victim])
            return scope.cancelled_caught

        await together()
        assert [kept[n] for n in range(4)] == free
        at = 1
        while await one_leaves(at):
            await idle(engine)
            stats = engine.stats()
            assert stats.pages.held == stats.slots.held == stats.host.used == 0
            assert all(kept[n] == free[n] for n in range(4) if n != victim)
            at += 1
        assert at > 30


async def test_a_lost_device_during_pauses_is_told_to_everyone(autojump_clock):
    total = FakeDevice(small(**TIGHT, host_bytes=100_000))
    await run(total, works())
    for at in range(0, total.work, 17):
        device = FakeDevice(small(**TIGHT, host_bytes=100_000), faults={at: "fail"})
        ends: list[object] = []
        jobs = [attrs.evolve(work, on_end=ends.append) for work in works()]
        async with running(device, OPTIONS) as engine:
            heard = await hear_all(engine, jobs)
        assert len(ends) == 4
        assert any(not isinstance(one.end, Done) for one in heard)


async def test_prompts_are_paused_and_resumed_midway_too(autojump_clock):
    jobs = [job(prompt(150, n), 90, seed=n) for n in range(4)]
    again = [job(prompt(150, n), 90, seed=n) for n in range(4)]
    for host in (0, 100_000):
        device = FakeDevice(small(**{**TIGHT, "prefill_chunk": 8}, host_bytes=host), voice=Hashed())
        tight = await run(device, jobs if host else again)
        for one in tight:
            assert one.progress == sorted(set(one.progress))
            assert one.progress[-1] == 150
            assert one.end.summary.computed_prefill_tokens == 150
        assert sum(isinstance(unit, Prefill) for unit in device.log) >= 4 * 19
