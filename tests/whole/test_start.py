"""What ``server_start`` says is what the engine was built with."""

from __future__ import annotations

from typing import Any

import pytest

from ninfer.runtime.inventory import Gpu, Inventory
from ninfer.server_start import Started
from ninfer.settings import EngineOptions
from ninfer.startup import ServeOptions
from tests.sim.server import ARTIFACT
from tests.whole.kit import artifact, inline, model

CARD = Inventory("cuda", Gpu(0, "NVIDIA H200", None, 140 << 30, (9, 0)))


async def engine_members(chosen: EngineOptions, inventory: Inventory) -> Any:
    async with model() as world:
        stats, preset = world.app.engine.stats(), world.app.service.preset
    geometry = inline(max_concurrency=2)[0].geometry
    options = ServeOptions(ARTIFACT, engine=chosen)
    return Started(options, artifact(), inventory, geometry, stats, preset, "tiny").members()["engine"]


@pytest.mark.parametrize(
    ("asked", "mode"),
    [({}, "context"), ({"kv_capacity": 900}, "explicit"), ({"kv_auto": True}, "auto")],
)
async def test_how_the_pool_was_sized_is_told(autojump_clock: Any, asked: Any, mode: str) -> None:
    told = await engine_members(EngineOptions(**asked), Inventory("numpy"))
    assert (told["kv_capacity_mode"], told["cuda_graph"], told["device"]) == (mode, False, None)


@pytest.mark.parametrize("graphs", [True, False])
async def test_graphs_are_told_only_where_they_are_used(autojump_clock: Any, graphs: bool) -> None:
    told = await engine_members(EngineOptions(cuda_graphs=graphs), CARD)
    assert (told["cuda_graph"], told["device"]) == (graphs, 0)
