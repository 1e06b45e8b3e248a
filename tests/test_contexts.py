"""When contexts are written: at rest and at the end; a disk that fails costs contexts, never the server."""

from __future__ import annotations

import errno
import io
from pathlib import Path
from typing import Any

import anyio
import attrs
import pytest

from ninfer.contexts import Contexts
from ninfer.engine.context_store import ContextStore
from ninfer.engine.loop import Engine
from ninfer.engine.persist import Persistence
from ninfer.observe.records import Records
from ninfer.settings import ContextCosts, ContextDisk, EngineOptions
from tests.sim.fake_device import Costs, FakeDevice, Hashed, small
from tests.sim.harness import hear, job, prompt, running
from tests.sim.server import inline

OPTIONS = EngineOptions(max_pending=64, costs=ContextCosts(0.0, 1e9, 1e-3, 0.0))


@attrs.define(eq=False)
class Setting:
    """Contexts of a simulated engine, and what they have said."""

    engine: Engine
    contexts: Contexts
    stderr: io.StringIO

    @property
    def files(self) -> list[str]:
        """What is on disk."""
        folder = self.contexts.disk.folder
        assert folder is not None
        return sorted(path.name for path in folder.glob("*.context"))


def setting(engine: Engine, folder: Path, **disk: Any) -> Setting:
    device, stderr = engine.device, io.StringIO()
    assert isinstance(device, FakeDevice)
    records = Records(stderr, "debug", lambda: 0.0)
    store = ContextStore(folder, "fake", 1 << 30, records.warning)
    persistence = Persistence(
        device, device, engine.scheduler.memory, store, inline, lambda: engine.resting
    )
    chosen = ContextDisk(folder, **disk)
    return Setting(engine, Contexts(engine, persistence, chosen, records), stderr)


def slow_device() -> FakeDevice:
    return FakeDevice(small(host_bytes=100_000), Hashed(length=30), Costs(decode=0.5))


async def test_contexts_are_written_after_a_while_without_change(
    autojump_clock: Any, tmp_path: Path
) -> None:
    async with running(slow_device(), OPTIONS) as engine:
        there = setting(engine, tmp_path, idle=10.0)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(there.contexts.keep)
            await hear(engine, job(prompt(40), 9))
            assert there.files == []
            await anyio.sleep(21)
            written = there.files
            assert written
            await anyio.sleep(50)
            assert there.stderr.getvalue().count("are on disk") == 1  # nothing changed, nothing to do
            await hear(engine, job(prompt(50, seed=3), 9))
            await anyio.sleep(21)
            assert set(written) < set(there.files)
            tasks.cancel_scope.cancel()


async def test_nothing_is_written_beside_requests(autojump_clock: Any, tmp_path: Path) -> None:
    async with running(slow_device(), OPTIONS) as engine:
        there = setting(engine, tmp_path, idle=1.0)
        await hear(engine, job(prompt(40), 3))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hear, engine, job(prompt(60, seed=2), 100))
            await anyio.sleep(0.1)
            tasks.start_soon(there.contexts.keep)
            await anyio.sleep(20)
            assert not engine.resting and there.files == []
            await engine.rest()
            await anyio.sleep(3)
            assert there.files
            tasks.cancel_scope.cancel()


async def test_a_full_disk_is_told_once_and_forgiven(
    autojump_clock: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> bool:
        raise OSError(errno.ENOSPC, "No space left on device")

    async with running(slow_device(), OPTIONS) as engine:
        there = setting(engine, tmp_path, idle=1.0)
        store = there.contexts.persistence.store
        with monkeypatch.context() as patch:
            patch.setattr(type(store), "write", full)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(there.contexts.keep)
                await hear(engine, job(prompt(40), 3))
                await anyio.sleep(10)
                tasks.cancel_scope.cancel()
        assert there.stderr.getvalue().count("No space left") == 1
        await there.contexts.close()
        assert there.files


async def test_closing_waits_for_rest_but_not_for_ever(autojump_clock: Any, tmp_path: Path) -> None:
    async with running(slow_device(), OPTIONS) as engine:
        await hear(engine, job(prompt(40), 3))
        there = setting(engine, tmp_path, save_seconds=5.0)
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(hear, engine, job(prompt(60, seed=2), 100))
                await anyio.sleep(0.1)
                began = anyio.current_time()
                await there.contexts.close()
                assert anyio.current_time() - began == pytest.approx(5.0)
                assert "not all written in time" in there.stderr.getvalue()
                tasks.cancel_scope.cancel()
        assert not scope.cancelled_caught
        await engine.rest()
        await there.contexts.close()
        assert there.files
