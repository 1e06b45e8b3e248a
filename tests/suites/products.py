"""Products that end in more than a store, against float64."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ninfer.kernels_cu.arrays import DeviceArray
from ninfer.ops.gemm_swiglu import FILE, FusedSwiglu
from tests.suites.bed import Bed, only_on_a_card, relative, run_in

BF16 = ml_dtypes.bfloat16


def silu_times(gate: Any, up: Any) -> Any:
    """In float64, of what products leave rounded to bf16."""
    gate, up = (part.astype(BF16).astype(np.float64) for part in (gate, up))
    return gate / (1 + np.exp(-gate)) * up


@pytest.mark.parametrize(
    "rows, width, columns, order",
    [
        (300, 104, 384, 0),  # rows and columns that end within a tile; a ring that goes round
        (1, 8, 64, 1),  # one step
        (40, 200, 320, 2),
        (3400, 200, 576, None),  # more tiles of rows than a group
        (8192, 2048, 5120, None),
    ],
    ids=str,
)
def test_swiglu_in_the_ending_of_its_product(
    bed: Bed, rows: int, width: int, columns: int, order: int | None
) -> None:
    only_on_a_card(bed, order is None)
    if not bed.can_run(FILE):
        pytest.skip("the card has no such kernel")
    run_in(bed, order)
    rng = np.random.default_rng(rows)
    x = rng.standard_normal((rows, columns), np.float32).astype(BF16)
    pair = (rng.standard_normal((2 * width, columns), np.float32) / np.sqrt(columns) * 2).astype(BF16)
    fused = FusedSwiglu(bed.library, bed.products.linear.blocks)
    left, right = bed.to(x), bed.to(pair)

    def run(begin: int, end: int) -> Any:
        room = bed.take((end - begin + 1, width), "bf16")  # the last row stays poison
        out = room.rows(0, end - begin)
        fused(left.rows(begin, end), right, out)
        got = bed.back(room)
        assert np.isnan(got[-1].astype(np.float32)).all()
        return got[:-1]

    got, (gate, up) = run(0, rows), np.split(x.astype(np.float32) @ pair.astype(np.float32).T, 2, axis=1)
    assert relative(got, silu_times(gate, up)) <= 4e-3
    begin = rows // 3
    assert (run(begin, rows) == got[begin:]).all()  # wherever a row lies in its tile


def test_shapes_that_the_kernel_does_not_take(bed: Bed) -> None:
    bed.can_run(FILE)

    def fits(rows: int, width: int, columns: int, multiprocessors: int = 3) -> bool:
        fused = FusedSwiglu(bed.library, multiprocessors)
        return fused.fits(DeviceArray(0, (rows, columns), "bf16"), DeviceArray(0, (rows, width), "bf16"))

    assert fits(1024, 104, 128) == bed.library.supports(FILE)
    assert not any((fits(1023, 104, 128), fits(1024, 100, 128), fits(1024, 104, 96)))
    assert not fits(1024, 104, 128, multiprocessors=132)
