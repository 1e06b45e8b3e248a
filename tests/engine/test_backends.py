"""The engine under asyncio: embedders run it there, so the same promises hold without trio."""

from __future__ import annotations

import anyio
import pytest

from ninfer.engine.device import DeviceFailed
from ninfer.engine.job import Done, Failed, Finish
from ninfer.settings import ContextCosts, EngineOptions
from tests.sim.fake_device import Costs, FakeDevice, Hashed, small
from tests.sim.harness import hear, hear_all, idle, job, prompt, running

FREE = Costs(0.0, 0.0, 0.0)
BACKENDS = ["trio", "asyncio"]
OPTIONS = EngineOptions(max_pending=64, costs=ContextCosts(0.0, 1e9, 1e-3, 0.0))


def device(**geometry: int) -> FakeDevice:
    return FakeDevice(small(**geometry), Hashed(length=30), FREE)


@pytest.mark.parametrize("backend", BACKENDS)
def test_requests_are_answered_and_pressure_is_survived(backend):
    async def main() -> list[list[int]]:
        works = [job(prompt(30 + n, n), 100, seed=n) for n in range(4)]
        tight = device(lanes=4, pages=32, host_bytes=50_000)
        tight.voice = Hashed()
        async with running(tight, OPTIONS) as engine:
            heard = await hear_all(engine, works)
            assert engine.stats().counters.preemptions > 0
        return [one.tokens for one in heard]

    tokens = anyio.run(main, backend=backend)
    assert [len(one) for one in tokens] == [100] * 4
    assert tokens == anyio.run(main, backend="trio")


@pytest.mark.parametrize("backend", BACKENDS)
def test_leaving_gives_everything_back(backend):
    async def main() -> None:
        ends: list[Done | Failed] = []
        async with running(device(), OPTIONS) as engine:
            with anyio.move_on_after(0.01):
                async with engine.submit(job(20, 100, stops=(), on_end=ends.append)) as events:
                    async for _ in events:
                        await anyio.sleep(0.001)
            await idle(engine)
            assert engine.stats().pages.held == 0
        assert [end.finish for end in ends if isinstance(end, Done)] in (
            [Finish.CANCELLED],
            [Finish.OUTPUT_LIMIT],
        )

    anyio.run(main, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_lost_device_is_told(backend):
    async def main() -> None:
        lost = FakeDevice(costs=FREE, faults={3: "fail"})
        async with running(lost, OPTIONS) as engine:
            heard = await hear(engine, job(20, 100))
            assert isinstance(heard.end, Failed)
            assert isinstance(engine.failure, DeviceFailed)

    anyio.run(main, backend=backend)
