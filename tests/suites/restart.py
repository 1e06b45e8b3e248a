"""An engine over the CUDA program that goes on from files: the same text, nothing computed twice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import attrs
import pytest
import trio
import trio.testing

from ninfer.engine.context_store import ContextStore
from ninfer.engine.device import HostLoad, Prefill
from ninfer.engine.loop import Engine
from ninfer.engine.persist import Persistence
from ninfer.prompt.prepared import Mark, MarkKind
from ninfer.settings import ContextCosts, EngineOptions
from tests.sim.disk import reading
from tests.sim.harness import Heard, hear, job
from tests.sim.harness import prompt as prepared
from tests.suites.bed import Bed
from tests.suites.program import program_of
from tests.whole.kit import Inline

OPTIONS = EngineOptions(max_context=192, costs=ContextCosts(0.0, 1e12, 1.0, 0.0, 1e12))


async def inline(work: Callable[[], object]) -> object:
    return work()


async def life(bed: Bed, folder: Path, warnings: list[str], **options: Any) -> tuple[Heard, Inline]:
    """Start on a folder, answer one question, leave what is worth keeping."""
    program = program_of(bed, "tiny-qwen3_5", max_context=192, **options)
    program.geometry = attrs.evolve(program.geometry, host_bytes=1 << 30)
    device: Any = Inline(program)
    engine = Engine(device, OPTIONS)
    engine.scheduler.memory.disk.capacity = 1 << 30
    there = Persistence(engine, device, ContextStore(folder, device.signature, warnings.append), inline)
    await there.open()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(engine.run)
        async with reading(there):
            heard = await hear(engine, job(prepared(70, marks=(Mark(66, MarkKind.EXPLICIT),)), 3, stops=()))
        await engine.rest()
        await there.save()
        engine.check()
        tasks.cancel_scope.cancel()
    return heard, device


def lives(bed: Bed, folder: Path, *formats: str) -> tuple[list[tuple[Heard, Inline]], list[str]]:
    """One life after the other, each in a cache format; what was heard, and the warnings."""
    warnings: list[str] = []

    async def run() -> list[tuple[Heard, Inline]]:
        return [await life(bed, folder, warnings, kv_dtype=name) for name in formats]

    return trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0)), warnings


@pytest.mark.slow
def test_another_program_goes_on_from_the_files(bed: Bed, tmp_path: Path) -> None:
    ((first, _), (again, device)), warnings = lives(bed, tmp_path, "bf16", "bf16")
    assert again.tokens == first.tokens and len(first.tokens) == 3
    assert (first.admitted.cached_tokens, again.admitted.cached_tokens) == (0, 66)
    assert again.end.summary.disk_tokens == 66
    assert sum(len(unit.ids) for unit in device.log if isinstance(unit, Prefill)) == 4
    assert sum(isinstance(unit, HostLoad) for unit in device.log) == 2
    assert not warnings


@pytest.mark.slow
def test_files_of_another_format_are_left_alone(bed: Bed, tmp_path: Path) -> None:
    lives(bed, tmp_path, "int8")
    files = {path.name for path in tmp_path.iterdir()}
    (((heard, _),), warnings) = lives(bed, tmp_path, "bf16")
    assert heard.admitted.cached_tokens == 0
    assert len(warnings) == len(files) and all("another model or format" in text for text in warnings)
    assert files < {path.name for path in tmp_path.iterdir()}
