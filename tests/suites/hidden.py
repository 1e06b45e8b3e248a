"""The norms around the drafting layer, against float64."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.suites.bed import Bed, relative

BF16, EPS = ml_dtypes.bfloat16, 1e-6


def normed(x: Any, weight: Any) -> Any:
    x, weight = x.astype(np.float64), weight.astype(np.float64)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * (1 + weight)


@pytest.mark.parametrize("rows, width", [(1, 5120), (4, 2048), (3, 256), (2, 6152), (1, 8192)])
def test_both_halves_are_normed_side_by_side(bed: Bed, rows: int, width: int) -> None:
    rng, to = np.random.default_rng(width), bed.to
    left = rng.standard_normal((rows, width)).astype(np.float32) * 3
    right = rng.standard_normal((rows, width)).astype(BF16)
    norms = [(rng.standard_normal(width) / 4).astype(BF16) for _ in range(2)]
    want = np.concatenate((normed(left, norms[0]), normed(right, norms[1])), axis=1)

    def run(a: Any, b: Any) -> Any:
        out = bed.take((len(a), 2 * width), "bf16")
        parts = (out, to(a), to(norms[0]), to(b), to(norms[1]))
        bed.library.get("hidden.cu", "concat_norms").launch((len(a), 2), 256, *parts, width, EPS)
        return bed.back(out)

    got = run(left, right)
    assert relative(got.astype(np.float64), want) <= 4e-3
    assert (run(left[-1:], right[-1:])[0] == got[-1]).all()  # its bits are a row's own
