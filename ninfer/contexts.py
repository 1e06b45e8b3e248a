"""Retained contexts on disk over the life of a server: found first, read when asked for, written at rest.

Owns the folder of one process and the moments at which it is read and written.  Promises that a full or
broken disk costs contexts and one warning, never an answer, that a request waits for it a bounded time, and
that two servers never share a folder.

The one thing a reader would get wrong: writing waits for rest.  A server that is never idle writes only
when it stops.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import anyio
import anyio.from_thread
import anyio.to_thread
import attrs

from ninfer.artifact import Artifact
from ninfer.artifact.digest import file_identity
from ninfer.engine.context_store import ContextStore
from ninfer.engine.device import Archive, DeviceFailed
from ninfer.engine.fetch import Fetch
from ninfer.engine.loop import Engine
from ninfer.engine.persist import Persistence
from ninfer.faults import StartupError
from ninfer.observe.records import Records, count, size
from ninfer.settings import ContextDisk


@attrs.define(eq=False)
class Contexts:
    """The contexts of one engine and the folder that they outlive it in."""

    engine: Engine
    persistence: Persistence
    disk: ContextDisk
    records: Records
    _troubled: bool = False
    _turn: anyio.Lock = attrs.field(factory=anyio.Lock)  # of who reads or writes: first come, first served

    async def find(self) -> None:
        """See what is there; call it before requests are served.  Raises ``StartupError``."""
        try:
            found = await self.persistence.open()
        except OSError as problem:
            why = f"{self.disk.folder}: its files cannot be managed ({problem.strerror})"
            raise StartupError(f"--context-dir {why}; make it writable for this user") from None
        used = self.persistence.disk.used
        self.records.info(f"{count(found)} files of retained contexts in {self.disk.folder} | {size(used)}")

    async def serve(self) -> None:
        """Read what requests ask for, and save at rest; runs until it is cancelled."""
        async with anyio.create_task_group() as tasks:

            def begin(fetch: Fetch) -> None:
                tasks.start_soon(self._fetch, fetch)

            self.engine.read_with(begin)
            try:
                await self._keep()
            finally:
                self.engine.read_with(None)

    async def _fetch(self, fetch: Fetch) -> None:
        """Read in turn; who has waited too long goes on, and the files are read all the same."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._lose_patience, fetch)
            async with self._turn:
                problem = await self.persistence.read(fetch)
                if problem:
                    self.records.warning(f"retained context {problem}")
            tasks.cancel_scope.cancel()

    async def _lose_patience(self, fetch: Fetch) -> None:
        await anyio.sleep(self.disk.read_seconds)
        if fetch.waiting:
            self.records.warning(f"reading {size(fetch.size)} of retained contexts takes too long")
        self.engine.scheduler.fetching.late(fetch)
        self.engine.wake()

    async def _keep(self) -> None:
        """Save whenever nothing has changed for a while."""
        seen = self.persistence.version
        while True:
            await anyio.sleep(self.disk.idle)
            version, seen = seen, self.persistence.version
            if version == seen != self.persistence.saved and self.engine.resting:
                await self._save()

    async def close(self) -> None:
        """Wait for rest and save; a folder that takes too long keeps what was written by then."""
        with anyio.move_on_after(self.disk.save_seconds) as scope:
            await self.engine.rest()
            if self.engine.failure is None:
                await self._save("info")
        if scope.cancelled_caught:
            self.records.warning("retained contexts were not all written in time")

    async def _save(self, level: str = "debug") -> None:
        try:
            async with self._turn:
                await self.persistence.save()
        except (OSError, MemoryError, DeviceFailed) as problem:
            if not self._troubled:
                why = problem.strerror if isinstance(problem, OSError) else str(problem) or "no memory"
                self.records.warning(f"retained contexts cannot be written | {why}")
            self._troubled = True
        else:
            self._troubled = False
            kept = self.persistence.disk
            self.records.write(
                level, f"{count(len(kept))} files of retained contexts on disk | {size(kept.used)}"
            )


@asynccontextmanager
async def opened_contexts(
    engine: Engine,
    archive: Archive | None,
    artifact: Artifact,
    disk: ContextDisk,
    records: Records,
) -> AsyncIterator[Contexts | None]:
    """Open the folder, if there is to be one.  Raises ``StartupError``."""
    if disk.folder is None:
        yield None
        return
    if archive is None:
        raise StartupError("this backend cannot keep contexts on disk; start without --context-dir")
    with locked(disk.folder) as folder:
        signature = f"{identity_of(artifact)} {archive.signature}"
        engine.scheduler.memory.disk.capacity = disk.bytes
        store = ContextStore(folder, signature, records.warning, anyio.from_thread.check_cancelled)
        persistence = Persistence(engine, archive, store, anyio.to_thread.run_sync)
        yield Contexts(engine, persistence, disk, records)


def identity_of(artifact: Artifact) -> str:
    """Tell the weights of an artifact from any others, by all its files."""
    names = [artifact.path.name if span.name is None else span.name for span in artifact.manifest.files]
    return " ".join(file_identity(artifact.path.parent / name) for name in names)


@contextmanager
def locked(folder: Path) -> Iterator[Path]:
    """Make the folder, for this user alone, and keep other servers out of it."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(folder / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as problem:
        raise StartupError(f"--context-dir {folder}: cannot be used ({problem.strerror})") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as problem:
        os.close(lock)
        taken = isinstance(problem, BlockingIOError)
        why = (
            "another server uses it; give each its own"
            if taken
            else f"cannot be locked ({problem.strerror})"
        )
        raise StartupError(f"--context-dir {folder}: {why}") from None
    try:
        yield folder
    finally:
        os.close(lock)
