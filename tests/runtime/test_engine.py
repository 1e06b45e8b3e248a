"""The engine over the real program: texts do not depend on company, memory pressure or reuse."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import trio

from ninfer.engine.device import Geometry, Result, Unit
from ninfer.engine.job import Committed, Done, Job, Sampling, Verdict
from ninfer.engine.loop import Engine
from ninfer.prompt.prepared import Prepared
from ninfer.runtime.device import ThreadDevice
from ninfer.runtime.program import NumpyProgram
from ninfer.settings import EngineOptions
from tests.drive import Request, generate
from tests.toy import DENSE, SPARSE, toy_program

COUNT = 24
HOT = Sampling(temperature=1.0, top_p=0.9, presence=0.3, seed=3)


@attrs.frozen
class Silent:
    """Lets every token pass."""

    def take(self, token: int) -> Verdict:
        """Go on."""
        return Verdict()

    def finish(self) -> None:
        """Nothing is held."""


@attrs.frozen
class Answered:
    """A unit that ran when it was submitted."""

    outcome: Result

    async def result(self) -> Result:
        """Let others run."""
        await trio.lowlevel.checkpoint()
        return self.outcome


@attrs.frozen(eq=False)
class Direct:
    """A device without a thread."""

    program: NumpyProgram

    @property
    def geometry(self) -> Geometry:
        """The program's."""
        return self.program.geometry

    def submit(self, unit: Unit) -> Answered:
        """Run at once."""
        return Answered(self.program.run(unit))


def prompts() -> list[tuple[int, ...]]:
    """Six prompts, three of them with a long beginning in common."""
    common = tuple(3 + 5 * i % 80 for i in range(40))
    return [
        (*common, 7, 8),
        tuple(9 + i % 70 for i in range(33)),
        (*common, 50),
        (4, 4, 4),
        (*common, 7, 8, 60, 61, 62),
        tuple(80 - i for i in range(57)),
    ]


async def serve(engine: Engine, jobs: list[tuple[tuple[int, ...], Sampling]]) -> list[tuple[int, ...]]:
    """Run all jobs together; returns their tokens."""
    answers: dict[int, list[int]] = {i: [] for i in range(len(jobs))}

    async def ask(i: int, ids: tuple[int, ...], sampling: Sampling) -> None:
        job = Job(f"r{i}", Prepared(ids, False), sampling, COUNT, Silent(), float("inf"))
        with engine.seat(), engine.submit(job) as events:
            found = [event async for event in events]
        assert isinstance(found[-1], Done), found[-1]
        for event in found:
            if isinstance(event, Committed):
                answers[i] += event.tokens

    async with trio.open_nursery() as nursery:
        nursery.start_soon(engine.run)
        async with trio.open_nursery() as asks:
            for i, (ids, sampling) in enumerate(jobs):
                asks.start_soon(ask, i, ids, sampling)
        engine.check()
        nursery.cancel_scope.cancel()
    assert engine.failure is None
    return [tuple(answers[i]) for i in range(len(jobs))]


def alone(config: dict[str, Any], ids: tuple[int, ...], sampling: Sampling) -> tuple[int, ...]:
    """What the program says without an engine."""
    request = Request(ids, pages=tuple(range(16)), sampling=sampling)
    return generate(toy_program(config), request, COUNT)


@pytest.mark.parametrize("sampling", [Sampling(), HOT], ids=["greedy", "hot"])
@pytest.mark.parametrize("config", [DENSE, SPARSE], ids=["dense", "sparse"])
@pytest.mark.parametrize("pages", [8, 48], ids=["pressed", "roomy"])
async def test_every_request_gets_the_text_it_gets_alone(
    config: dict[str, Any], sampling: Sampling, pages: int
) -> None:
    options = EngineOptions(
        max_context=112, page_tokens=16, max_concurrency=3, prefill_chunk=16, kv_capacity=pages * 16
    )
    program = toy_program(config, **attrs.asdict(options))
    program.pages.values[:] = float("nan")
    jobs = [(ids, attrs.evolve(sampling, seed=i)) for i, ids in enumerate(prompts())]
    texts = await serve(Engine(Direct(program), options), jobs)
    assert texts == [alone(config, *job) for job in jobs]


async def test_the_device_thread_serves_the_engine() -> None:
    options = EngineOptions(max_context=112, page_tokens=16, max_concurrency=2)
    jobs = [(ids, Sampling()) for ids in prompts()[:3]]
    async with ThreadDevice.start(lambda: toy_program(**attrs.asdict(options))) as device:
        texts = await serve(Engine(device, options), jobs)
    assert texts == [alone(DENSE, *job) for job in jobs]
