"""When contexts are written and read; a disk that fails costs contexts, never the server."""

from __future__ import annotations

import errno
import io
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread
import anyio.to_thread
import attrs
import pytest

from ninfer.contexts import Contexts, locked
from ninfer.engine.context_store import ContextStore
from ninfer.engine.device import DeviceFailed
from ninfer.engine.job import Job
from ninfer.engine.loop import Engine
from ninfer.engine.persist import Persistence
from ninfer.faults import StartupError
from ninfer.observe.records import Records
from ninfer.prompt.prepared import Mark, MarkKind
from ninfer.settings import ContextCosts, ContextDisk, EngineOptions
from tests.sim.fake_device import Costs, FakeDevice, Hashed, small
from tests.sim.harness import Heard, hear, job, prompt, running
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


def setting(engine: Engine, folder: Path, run: Any = inline, **disk: Any) -> Setting:
    device, stderr = engine.device, io.StringIO()
    assert isinstance(device, FakeDevice)
    records = Records(stderr, "debug", lambda: 0.0)
    chosen = ContextDisk(folder, **disk)
    engine.scheduler.memory.disk.capacity = chosen.bytes
    persistence = Persistence(engine, device, ContextStore(folder, "fake", records.warning), run)
    return Setting(engine, Contexts(engine, persistence, chosen, records), stderr)


@asynccontextmanager
async def serving(there: Setting) -> AsyncIterator[None]:
    """Let contexts be read and kept during the block."""
    await there.contexts.find()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(there.contexts.serve)
        await anyio.sleep(1e-6)
        yield
        await there.engine.rest()
        tasks.cancel_scope.cancel()


def left(folder: Path) -> list[Path]:
    return list(folder.iterdir())


def slow_device() -> FakeDevice:
    return FakeDevice(small(host_bytes=100_000), Hashed(length=30), Costs(decode=0.5))


async def test_contexts_are_written_after_a_while_without_change(
    autojump_clock: Any, tmp_path: Path
) -> None:
    async with running(slow_device(), OPTIONS) as engine:
        there = setting(engine, tmp_path, idle=10.0)
        async with serving(there):
            await hear(engine, job(prompt(40), 9))
            assert there.files == []
            await anyio.sleep(21)
            written = there.files
            assert written
            await anyio.sleep(50)
            assert there.stderr.getvalue().count("on disk |") == 1  # nothing changed, nothing to do
            await hear(engine, job(prompt(50, seed=3), 9))
            await anyio.sleep(21)
            assert set(written) < set(there.files)


async def test_nothing_is_written_beside_requests(autojump_clock: Any, tmp_path: Path) -> None:
    async with running(slow_device(), OPTIONS) as engine:
        there = setting(engine, tmp_path, idle=1.0)
        await hear(engine, job(prompt(40), 3))
        async with anyio.create_task_group() as tasks, serving(there):
            tasks.start_soon(hear, engine, job(prompt(60, seed=2), 100))
            await anyio.sleep(20)
            assert not engine.resting and there.files == []
            await engine.rest()
            await anyio.sleep(3)
            assert there.files


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
            async with serving(there):
                await hear(engine, job(prompt(40), 3))
                await anyio.sleep(10)
        assert there.stderr.getvalue().count("No space left") == 1
        await there.contexts.close()
        assert there.files


async def test_what_cannot_be_removed_is_tried_again(
    autojump_clock: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stuck(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    (tmp_path / f"{'0a' * 32}.context").write_bytes(bytes(2_000_000))
    async with running(slow_device(), OPTIONS) as engine:
        there = setting(engine, tmp_path, bytes=1_000_000)
        with monkeypatch.context() as patch:
            patch.setattr(ContextStore, "remove", stuck)
            with pytest.raises(StartupError, match="Read-only"):
                await there.contexts.find()
            await hear(engine, job(prompt(40), 3))
            await there.contexts.close()
        await there.contexts.close()
        assert there.files and f"{'0a' * 32}.context" not in there.files
        assert there.contexts.persistence.disk.used == sum(
            (tmp_path / name).stat().st_size for name in there.files
        )


async def test_a_write_that_is_slow_itself_is_left_when_patience_ends(
    tmp_path: Path,
) -> None:
    """On the real clock, since it runs on a thread: every piece waits for the cancellation."""

    def crawl() -> None:
        for _ in range(1000):
            anyio.from_thread.check_cancelled()
            threading.Event().wait(0.01)

    async with running(FakeDevice(small(host_bytes=100_000), Hashed(length=30)), OPTIONS) as engine:
        await hear(engine, job(prompt(40), 3))
        there = setting(engine, tmp_path, anyio.to_thread.run_sync, save_seconds=0.02)
        there.contexts.persistence.store = ContextStore(tmp_path, "fake", pytest.fail, crawl)
        await there.contexts.close()
        assert "not all written in time" in there.stderr.getvalue() and left(tmp_path) == []


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


@pytest.mark.parametrize("problem", [DeviceFailed("the device failed"), MemoryError()])
async def test_state_that_cannot_be_had_costs_contexts_not_the_server(
    autojump_clock: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: Exception
) -> None:
    async def export(*_: object) -> bytes:
        raise problem

    async with running(slow_device(), OPTIONS) as engine:
        there = setting(engine, tmp_path, idle=1.0)
        monkeypatch.setattr(FakeDevice, "export", export)
        async with serving(there):
            await hear(engine, job(prompt(40), 3))
            await anyio.sleep(10)
            await hear(engine, job(prompt(50), 3))
        await there.contexts.close()
    assert there.stderr.getvalue().count("cannot be written | ") == 1


async def test_a_look_at_many_files_can_be_given_up(tmp_path: Path) -> None:
    """On the real clock; without it a stop would wait for a hundred thousand files."""
    calls: list[int] = []

    def crawl() -> None:
        calls.append(1)
        threading.Event().wait(0.01)
        anyio.from_thread.check_cancelled()

    for number in range(1000):
        (tmp_path / f"{number:064x}.context").touch()
    async with running(slow_device(), OPTIONS) as engine:
        there = setting(engine, tmp_path, anyio.to_thread.run_sync)
        there.contexts.persistence.store = ContextStore(tmp_path, "fake", pytest.fail, crawl)
        with anyio.move_on_after(0.02) as scope:
            await there.contexts.find()
        assert scope.cancelled_caught and len(calls) < 500


@pytest.mark.parametrize(
    "code, says", [(errno.EWOULDBLOCK, "another server"), (errno.ENOLCK, "cannot be locked")]
)
async def test_a_folder_that_is_taken_is_told_from_one_without_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, says: str
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(code, "no")

    monkeypatch.setattr("ninfer.contexts.fcntl.flock", refuse)
    with pytest.raises(StartupError, match=says), locked(tmp_path):
        pass


# Reading


def known() -> Job:
    """A request whose beginning is worth keeping."""
    return job(prompt(60, marks=(Mark(56, MarkKind.EXPLICIT),)), 9)


async def remembered(folder: Path) -> list[int]:
    """Leave one context on disk; return what was said then."""
    async with running(slow_device(), OPTIONS) as engine:
        there = setting(engine, folder)
        text = (await hear(engine, known())).tokens
        await there.contexts.close()
        assert there.files
    return text


async def slowly(work: Any) -> Any:
    """Every file takes two seconds."""
    await anyio.sleep(2)
    return work()


async def test_a_request_waits_for_its_own_files_and_others_go_on(
    autojump_clock: Any, tmp_path: Path
) -> None:
    text = await remembered(tmp_path)
    async with running(slow_device(), OPTIONS) as engine:
        there = setting(engine, tmp_path, slowly)
        async with serving(there):
            heard: dict[str, Heard] = {}

            async def ask(name: str, work: Any) -> None:
                heard[name] = await hear(engine, work)

            began = anyio.current_time()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask, "known", known())
                await anyio.sleep(0.01)
                tasks.start_soon(ask, "new", job(prompt(50, seed=4), 2))
            waited = heard["known"].admitted.at - began
            assert 4 <= waited < 5  # KV and image, one after the other
            assert heard["new"].admitted.at - began < 0.1
            assert heard["known"].tokens == text
            assert heard["known"].end.summary.disk_tokens == heard["known"].admitted.cached_tokens > 50
            assert engine.stats().counters.disk_read_seconds == pytest.approx(4)


async def test_a_request_loses_patience_with_a_slow_disk(autojump_clock: Any, tmp_path: Path) -> None:
    text = await remembered(tmp_path)
    async with running(slow_device(), OPTIONS) as engine:
        there = setting(engine, tmp_path, slowly, read_seconds=1.0)
        async with serving(there):
            first = await hear(engine, known())
            assert first.tokens == text and first.admitted.cached_tokens == 0
            assert "reading them took too long" in (first.end.summary.miss_reason or "")
            assert "takes too long" in there.stderr.getvalue()
            again = await hear(engine, known())
            assert again.tokens == text and again.admitted.cached_tokens > 50


def damage(folder: Path) -> None:
    for path in folder.glob("*.context"):
        path.write_bytes(path.read_bytes()[:-7] + b"damaged")


async def test_a_damaged_file_is_a_miss_with_a_reason(autojump_clock: Any, tmp_path: Path) -> None:
    text = await remembered(tmp_path)
    async with running(slow_device(), OPTIONS) as engine:
        there = setting(engine, tmp_path)
        async with serving(there):
            damage(tmp_path)
            heard = await hear(engine, known())
            assert heard.tokens == text and heard.admitted.cached_tokens == 0
            reason = heard.end.summary.miss_reason or ""
            assert "56 tokens were on disk, but its checksum does not match" in reason
            assert "is ignored: its checksum does not match" in there.stderr.getvalue()
            assert engine.stats().counters.disk_failures == 1
            await hear(engine, known())
        await there.contexts.close()  # what was computed again is written over the bad file
    async with running(slow_device(), OPTIONS) as engine:
        there = setting(engine, tmp_path)
        async with serving(there):
            assert (await hear(engine, known())).admitted.cached_tokens > 50
        assert "ignored" not in there.stderr.getvalue()


async def test_a_reader_that_leaves_while_files_are_read_leaves_nothing_behind(
    autojump_clock: Any, tmp_path: Path
) -> None:
    await remembered(tmp_path)
    async with running(slow_device(), OPTIONS) as engine:
        there = setting(engine, tmp_path, slowly)
        async with serving(there):
            with anyio.move_on_after(1):
                await hear(engine, known())
            await anyio.sleep(0.1)
            assert engine.stats().host.reserved > 0
            engine.check()
            await engine.rest()
            engine.check()
            assert (engine.stats().waiting, engine.stats().host.reserved) == (0, 0)
            again = await hear(engine, known())  # what it read is of use to the next
            assert again.admitted.cached_tokens > 50
            assert engine.stats().counters.disk_reads == 1


async def test_a_device_that_fails_a_read_lets_who_waited_go_on(
    autojump_clock: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def room(*_: object) -> memoryview:
        raise DeviceFailed("the device failed")

    text = await remembered(tmp_path)
    async with running(slow_device(), OPTIONS) as engine:
        there = setting(engine, tmp_path)
        monkeypatch.setattr(FakeDevice, "room", room)
        async with serving(there):
            assert (await hear(engine, known())).tokens == text
            engine.check()
    assert "cannot be read: the device failed" in there.stderr.getvalue()
