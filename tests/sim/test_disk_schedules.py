"""Random schedules on random small machines with a disk of random speed and health: no text changes."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import attrs
import pytest
import trio
import trio.testing
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ninfer.engine.context_store import ContextStore
from ninfer.engine.device import Geometry
from ninfer.engine.loop import Engine
from ninfer.engine.persist import Persistence
from ninfer.settings import EngineOptions
from tests.sim.disk import reading
from tests.sim.fake_device import FakeDevice
from tests.sim.harness import Heard, idle, running
from tests.sim.test_schedules import VOICE, Client, alone, clients, inspect, machines, visit


@attrs.frozen
class Plate:
    """A disk: its room in bytes, seconds a file takes, which is damaged, if any, and bytes of KV in one."""

    room: int
    delay: float
    harm: int | None
    file_bytes: int


plates = st.builds(
    Plate,
    room=st.sampled_from((0, 3_000, 12_000, 1_000_000)),
    delay=st.sampled_from((0.0, 0.003, 0.2)),
    harm=st.none() | st.integers(0, 9),
    file_bytes=st.sampled_from((1, 300, 1_000_000)),
)


async def slowly(delay: float, work: Callable[[], object]) -> object:
    await trio.sleep(delay)
    return work()


def persistence(engine: Engine, folder: Path, plate: Plate) -> Persistence:
    device = engine.device
    assert isinstance(device, FakeDevice)
    engine.scheduler.memory.disk.capacity = plate.room
    store = ContextStore(folder, device.signature, lambda text: None)
    return Persistence(engine, device, store, partial(slowly, plate.delay), file_bytes=plate.file_bytes)


async def wave(engine: Engine, company: list[Client]) -> None:
    """Let everyone come, and compare what was said with what is said alone."""
    heard: dict[int, Heard] = {}
    async with trio.open_nursery() as visits:
        for index, client in enumerate(company):
            visits.start_soon(visit, engine, client, heard, index)
    for index, client in enumerate(company):
        tokens, expected = heard[index].tokens, await alone(client)
        assert tokens == expected[: len(tokens)]
        assert client.leaves is not None or tokens == expected


async def play(machine: tuple[Geometry, EngineOptions], company: list[Client], plate: Plate) -> None:
    geometry, options = machine
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for _ in range(2):
            device = FakeDevice(geometry, VOICE)
            engine = Engine(device, options)
            there = persistence(engine, folder, plate)
            await there.open()
            async with running(device, options, engine), reading(there), trio.open_nursery() as nursery:
                nursery.start_soon(inspect, engine)
                for _ in range(2):
                    await wave(engine, company)
                    await engine.rest()
                    await there.save()
                    harm(folder, plate.harm)
                await idle(engine)
                nursery.cancel_scope.cancel()
            audit(engine, folder, plate)


def audit(engine: Engine, folder: Path, plate: Plate) -> None:
    stats, files = engine.stats(), list(folder.iterdir())
    assert stats.pages.held == stats.slots.held == stats.host.reserved == 0
    assert stats.disk.used == sum(path.stat().st_size for path in files) <= plate.room
    assert stats.disk.files == len(files)


def harm(folder: Path, which: int | None) -> None:
    """Damage the state in one file."""
    for index, path in enumerate(sorted(folder.iterdir())):
        if index == which:
            raw = bytearray(path.read_bytes())
            raw[-1] ^= 0xFF
            path.write_bytes(raw)


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(machines(), st.lists(clients, min_size=1, max_size=5), plates)
def test_no_disk_changes_what_anybody_says(machine, company, plate):
    trio.run(play, machine, company, plate, clock=trio.testing.MockClock(autojump_threshold=0))
