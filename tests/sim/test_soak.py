"""A long mixed day: thousands of requests, bursts over capacity, leavers, deadlines; nothing leaks."""

from __future__ import annotations

import gc
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest
import trio

from ninfer.engine.context_store import ContextStore
from ninfer.engine.job import Done, Failed, Finish
from ninfer.engine.loop import Engine
from ninfer.engine.persist import Persistence
from ninfer.faults import Refused
from ninfer.prompt.prepared import Mark, MarkKind, Prepared
from ninfer.settings import ContextCosts, EngineOptions
from tests.sim.disk import reading
from tests.sim.fake_device import Costs, FakeDevice, Hashed, small
from tests.sim.harness import idle, job, prompt, running

OPTIONS = EngineOptions(
    max_pending=12,
    pending_timeout=0.2,
    checkpoint_every=32,
    junction_tokens=8,
    costs=ContextCosts(1e-6, 1e7, 1e-4, 0.0),
)


@attrs.define
class Day:
    """Clients of one simulated day; ``ends`` counts how their requests ended."""

    engine: Engine
    dice: random.Random
    ends: Counter[str] = attrs.field(factory=Counter)

    def ask(self) -> Prepared:
        """Draw a prompt: one of a few system texts, some history, a new question."""
        system = prompt(self.dice.choice((5, 20, 41)), seed=self.dice.randrange(6)).ids
        question = prompt(self.dice.randrange(1, 40), seed=self.dice.randrange(500)).ids
        ids = (system + question)[:100]
        marks = (Mark(min(len(system), len(ids)), MarkKind.EXPLICIT), Mark(len(ids), MarkKind.INPUT))
        return Prepared(ids, False, marks=marks[: self.dice.randrange(3)])

    async def client(self) -> None:
        """Send one request; leave early with probability one in ten."""
        leaves = self.dice.random() < 0.1
        session = f"s{self.dice.randrange(30)}" if self.dice.random() < 0.3 else None
        try:
            with self.engine.seat() as seat:
                work = job(
                    self.ask(),
                    self.dice.choice((0, 1, 4, 20, 60)),
                    seed=self.dice.randrange(3),
                    deadline=seat.deadline,
                    session=session,
                    on_end=self.ended,
                )
                with trio.move_on_after(self.dice.random() * 0.3 if leaves else 1e9):
                    async with self.engine.submit(work) as events:
                        async for _ in events:
                            pass
        except Refused as refusal:
            self.ends[refusal.fault.code or ""] += 1

    def ended(self, end: Done | Failed) -> None:
        """Count one terminal."""
        self.ends[end.finish.value if isinstance(end, Done) else end.fault.code or ""] += 1

    async def run(self, requests: int) -> None:
        """Let ``requests`` clients arrive, mostly in bursts, and wait for the last to leave."""
        async with trio.open_nursery() as nursery:
            while requests:
                burst = min(self.dice.choice((1, 2, 5, 20)), requests)
                requests -= burst
                for _ in range(burst):
                    nursery.start_soon(self.client)
                await trio.sleep(self.dice.random() * 0.08 * burst)
        await idle(self.engine)


async def soak(requests: int) -> None:
    geometry = small(lanes=6, slots=12, pages=20, max_context=128, host_bytes=30_000)
    costs = Costs(decode=0.004, prefill=0.001)
    device = FakeDevice(geometry, Hashed(length=40), costs, keep_log=False)
    async with running(device, OPTIONS) as engine:
        day = Day(engine, random.Random(7))
        await day.run(requests // 2)
        sizes = [living(engine)]
        await day.run(requests - requests // 2)
        sizes.append(living(engine))
        stats = engine.stats()
    assert sum(day.ends.values()) == requests
    assert stats.pages.held == stats.slots.held == stats.seats_taken == stats.running == 0
    assert stats.counters.snapshot_restores > requests // 200
    assert stats.counters.checkpoint_selections > requests // 20
    for outcome in (Finish.CANCELLED.value, "request_queue_timeout", "server_overloaded"):
        assert day.ends[outcome] > requests // 200, day.ends
    assert sizes[1] < sizes[0] * 1.1 + 2000, sizes


def living(engine: Engine) -> int:
    """Count the objects that are alive now that nothing runs."""
    memory = engine.scheduler.memory
    assert not engine._open and not engine._flights and not memory.snapshots.kept
    assert not memory.cache._found and not memory.retention.pinned
    fetching = engine.scheduler.fetching
    assert not fetching.waits and not fetching.pending and not fetching.fresh
    gc.collect()
    return len(gc.get_objects())


async def disk_day(requests: int, folder: Path) -> None:
    """The same in ten parts, with files that take 20 ms each and are written between the parts."""

    async def slowly(work: Callable[[], object]) -> object:
        await trio.sleep(0.02)
        return work()

    geometry = small(lanes=6, slots=12, pages=20, max_context=128, host_bytes=10_000)
    device = FakeDevice(geometry, Hashed(length=40), Costs(decode=0.004, prefill=0.001), keep_log=False)
    engine = Engine(device, OPTIONS)
    disk = engine.scheduler.memory.disk
    disk.capacity = 60_000
    there = Persistence(engine, device, ContextStore(folder, "fake", pytest.fail), slowly)
    async with running(device, OPTIONS, engine), reading(there):
        day = Day(engine, random.Random(9))
        for _ in range(10):
            await day.run(requests // 10)
            await engine.rest()
            await there.save()
            assert disk.used == sum(path.stat().st_size for path in files(folder)) <= disk.capacity
        living(engine)
        stats = engine.stats()
    assert sum(day.ends.values()) == requests
    assert stats.pages.held == stats.slots.held == stats.host.reserved == 0
    assert stats.counters.disk_reads > requests // 60
    assert stats.counters.prompt_tokens_disk > requests
    assert stats.counters.disk_written_bytes > 3 * disk.capacity  # it was full, and went on


def files(folder: Path) -> list[Path]:
    return list(folder.iterdir())


async def test_six_hundred_mixed_requests_leave_nothing_behind(autojump_clock):
    await soak(600)


async def test_six_hundred_mixed_requests_with_a_disk_leave_nothing_behind(autojump_clock, tmp_path):
    await disk_day(600, tmp_path)


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_twenty_thousand_mixed_requests_leave_nothing_behind(autojump_clock):
    await soak(20_000)
