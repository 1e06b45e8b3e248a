"""Slots that are behind, through an engine over the CUDA program: no text and no image shows it.

On the emulator one short crowd stands for all of it.
"""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from ninfer.ops.cuda_delta import Delta
from ninfer.ops.cuda_state import Notes
from ninfer.runtime.cuda_program import CudaProgram
from tests.drive import Request, start, step
from tests.suites.bed import Bed, only_on_a_card
from tests.suites.drafts import answers, jobs
from tests.suites.program import image, models, program_of, prompt


@pytest.fixture
def caught_up(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many slots each launch brought up."""
    found: list[int] = []
    plain = Delta.catch_up

    def counted(self: Delta, lanes: Any, slots: Any, counts: Any) -> None:
        found.append(slots.shape[0])
        plain(self, lanes, slots, counts)

    monkeypatch.setattr(Delta, "catch_up", counted)
    return found


def lagging(bed: Bed, program: CudaProgram) -> CudaProgram:
    """Let steps of three sequences and more leave slots behind, however small the model is."""
    delta = program.verbs.delta
    delta.blocks = 2 * delta.shape.value_heads
    delta.notes = Notes.take(bed.take, delta.shape, delta.images.layers, program.geometry.lanes)
    assert [delta.lagging(count) for count in (1, 2, 3)] == [False, False, True]
    return program


@models
@pytest.mark.slow
def test_an_image_is_brought_up_for_whoever_reads_it(bed: Bed, name: str, caught_up: list[int]) -> None:
    only_on_a_card(bed, name.endswith("moe"))
    ids, pages, lanes = prompt(9, 3), tuple(range(8)), 3
    alone, crowd = program_of(bed, name), lagging(bed, program_of(bed, name, max_concurrency=lanes))
    one, counts = Request(ids, pages=pages), range(2, 12) if bed.real else range(3, 5)
    requests = [
        Request(
            ids if lane == 1 else prompt(9 + lane, lane), lane, lane, tuple(range(8 * lane, 8 * lane + 8))
        )
        for lane in range(lanes)
    ]
    for program, of in ((alone, [one]), (crowd, requests)):
        for request in of:
            start(program, request)
    for count in counts:
        while len(one.out) < count:
            step(alone, [one])
            step(crowd, requests)
        assert requests[1].out == one.out
        assert (image(bed, crowd, 1) == image(bed, alone)).all()
    assert caught_up


@models
@pytest.mark.slow
async def test_texts_of_a_crowd_are_those_of_each_alone(
    autojump_clock: Any, bed: Bed, name: str, caught_up: list[int]
) -> None:
    only_on_a_card(bed, True)
    size: dict[str, Any] = {"max_concurrency": 8, "max_context": 192}
    asked = jobs(8, 40)
    expected = (await answers(program_of(bed, name, **size), asked)).texts
    program = lagging(bed, program_of(bed, name, **size))
    program.geometry = attrs.evolve(program.geometry, host_bytes=1 << 30)
    assert (await answers(program, asked, company=True)).texts == expected
    expected = (await answers(program_of(bed, name, **size), asked, prefix_reuse=True)).texts
    again = await answers(program, asked, company=True, again=True, prefix_reuse=True)
    assert again.texts == expected
    assert any(one.admitted.cached_tokens > 0 for one in again.heard)
    assert caught_up


@models
@pytest.mark.parametrize("drafts", [0, 3])
@pytest.mark.parametrize("host", [1 << 30, 0], ids=["snapshot", "replay"])
@pytest.mark.slow
async def test_texts_after_pauses_are_those_of_each_alone(
    autojump_clock: Any, bed: Bed, name: str, drafts: int, host: int, caught_up: list[int]
) -> None:
    only_on_a_card(bed, True)
    size: dict[str, Any] = {"max_concurrency": 4, "max_context": 192}
    asked = jobs(4, 70)
    expected = (await answers(program_of(bed, name, **size), asked)).texts
    drafting: dict[str, Any] = {"spec": "mtp", "draft_tokens": drafts} if drafts else {}
    program = lagging(bed, program_of(bed, name, **size, **drafting))
    program.geometry = attrs.evolve(program.geometry, pages=5, host_bytes=host)
    width = {"draft_tokens": drafts, "draft_auto": True} if drafts else {}
    found = await answers(program, asked, company=True, **width)
    assert found.texts == expected
    counters = found.engine.stats().counters
    assert counters.preemptions > 0
    assert (counters.snapshot_restores if host else counters.replay_restores) > 0
    assert caught_up or drafts
