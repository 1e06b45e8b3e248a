"""Accounting and random weights of the GPU benchmark, without a GPU."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ninfer.artifact import inventory, layouts
from ninfer.artifact.convert.recipes import RECIPES as WRITTEN
from ninfer.artifact.convert.recipes import role_of
from ninfer.artifact.reader import open_artifact
from ninfer.bench import gpu
from ninfer.bench.gpu import Asked, RandomLoader, lane_bytes, operations_done
from ninfer.bench.random_weights import RandomWeights
from ninfer.bench.shapes import SHAPES, recipe
from ninfer.cli import build_parser
from ninfer.commands.bench_gpu import RECIPES, as_text
from ninfer.commands.bench_gpu import SHAPES as OFFERED
from ninfer.commands.bench_gpu import run as run_gpu
from ninfer.engine.device import Prefill
from ninfer.faults import StartupError
from ninfer.kernels_cu.arrays import KIND_BYTES, DeviceArray
from ninfer.model.weights import load_decoder
from ninfer.ops.stored import CODES
from ninfer.runtime.arena import Region
from tests.emulator import EmulatedLibrary, toolkit

FIXTURES = Path(__file__).resolve().parent.parent.parent / "fixtures"


class Idle:
    """Kernels that do nothing."""

    def get(self, *names, **defines):
        return self

    def launch(self, *arguments, **options):
        pass


def made(shape, form):
    """A decoder of made-up addresses, and the loader that made it."""
    config = SHAPES[shape]()
    region = Region(1 << 40, 1 << 50)
    moe = config.moe
    share = moe.per_token / moe.experts if moe else 1
    loader = RandomLoader(
        RandomWeights(Idle(), region.take), inventory.text(config), recipe(form, config), share
    )
    return load_decoder(loader, config), loader


def counted(shape, form):
    """A loader that has made all weights of a shape at made-up addresses."""
    return made(shape, form)[1]


def test_dense_model_reads_what_its_shapes_say():
    loader = counted("qwen3.6-27b", "bf16")
    assert loader.flops == pytest.approx(2 * 24.327e9, rel=1e-3)
    assert loader.step_bytes(1) == pytest.approx(51.2e9, rel=1e-2)
    assert counted("qwen3.6-27b", "groupwise").step_bytes(1) == pytest.approx(15.385e9, rel=1e-2)


def test_sparse_model_reads_the_experts_of_its_rows():
    loader = counted("qwen3.6-35b-a3b", "groupwise")
    assert loader.step_bytes(1) == pytest.approx(2.125e9 + 0.397e9, rel=2e-2)
    assert loader.step_bytes(8) - loader.step_bytes(1) == pytest.approx(7 / 32 * loader.expert_bytes)
    assert loader.step_bytes(1000) == loader.dense_bytes + loader.expert_bytes


@pytest.mark.parametrize(
    ("shape", "left"),
    [
        ("qwen3.6-27b", 3 * 6144 * 5120 + 3 * 5120 * 17_408),
        ("qwen3.6-35b-a3b", 3 * 4096 * 2048 + (8 + 1) * 3 * 2048 * 512 + 257 * 2048),
    ],
)
def test_the_last_layer_does_its_last_rows_alone(shape, left):
    decoder, loader = made(shape, "bf16")
    ids, pages = tuple(range(8192)), tuple(range(128))
    cut = [Prefill(0, 0, 0, ids[:100], pages), Prefill(0, 0, 100, ids[100:], pages)]
    for units, wanted in (([Prefill(0, 0, 0, ids, pages)], 64), (cut, 36 + 64)):
        spared = 1 - operations_done(decoder, loader, units)
        assert spared == pytest.approx(2 * left * (1 - wanted / 8192) / loader.flops, rel=1e-9)


def test_a_sequence_moves_its_state_twice_and_reads_its_context():
    assert lane_bytes(SHAPES["qwen3.6-27b"](), 0, 65536) == 2 * 144 * 2**20
    assert lane_bytes(SHAPES["qwen3.6-27b"](), 0, 65536, 0.25) == 1.25 * 144 * 2**20
    assert lane_bytes(SHAPES["qwen3.6-27b"](), 10, 65536) == 2 * 144 * 2**20 + 10 * 65536


def test_every_offered_shape_and_recipe_is_known():
    assert set(OFFERED) == set(SHAPES)
    for shape in SHAPES.values():
        for name in RECIPES:
            assert recipe(name, shape())("text/layers/0/mlp/gate") in CODES


@pytest.mark.parametrize(
    "shape, name", [("tiny", "tiny-qwen3_5"), ("tiny-moe", "tiny-qwen3_5_moe")], ids=["dense", "moe"]
)
def test_tiny_shapes_are_those_of_the_bundled_models(shape, name):
    with open_artifact(FIXTURES / f"{name}.ninfer") as artifact:
        assert SHAPES[shape]() == artifact.text_config


@pytest.mark.skipif(toolkit() is None, reason="needs CUDA headers and a host compiler")
@pytest.mark.parametrize("form", CODES)
def test_random_weights_are_legal(form):
    kept = []

    def take(shape, kind):
        made = np.zeros(int(np.prod(shape)) * KIND_BYTES[kind] + 32, np.uint8)
        kept.append(made)
        return DeviceArray(made.ctypes.data + (-made.ctypes.data % 16), shape, kind, made)

    matrix = RandomWeights(EmulatedLibrary(), take).matrix(form, 128, 256)
    raw = (ctypes.c_uint8 * matrix.nbytes).from_address(matrix.codes)
    if form == "bf16":
        values = np.frombuffer(raw, np.uint16).astype(np.uint32) << 16
        values = values.view(np.float32)
    else:
        values = layouts.decode_rows(memoryview(bytes(raw)), form, (128, 256), 0, 128)
    assert np.isfinite(values).all() and 0.005 < values.std() < 0.3


def test_drafting_matrices_are_stored_as_conversions_store_them():
    config = SHAPES["qwen3.6-27b"]()
    shapes = inventory.mtp(config).shapes | inventory.proposal(config, 131_072).shapes
    for name in ("bf16", "fp8", "groupwise", "nvfp4"):
        roles = {role_of(path): recipe(name, config)(path) for path in shapes if "norm" not in path}
        written = WRITTEN[name].formats
        assert {role: form for role, form in roles.items() if role != "ids"} == {
            role: written[role] for role in ("draft", "proposal")
        }


def test_figures_read_as_sentences():
    row = {
        "batch": 1, "context": 512, "tokens_per_second": 80.0, "milliseconds": 12.5, "gb_per_step": 51.5,
        "bandwidth_fraction": 0.9, "graph_kernels": 300, "host_milliseconds": 0.2,
    }  # fmt: skip
    found = {
        "card": "Card", "shape": "s", "recipe": "bf16", "layers": 64, "kv_dtype": "bf16",
        "read_gb_per_second": 4400.0, "gemm_tflops": 750.0, "gemm_sustained_tflops": 690.0,
        "ready_seconds": 3.0, "weight_gb_per_step": 51.2, "decode": [row],
        "prefill": [{
            "tokens": 8192, "tokens_per_second": 9000.0,
            "gemm_fraction": 0.6, "gemm_sustained_fraction": 0.65, "operations_done": 0.98,
        }],
    }  # fmt: skip
    drafted = {"width": 3, "ratio": 1.25, "milliseconds": 10.0, "device_milliseconds": 9.8,
               "graph_kernels": 500, "host_milliseconds": 0.1}  # fmt: skip
    found["drafting"] = [
        {
            "batch": 1,
            "context": 512,
            "plain_milliseconds": 8.0,
            "rounds": [{**drafted, "width": 0}, drafted],
        }
    ]
    text = as_text(found)
    assert "0.650 of the sustained one; 0.980 of the operations are done, which is 0.588 and 0.637" in text
    assert "690 sustained" in text
    assert "width 3 : 1.250 of a plain step" in text and "pays from 0.250 accepted" in text
    assert "80.0 tok/s" in text and "0.900 of the read rate" in text and "0.600 of the product rate" in text


def test_every_count_is_one_that_can_be_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Asked] = []

    def measure(what: Asked, say: Any) -> dict[str, Any]:
        asked.append(what)
        return {}

    monkeypatch.setattr(gpu, "measure", measure)
    words = ["bench", "gpu", "--reuse", "3", "4096", "--context", "1", "--json"]
    assert run_gpu(build_parser().parse_args(words)) == 0
    assert (asked[0].reuse, asked[0].contexts) == ((64, 4096), (64,))


@pytest.mark.parametrize(
    "words", [("--proposal-rows", "-1"), ("--layers", "-1"), ("--kv-dtype", "int3"), ("--reuse", "0")]
)
def test_what_cannot_be_measured_is_refused_before_a_card_is_opened(words: tuple[str, str]) -> None:
    with pytest.raises(SystemExit):
        build_parser().parse_args(["bench", "gpu", *words])


def test_a_folder_is_for_an_upload_alone(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="needs --upload"):
        run_gpu(build_parser().parse_args(["bench", "gpu", "--folder", str(tmp_path)]))
