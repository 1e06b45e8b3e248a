"""Retained contexts on disk over the life of a server: recalled first, written at rest and at the end.

Owns the folder of one process and the moments at which it is read and written.  Promises that a full or
broken disk costs contexts and one warning, never an answer, and that two servers never share a folder.

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
import anyio.to_thread
import attrs

from ninfer.artifact import Artifact
from ninfer.artifact.digest import file_identity
from ninfer.engine.context_store import ContextStore
from ninfer.engine.device import Archive, Device
from ninfer.engine.loop import Engine
from ninfer.engine.persist import Persistence
from ninfer.faults import StartupError
from ninfer.observe.records import Records, count
from ninfer.settings import ContextDisk


@attrs.define(eq=False)
class Contexts:
    """The contexts of one engine and the folder that they outlive it in."""

    engine: Engine
    persistence: Persistence
    disk: ContextDisk
    records: Records
    _troubled: bool = False

    async def recall(self) -> None:
        """Bring back what is there; call it before requests are served."""
        found = await self.persistence.recall()
        self.records.info(f"{count(found)} stretches of retained contexts recalled from {self.disk.folder}")

    async def keep(self) -> None:
        """Save whenever nothing has changed for a while; runs until it is cancelled."""
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
                await self._save()
        if scope.cancelled_caught:
            self.records.warning("retained contexts were not all written in time")

    async def _save(self) -> None:
        try:
            kept = await self.persistence.save()
        except OSError as problem:
            if not self._troubled:
                self.records.warning(f"retained contexts cannot be written | {problem.strerror}")
            self._troubled = True
        else:
            self._troubled = False
            self.records.debug(f"{count(kept)} stretches of retained contexts are on disk")


@asynccontextmanager
async def opened_contexts(
    engine: Engine,
    device: Device,
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
    with _locked(disk.folder) as folder:
        signature = f"{identity_of(artifact)} {archive.signature}"
        store = await anyio.to_thread.run_sync(
            lambda: ContextStore(folder, signature, disk.bytes, records.warning)
        )
        persistence = Persistence(
            device,
            archive,
            engine.scheduler.memory,
            store,
            anyio.to_thread.run_sync,
            lambda: engine.resting,
        )
        yield Contexts(engine, persistence, disk, records)


def identity_of(artifact: Artifact) -> str:
    """Tell the weights of an artifact from any others, by all its files."""
    names = [artifact.path.name if span.name is None else span.name for span in artifact.manifest.files]
    return " ".join(file_identity(artifact.path.parent / name) for name in names)


@contextmanager
def _locked(folder: Path) -> Iterator[Path]:
    """Make the folder, for this user alone, and keep other servers out of it."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(folder / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as problem:
        raise StartupError(f"--context-dir {folder}: cannot be used ({problem.strerror})") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise StartupError(f"--context-dir {folder}: another server uses it; give each its own") from None
    try:
        yield folder
    finally:
        os.close(lock)
