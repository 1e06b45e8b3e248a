"""The few tokens behind the input mark: always the same ones, whatever was known, cut, paused or shared."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from ninfer.engine.device import TAIL_TOKENS, Prefill
from ninfer.engine.job import ThinkingPlan
from ninfer.prompt.prepared import Mark, MarkKind, MediaSpan, Prepared
from ninfer.settings import EngineOptions
from tests.sim.fake_device import FakeDevice, Hashed, small
from tests.sim.harness import CLOSE, hear, hear_all, job, prompt, running


def chat(length: int, tail: int, seed: int = 0, **more: Any) -> Prepared:
    return prompt(length, seed=seed, marks=(Mark(length - tail, MarkKind.INPUT),), **more)


def roads(device: FakeDevice, length: int, tail: int) -> set[int]:
    """Demand that every prompt row went its road; return the rows that were computed as a tail."""
    found: set[int] = set()
    for unit in device.log:
        if isinstance(unit, Prefill) and unit.ids:
            rows = range(unit.start, unit.start + len(unit.ids))
            assert unit.tail == (length - tail <= rows[0] < length), unit
            assert rows[0] >= length - tail or rows[-1] < length - tail, "a unit on two roads"
            found |= set(rows) if unit.tail else set()
    return found


@pytest.mark.parametrize("reuse", [True, False])
@pytest.mark.parametrize("chunk", [3, 32])
async def test_a_prompt_ends_in_its_tail_however_it_is_cut(autojump_clock, reuse, chunk):
    device = FakeDevice(small(prefill_chunk=chunk), Hashed(length=30))
    async with running(device, EngineOptions(prefix_reuse=reuse)) as engine:
        await hear(engine, job(chat(50, 5), 3))
        await hear(engine, job(chat(50, 5), 3))
    assert roads(device, 50, 5) == set(range(45, 50))


async def test_a_hit_computes_the_tail_and_nothing_else(autojump_clock):
    device = FakeDevice(small(), Hashed(length=30))
    async with running(device) as engine:
        first = await hear(engine, job(chat(50, 5), 3))
        del device.log[:]
        again = await hear(engine, job(chat(50, 5), 3))
    assert again.tokens == first.tokens and again.admitted.cached_tokens == 45
    assert [(unit.start, unit.tail) for unit in device.log if isinstance(unit, Prefill)] == [(45, True)]


async def test_a_replay_takes_the_same_roads(autojump_clock):
    machine = small(lanes=4, pages=18, max_context=128)
    device = FakeDevice(machine, Hashed(length=60))
    async with running(device, EngineOptions(prefix_reuse=False)) as engine:
        works = [job(chat(40, 4), 60, seed=n) for n in range(4)]
        heard = await hear_all(engine, works)
    assert sum(one.end.summary.replay_restores for one in heard) > 0
    assert roads(device, 40, 4) == set(range(36, 40))


async def test_control_tokens_are_no_tail(autojump_clock):
    device = FakeDevice(small(), Hashed())
    async with running(device) as engine:
        work = job(chat(30, 4, thinking=True), 20, thinking=ThinkingPlan(6, (901, 902, CLOSE)))
        await hear(engine, work)
    assert roads(device, 30, 4) == set(range(26, 30))


@pytest.mark.parametrize("tail", [TAIL_TOKENS + 1, 50])
async def test_what_is_long_is_no_tail(autojump_clock, tail):
    device = FakeDevice(small(), Hashed(length=30))
    async with running(device) as engine:
        await hear(engine, job(chat(50, tail), 3))
    assert not any(unit.tail for unit in device.log if isinstance(unit, Prefill))


async def test_media_behind_the_mark_are_no_tail(autojump_clock):
    axis = tuple(range(50))
    media = (MediaSpan(b"d" * 32, (1, 2, 4), ((46, 2),)),)
    pictured = attrs.evolve(chat(50, 6), media=media, positions=(axis, axis, axis))
    device = FakeDevice(small(), Hashed(length=30))
    async with running(device) as engine:
        await hear(engine, job(pictured, 3))
    assert not any(unit.tail for unit in device.log if isinstance(unit, Prefill))
