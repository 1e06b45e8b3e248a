"""The bundled model says the same, token for token, whoever else is there and wherever state came from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from ninfer.engine.context_store import ContextStore
from ninfer.engine.device import Decode, HostLoad
from ninfer.engine.persist import Persistence
from ninfer.startup import ServeOptions
from tests.sim.disk import reading
from tests.sim.server import ARTIFACT, World, serving
from tests.sim.server import inline as run_inline
from tests.whole.conftest import TOKENS
from tests.whole.kit import in_turn, inline, model, talk, together

Ids = list[list[int]]
TIGHT: dict[str, Any] = {"max_concurrency": 4, "max_context": 128, "page_tokens": 8, "kv_capacity": 192}


async def test_among_eight(autojump_clock: Any, alone: Ids) -> None:
    async with model(max_concurrency=8, kv_capacity=4096) as world:
        assert await together(world, talk(tokens=TOKENS)) == alone
        batches = [len(unit.rows) for unit in world.device.log if isinstance(unit, Decode)]
        assert max(batches) >= 6  # the first ones end as the last ones begin


@pytest.mark.parametrize(("host", "route"), [(None, "snapshot"), (0, "replay")])
async def test_after_pauses(autojump_clock: Any, alone: Ids, host: int | None, route: str) -> None:
    async with model(**TIGHT, host_context_bytes=host, prefix_reuse=False) as world:
        assert await together(world, talk(tokens=TOKENS)) == alone
        counters = world.app.engine.stats().counters
        assert counters.preemptions > 0
        assert (counters.snapshot_restores if route == "snapshot" else counters.replay_restores) > 0


async def test_after_a_hit(autojump_clock: Any, alone: Ids) -> None:
    async with model(device_state_slots=40, kv_capacity=8192, max_concurrency=2) as world:
        assert await in_turn(world, talk(tokens=TOKENS)) == alone
        assert await in_turn(world, talk(tokens=TOKENS)) == alone  # now from the input boundary of each
        again = world.events("request_done")[8:]
        assert all(
            0 < done["result"]["prompt_tokens"] - done["result"]["prefix_cache_hit_tokens"] < 8
            for done in again
        )


async def test_from_the_host(autojump_clock: Any, alone: Ids) -> None:
    async with model(**{**TIGHT, "max_concurrency": 1}, device_state_slots=0) as world:
        assert await in_turn(world, talk(tokens=TOKENS)) == alone
        before = len(world.device.log)
        assert await in_turn(world, talk(tokens=TOKENS)) == alone
        assert any(isinstance(unit, HostLoad) for unit in world.device.log[before:])
        assert world.app.engine.stats().counters.prompt_tokens_cached > 8 * 40


async def test_from_disk(autojump_clock: Any, alone: Ids, tmp_path: Path) -> None:
    async with model() as world:
        assert await in_turn(world, talk(tokens=TOKENS)) == alone
        await world.app.engine.rest()
        there = persistence(world, tmp_path)
        await there.save()
        kept = len(there.disk)
        assert kept >= 16
    device, options = inline()
    async with serving(device, ServeOptions(ARTIFACT, engine=options)) as world:
        there = persistence(world, tmp_path)
        assert await there.open() == kept
        async with reading(there):
            assert await in_turn(world, talk(tokens=TOKENS)) == alone
        done = world.events("request_done")
        assert done[0]["result"]["prefix_cache_disk_tokens"] > 40
        assert all(one["result"]["prefix_reuse_path"] == "checkpoint" for one in done)
        assert sum(isinstance(unit, HostLoad) for unit in device.log) >= 8
        await anyio.sleep(1)
        assert world.idle()


def persistence(world: World, folder: Path) -> Persistence:
    engine, device = world.app.engine, world.device
    engine.scheduler.memory.disk.capacity = 1 << 30
    return Persistence(engine, device, ContextStore(folder, device.signature, pytest.fail), run_inline)
