"""Drafts through an engine over the CUDA program: no greedy text changes, whatever else goes on.

On the emulator one short text of one width stands for all of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import attrs
import pytest

from ninfer.engine.device import Decode, Geometry, HostLoad, Result, Unit
from ninfer.engine.job import Job
from ninfer.engine.loop import Engine
from ninfer.prompt.prepared import Mark, MarkKind, Prepared
from ninfer.runtime.cuda_program import CudaProgram
from ninfer.settings import EngineOptions
from tests.sim.harness import Heard, hear, hear_all, job
from tests.sim.harness import prompt as prepared
from tests.suites.bed import Bed, only_on_a_card
from tests.suites.program import models, program_of

UNIT = 0.001  # seconds that reading a unit takes on the mock clock
WIDTHS: dict[str, dict[str, Any]] = {str(width): {"draft_tokens": width} for width in range(1, 6)}
WIDTHS["auto"] = {"draft_tokens": 5, "draft_auto": True}
heads = pytest.mark.parametrize("small_head", [False, True], ids=["whole head", "proposal head"])


@attrs.frozen
class Later:
    """A unit under way; implements ``Ticket``."""

    finish: Callable[[], Result]

    async def result(self) -> Result:
        """Let others submit, then wait."""
        await anyio.sleep(UNIT)
        return self.finish()


@attrs.define(eq=False)
class Ahead:
    """A device without a thread that submits before it has read; implements ``Device``."""

    program: CudaProgram
    log: list[Unit] = attrs.field(factory=list)

    @property
    def geometry(self) -> Geometry:
        """The program's."""
        return self.program.geometry

    def submit(self, unit: Unit) -> Later:
        """Submit."""
        self.log.append(unit)
        return Later(self.program.start(unit))


def jobs(count: int, tokens: int) -> list[Job]:
    """Greedy requests of different lengths; every other text repeats itself, so that drafts are right."""
    asked = []
    for n in range(count):
        ids = prepared(14 + 5 * n, seed=n).ids
        ids = ids[:7] * 4 if n % 2 else ids
        mark = Mark(len(ids) - 2, MarkKind.EXPLICIT)
        asked.append(job(Prepared(ids, False, marks=(mark,)), tokens, stops=()))
    return asked


@attrs.frozen
class Said:
    """What an engine answered; ``texts`` by request."""

    texts: list[list[int]]
    heard: list[Heard]
    engine: Engine
    device: Ahead


async def answers(
    program: CudaProgram, asked: list[Job], *, company: bool = False, again: bool = False, **options: Any
) -> Said:
    """Answer requests, in turn or together, by an engine of their own."""
    device: Any = Ahead(program)
    engine = Engine(device, attrs.evolve(EngineOptions(prefix_reuse=False, max_pending=64), **options))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(engine.run)
        for _ in range(1 + again):
            heard = await hear_all(engine, asked) if company else [await hear(engine, one) for one in asked]
        await engine.rest()
        assert engine.failure is None
        engine.check()
        tasks.cancel_scope.cancel()
    return Said([one.tokens for one in heard], heard, engine, device)


@models
@heads
@pytest.mark.slow
async def test_drafts_of_any_width_change_no_text(
    autojump_clock: Any, bed: Bed, name: str, small_head: bool
) -> None:
    only_on_a_card(bed, small_head or name.endswith("moe"))
    lanes, asked = (8, jobs(8, 40)) if bed.real else (1, jobs(2, 4)[1:])
    size: dict[str, Any] = {"max_concurrency": lanes, "max_context": 192}
    expected = (await answers(program_of(bed, name, **size), asked)).texts
    drafting = program_of(bed, name, **size, spec="mtp", draft_tokens=5, proposal_head=small_head)
    for width in WIDTHS.values() if bed.real else [{"draft_tokens": 2}]:
        alone = await answers(drafting, asked[:2], **width)
        assert alone.texts == expected[:2]
        assert alone.engine.stats().counters.spec_drafted > 0
        if bed.real:
            crowd = await answers(drafting, asked, company=True, **width)
            assert crowd.texts == expected
            assert max(len(unit.rows) for unit in crowd.device.log if isinstance(unit, Decode)) >= 6


@models
@pytest.mark.parametrize("width", ["3", "auto"])
@pytest.mark.parametrize("host", [1 << 30, 0], ids=["snapshot", "replay"])
@pytest.mark.slow
async def test_drafts_after_pauses_change_no_text(
    autojump_clock: Any, bed: Bed, name: str, width: str, host: int
) -> None:
    only_on_a_card(bed, True)
    size: dict[str, Any] = {"max_concurrency": 4, "max_context": 192}
    asked = jobs(4, 70)
    expected = (await answers(program_of(bed, name, **size), asked)).texts
    program = program_of(bed, name, **size, spec="mtp", draft_tokens=5)
    program.geometry = attrs.evolve(program.geometry, pages=5, host_bytes=host)
    found = await answers(program, asked, company=True, **WIDTHS[width])
    counters = found.engine.stats().counters
    assert counters.preemptions > 0
    assert (counters.snapshot_restores if host else counters.replay_restores) > 0
    assert found.texts == expected


@models
@pytest.mark.parametrize("width", ["3", "auto"])
@pytest.mark.slow
async def test_after_a_hit_drafts_are_as_good_as_before(
    autojump_clock: Any, bed: Bed, name: str, width: str
) -> None:
    only_on_a_card(bed, True)
    size: dict[str, Any] = {"max_concurrency": 2, "max_context": 192}
    asked = jobs(4, 40)
    expected = (await answers(program_of(bed, name, **size), asked, prefix_reuse=True)).texts
    program = program_of(bed, name, **size, spec="mtp", draft_tokens=5)
    program.geometry = attrs.evolve(program.geometry, host_bytes=1 << 30)
    fresh = await answers(program, asked, prefix_reuse=True, **WIDTHS[width])
    again = await answers(program, asked, prefix_reuse=True, again=True, **WIDTHS[width])
    assert fresh.texts == again.texts == expected
    assert all(one.admitted.cached_tokens > 0 for one in again.heard)
    assert any(isinstance(unit, HostLoad) for unit in again.device.log)
    if width == "3":
        accepted = [[one.end.summary.accepted for one in said.heard] for said in (fresh, again)]
        assert accepted[0] == accepted[1] and sum(accepted[0]) > 0
