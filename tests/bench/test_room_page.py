"""What the page for operators says that the published shapes take of a card."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from ninfer.artifact import inventory, layouts
from ninfer.bench.shapes import SHAPES, recipe
from ninfer.model.config import TextConfig
from ninfer.ops.cuda_state import PAGE_TOKENS, page_bytes

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "operations.md").read_text()
COLUMNS = {"qwen3.6-27b": 1, "qwen3.6-35b-a3b": 2}


def gib(nbytes: float) -> float:
    return nbytes / 2**30


def stored(config: TextConfig, component: str, name: str) -> float:
    """Bytes of a component under a recipe."""
    shapes, form = getattr(inventory, component)(config), recipe(name, config)
    return sum(_bytes(form(each), shapes.shape(each)) for each in shapes.names())


def _bytes(form: str, shape: tuple[int, ...]) -> int:
    return 2 * math.prod(shape) if form == "bf16" or len(shape) == 1 else layouts.planes(form, shape).total


def cell(row: str, shape: str, at: int = 0) -> str:
    """A figure of the table under "Room"."""
    (line,) = [line for line in PAGE.splitlines() if line.startswith(f"| {row}")]
    return re.findall(r"\d+\.\d+", line.split("|")[COLUMNS[shape] + 1])[at]


@pytest.mark.parametrize("shape", sorted(COLUMNS))
@pytest.mark.parametrize(
    ("name", "row", "at"),
    [
        ("bf16", "weights, `bf16`", 0),
        ("q8", "weights, `q8`", 0),
        ("fp8", "weights, `q8`", -1),
        ("groupwise", "weights, `groupwise`", 0),
        ("nvfp4", "weights, `groupwise`", -1),
    ],
)
def test_weights_take_what_the_page_says(shape: str, name: str, row: str, at: int) -> None:
    assert cell(row, shape, at) == f"{gib(stored(SHAPES[shape](), 'text', name)):.1f}"


@pytest.mark.parametrize("shape", sorted(COLUMNS))
def test_the_drafting_layer_takes_what_the_page_says(shape: str) -> None:
    config, row = SHAPES[shape](), "drafting layer"
    assert cell(row, shape) == f"{gib(stored(config, 'mtp', 'groupwise')):.1f}"
    assert cell(row, shape, -1) == f"{gib(stored(config, 'mtp', 'bf16')):.1f}"


@pytest.mark.parametrize("shape", sorted(COLUMNS))
@pytest.mark.parametrize(
    ("kind", "row", "at"),
    [
        ("bf16", "KV of 32,768 tokens", 0),
        ("fp8", "the same, `int8`", 0),
        ("k8v4", "the same, `k8v4`", 0),
        ("nvfp4", "the same, `k8v4`", -1),
    ],
)
def test_a_cache_takes_what_the_page_says(shape: str, kind: str, row: str, at: int) -> None:
    config = SHAPES[shape]()
    layers = config.layer_kinds.count("full_attention")
    held = gib(page_bytes(kind, layers, config.kv_heads) * 32_768 / PAGE_TOKENS)
    assert float(cell(row, shape, at)) == pytest.approx(held, rel=0.03)
