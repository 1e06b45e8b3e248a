"""What a start says of the place where it computes."""

from __future__ import annotations

from pathlib import Path

import pytest

from ninfer.runtime.inventory import Gpu, Inventory
from ninfer.server_start import overlooked, place

CPU = Inventory("numpy", weights=3 << 20, sequence=1 << 20)
CARD = Inventory(
    "cuda",
    Gpu(0, "NVIDIA H200", None, 140 << 30, (9, 0)),
    weights=15 << 30,
    sequence=3 << 30,
    workspace=1 << 29,
    free_after_start=100 << 30,
)


def test_the_place_is_named_with_what_went_where() -> None:
    assert place(CPU) == "numpy on the CPU | weights 3.0 MiB | states and cache 1.0 MiB"
    assert place(CARD) == (
        "NVIDIA H200 | weights 15.0 GiB | states and cache 3.0 GiB | workspace 512.0 MiB | free 100.0 GiB"
    )


@pytest.mark.parametrize(
    ("inventory", "backend", "driver", "told"),
    [
        (CPU, "auto", True, True),
        (CPU, "auto", False, False),
        (CPU, "numpy", True, False),
        (CARD, "auto", True, False),
    ],
)
def test_a_driver_without_a_gpu_in_use_is_told_unless_the_cpu_was_asked_for(
    inventory: Inventory, backend: str, driver: bool, told: bool, tmp_path: Path
) -> None:
    path = tmp_path / "version"
    if driver:
        path.write_text("580")
    assert (overlooked(inventory, backend, path) is not None) is told
