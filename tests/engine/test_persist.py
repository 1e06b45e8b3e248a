"""Contexts over a restart: a second engine goes on from what the first one left on disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ninfer.engine.context_store import ContextStore
from ninfer.engine.device import HostLoad
from ninfer.engine.loop import Engine
from ninfer.engine.persist import Persistence
from ninfer.prompt.prepared import Mark, MarkKind, Prepared
from ninfer.settings import ContextCosts, EngineOptions
from tests.sim.fake_device import FakeDevice, Hashed, small
from tests.sim.harness import hear, job, prompt, running

OPTIONS = EngineOptions(max_pending=64, checkpoint_every=32, costs=ContextCosts(0.0, 1e9, 1e-3, 0.0))


async def inline(call: Callable[[], object]) -> object:
    return call()


def persistence(engine: Engine, folder: Path) -> Persistence:
    device = engine.device
    assert isinstance(device, FakeDevice)
    store = ContextStore(folder, device.signature, 1 << 30, pytest.fail)
    return Persistence(device, device, engine.scheduler.memory, store, inline)


def asks(count: int = 5) -> list[Prepared]:
    shared = prompt(37).ids
    marks = (Mark(37, MarkKind.EXPLICIT),)
    return [Prepared(shared + prompt(20 + n, seed=n).ids, False, marks=marks) for n in range(count)]


def device(host: int = 100_000, **more: int) -> FakeDevice:
    return FakeDevice(small(host_bytes=host, **more), Hashed(length=30))


async def answers(engine: Engine) -> list[list[int]]:
    return [(await hear(engine, job(ask, 9))).tokens for ask in asks()]


@pytest.mark.parametrize("pages", [64, 34])
async def test_a_second_engine_goes_on_where_the_first_stopped(autojump_clock, tmp_path, pages):
    async with running(device(pages=pages, max_context=128), OPTIONS) as first:
        texts = await answers(first)
        kept = await persistence(first, tmp_path).save()
        assert kept == len(list(tmp_path.iterdir())) > 5
    second = device(pages=pages, max_context=128)
    engine = Engine(second, OPTIONS)
    assert await persistence(engine, tmp_path).recall() == kept
    engine.check()
    async with running(second, OPTIONS, engine) as again:
        heard = [await hear(again, job(ask, 9)) for ask in asks()]
    assert [one.tokens for one in heard] == texts
    assert all(one.admitted.cached_tokens >= 37 for one in heard)
    assert any(isinstance(unit, HostLoad) for unit in second.log)


async def test_what_does_not_fit_the_host_is_left_on_disk(autojump_clock, tmp_path):
    async with running(device(), OPTIONS) as first:
        await answers(first)
        kept = await persistence(first, tmp_path).save()
    for host in (0, 2_000, 3_500, 6_000):
        engine = Engine(device(host), OPTIONS)
        came_back = await persistence(engine, tmp_path).recall()
        assert came_back < kept
        engine.check()
        assert engine.stats().host.used <= host


async def test_saving_again_writes_only_what_is_new_and_drops_what_is_gone(autojump_clock, tmp_path):
    async with running(device(), OPTIONS) as engine:
        await hear(engine, job(asks()[0], 9))
        await persistence(engine, tmp_path).save()
        before = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
        await hear(engine, job(asks()[1], 9))
        await persistence(engine, tmp_path).save()
        after = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert set(before) < set(after) or len(after) > len(before)
    assert all(after[name] == stamp for name, stamp in before.items() if name in after)


async def test_a_recalled_context_is_spilled_dropped_and_shared_like_any_other(autojump_clock, tmp_path):
    async with running(device(), OPTIONS) as first:
        await answers(first)
        await persistence(first, tmp_path).save()
    tight = device(4_000, pages=18, max_context=128)
    engine = Engine(tight, OPTIONS)
    await persistence(engine, tmp_path).recall()
    async with running(tight, OPTIONS, engine) as again:
        for n in range(12):
            await hear(again, job(prompt(60, seed=50 + n), 9))
            again.check()
