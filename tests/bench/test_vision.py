"""The tower benchmark's arithmetic: operations, formats, biases side by side."""

from __future__ import annotations

import pytest

from ninfer.bench.vision import TOWER, TowerLoader, as_text, operations, published
from ninfer.kernels_cu.arrays import DeviceArray
from ninfer.ops.vision_verbs import Patches


def test_operations_of_a_picture_are_those_of_its_products_and_its_attention() -> None:
    block = 2 * 4096 * (4 * 1152 * 1152 + 2 * 1152 * 4304) + 4 * 4096 * 4096 * 1152
    rest = 2 * 4096 * 1536 * 1152 + 2 * 1024 * 4608 * (4608 + 5120)
    assert operations(TOWER, Patches(1, 64, 64, 2)) == 27 * block + rest
    apart = operations(TOWER, Patches(4, 32, 32, 2))
    assert operations(TOWER, Patches(1, 64, 64, 2)) - apart == 27 * 4 * 4096 * (4096 - 1024) * 1152


@pytest.mark.parametrize(
    "name, form",
    [
        ("vision/patch_embedding", "q6_g64_fp16"),
        ("vision/layers/3/attention/query", "q4_g64_fp16"),
        ("vision/layers/3/attention/output", "q5_g64_fp16"),
        ("vision/layers/3/mlp/fc1", "q4_g64_fp16"),
        ("vision/layers/3/mlp/fc2", "q5_g64_fp16"),
        ("vision/merger/fc2", "q8_g32_fp16"),
    ],
)
def test_matrices_are_stored_as_official_artifacts_store_them(name: str, form: str) -> None:
    assert published(name) == form


class Inner:
    """Places vectors one after another."""

    def __init__(self) -> None:
        self.made, self.shapes, self.at = self, self, 4096

    def shape(self, name: str) -> tuple[int, ...]:
        return (72,)

    def values(self, shape: tuple[int, ...], kind: str, deviation: float) -> DeviceArray:
        self.at += 4096
        return DeviceArray(self.at, shape, kind)

    def vector(self, name: str) -> DeviceArray:
        return self.values((72,), "bf16", 0.02)


def test_biases_of_one_layer_are_neighbours() -> None:
    loader = TowerLoader(Inner())  # type: ignore[arg-type]
    names = [f"vision/layers/0/attention/{part}_bias" for part in ("query", "key", "value", "output")]
    places = [loader.vector(name).ptr for name in names]
    assert places[1] - places[0] == places[2] - places[1] == 144
    assert places[3] - places[2] != 144
    assert loader.vector("vision/layers/1/attention/query_bias").ptr > places[2]


def test_figures_are_told_in_lines() -> None:
    part = {"part": "norm", "milliseconds": 0.009, "tflops": 0.0}
    row = {
        "side": 448, "patches": 784, "milliseconds": 3.7, "first_milliseconds": 8.0, "tflops": 200.0,
        "gemm_fraction": 0.25, "scratch_mib": 384.0, "parts": [part],
    }  # fmt: skip
    text = as_text({"card": "a card", "recipe": "groupwise", "gemm_tflops": 800.0, "pictures": [row]})
    assert "784 patches: 3.70 ms (8.00 at first sight)" in text and "9.0 us" in text
