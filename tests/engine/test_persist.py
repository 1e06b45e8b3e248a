"""Contexts over a restart: a second engine goes on from what the first one left on disk."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from ninfer.engine.context_store import ContextStore
from ninfer.engine.device import HostLoad
from ninfer.engine.disk import Disk
from ninfer.engine.identity import Identity
from ninfer.engine.loop import Engine
from ninfer.engine.persist import SLICE, Persistence
from ninfer.engine.prefix import Kind, Node
from ninfer.engine.retention import Retention
from ninfer.prompt.prepared import Mark, MarkKind, Prepared
from ninfer.settings import ContextCosts, EngineOptions
from tests.sim.disk import reading
from tests.sim.fake_device import FakeDevice, Hashed, small
from tests.sim.harness import hear, job, prompt, running

OPTIONS = EngineOptions(max_pending=64, checkpoint_every=32, costs=ContextCosts(0.0, 1e9, 1e-3, 0.0))


async def inline(call: Callable[[], object]) -> object:
    return call()


def persistence(engine: Engine, folder: Path, capacity: int = 1 << 30) -> Persistence:
    device = engine.device
    assert isinstance(device, FakeDevice)
    engine.scheduler.memory.disk.capacity = capacity
    return Persistence(engine, device, ContextStore(folder, device.signature, pytest.fail), inline)


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
        await persistence(first, tmp_path).save()
        kept = len(first.scheduler.memory.disk)
        assert kept == len(list(tmp_path.iterdir())) > 5
        assert first.stats().counters.disk_written_bytes == first.stats().disk.used
    second = device(pages=pages, max_context=128)
    engine = Engine(second, OPTIONS)
    there = persistence(engine, tmp_path)
    assert await there.open() == kept
    assert engine.stats().host.used == 0  # nothing is read before it is asked for
    async with running(second, OPTIONS, engine) as again, reading(there):
        heard = [await hear(again, job(ask, 9)) for ask in asks()]
    assert [one.tokens for one in heard] == texts
    assert all(one.admitted.cached_tokens >= 37 for one in heard)
    assert any(isinstance(unit, HostLoad) for unit in second.log)
    assert heard[0].end.summary.disk_tokens >= 37


async def test_what_does_not_fit_the_host_is_computed_and_stays_on_disk(autojump_clock, tmp_path):
    async with running(device(), OPTIONS) as first:
        texts = await answers(first)
        await persistence(first, tmp_path).save()
        kept = len(first.scheduler.memory.disk)
    for host in (0, 1_000, 2_000, 3_500, 6_000):
        second = device(host)
        engine = Engine(second, OPTIONS)
        there = persistence(engine, tmp_path)
        assert await there.open() == kept
        async with running(second, OPTIONS, engine) as again, reading(there):
            assert await answers(again) == texts
            assert engine.stats().host.peak <= host


async def test_saving_again_writes_only_what_is_new(autojump_clock, tmp_path):
    async with running(device(), OPTIONS) as engine:
        await hear(engine, job(asks()[0], 9))
        there = persistence(engine, tmp_path)
        await there.save()
        before = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
        await hear(engine, job(asks()[1], 9))
        await there.save()
        after = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
        written = there.engine.scheduler.counters.disk_written_bytes
        assert written == sum(
            path.stat().st_size for path in tmp_path.iterdir()
        )  # a split rewrites nothing
    assert set(before) < set(after)
    assert all(after[name] == stamp for name, stamp in before.items())


async def test_a_context_that_was_read_is_spilled_dropped_and_read_again(autojump_clock, tmp_path):
    works = [job(prompt(60, seed=n), 9) for n in range(6)]
    async with running(device(), OPTIONS) as first:
        texts = [(await hear(first, work)).tokens for work in works]
        await persistence(first, tmp_path).save()
    tight = device(4_000, pages=18, max_context=128)
    engine = Engine(tight, OPTIONS)
    there = persistence(engine, tmp_path)
    await there.open()
    async with running(tight, OPTIONS, engine) as again, reading(there):
        for n in range(18):
            heard = await hear(again, job(prompt(60, seed=n % 6), 9))
            assert heard.tokens == texts[n % 6]
            assert heard.admitted.cached_tokens > 0
            again.check()
    assert engine.stats().counters.disk_reads > 6


async def test_choosing_among_thousands_lets_others_have_their_turn(autojump_clock, tmp_path, monkeypatch):
    looked_at, most, weigh = [], 0, Retention.image_worth

    def counting(retention: Retention, node: Node) -> float:
        looked_at.append(node)
        return weigh(retention, node)

    async def turns() -> None:
        nonlocal most
        while True:
            most = max(most, len(looked_at))
            looked_at.clear()
            await anyio.lowlevel.checkpoint()

    many = FakeDevice(small(host_bytes=10**9, pages=64))
    async with running(many, OPTIONS) as engine:
        host, tree = engine.scheduler.memory.space.host, engine.scheduler.memory.retention.tree
        for number in range(3000):
            ids = array("I", (number, *range(30))).tobytes()
            kv, image = host.reserve(False, 1), host.reserve(True, 0)
            node = tree.graft(Identity(0, ids), 31, 0, kv)
            host.drop(kv, [])
            node.image, node.kind = image, Kind.ENDPOINT
        monkeypatch.setattr(Retention, "image_worth", counting)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(turns)
            assert len(await persistence(engine, tmp_path)._chosen()) == 3000
            tasks.cancel_scope.cancel()
    assert 0 < most <= 2 * SLICE  # two turns may follow each other


@pytest.mark.parametrize("file_bytes", [1, 300, 700])
async def test_long_kv_goes_into_files_of_bounded_size(autojump_clock, tmp_path, file_bytes):
    work = job(prompt(90, marks=(Mark(85, MarkKind.EXPLICIT),)), 9)
    async with running(device(), OPTIONS) as first:
        text = (await hear(first, work)).tokens
        there = persistence(first, tmp_path)
        there.file_bytes = file_bytes
        await there.save()
        geometry = first.device.geometry
        stretches = {place.kv for place in there.disk if place.kv}
    most = max(1, file_bytes // geometry.page_bytes) * geometry.page_bytes
    assert len(stretches) > 90 // geometry.page_tokens // max(1, file_bytes // geometry.page_bytes)
    assert max(one.payload for one in stretches if one is not None) <= most
    second = device()
    engine = Engine(second, OPTIONS)
    there = persistence(engine, tmp_path)
    await there.open()
    async with running(second, OPTIONS, engine) as again, reading(there):
        heard = await hear(again, work)
    assert heard.tokens == text and heard.admitted.cached_tokens == 85


async def test_a_save_that_was_disturbed_goes_on_where_it_stopped(autojump_clock, tmp_path):
    async with running(device(), OPTIONS) as engine:
        await hear(engine, job(prompt(90), 9))
        there, written = persistence(engine, tmp_path), list[int]()
        there.file_bytes = 1

        async def full_after_three(call: Callable[[], object]) -> object:
            if len(written) == 3:
                raise OSError(28, "No space left on device")
            written.append(len(written))
            return call()

        there.run_blocking = full_after_three
        with pytest.raises(OSError, match="space"):
            await there.save()
        names = {path.name: path.stat().st_mtime_ns for path in files(tmp_path)}
        assert len(names) == 3
        there.run_blocking = inline
        await there.save()
        after = {path.name: path.stat().st_mtime_ns for path in files(tmp_path)}
    assert set(names) < set(after) and all(after[name] == stamp for name, stamp in names.items())


def files(folder: Path) -> list[Path]:
    return list(folder.iterdir())


async def test_an_image_is_not_written_where_its_kv_does_not_fit(autojump_clock, tmp_path, monkeypatch):
    async with running(device(), OPTIONS) as engine:
        await hear(engine, job(prompt(60), 9))
        there = persistence(engine, tmp_path)
        there.file_bytes = 1
        monkeypatch.setattr(Disk, "make_room", lambda disk, size, *_: size > 1_000)  # that of an image
        await there.save()
        assert files(tmp_path) == [] and engine.stats().counters.disk_written_bytes == 0
