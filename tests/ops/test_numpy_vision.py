"""Vision formulas: patch order, resampled positions, activations, slices."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ninfer.ops.numpy_vision import NumpyVision, coordinates, erf, resample
from ninfer.ops.vision_verbs import Patches

RANDOM = np.random.default_rng(6)


def test_patches_go_block_by_block() -> None:
    rows, columns = coordinates(Patches(1, 4, 4, 2))
    seen = list(zip(rows.tolist(), columns.tolist(), strict=True))
    assert seen[:8] == [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (0, 3), (1, 2), (1, 3)]
    assert sorted(seen) == [(r, c) for r in range(4) for c in range(4)]


def test_a_table_of_its_own_size_is_only_reordered() -> None:
    table = RANDOM.standard_normal((36, 5)).astype(np.float32)
    shape = Patches(1, 6, 6, 2)
    rows, columns = coordinates(shape)
    np.testing.assert_allclose(resample(table, shape), table.reshape(6, 6, 5)[rows, columns], atol=1e-6)


def test_corners_meet_corners_and_the_middle_is_blended() -> None:
    line = np.arange(5, dtype=np.float32)
    table = (line[:, None] * 10 + line).reshape(25, 1)
    shape = Patches(1, 2, 8, 2)
    rows, columns = coordinates(shape)
    wanted = 40.0 * rows + columns * 4 / 7
    np.testing.assert_allclose(resample(table, shape)[:, 0], wanted, rtol=1e-5)


@pytest.mark.parametrize("value", [-6, -2.5, -1, -1e-3, 0, 1e-4, 0.3, 1, 2.2, 5, 30])
def test_erf_is_exact_to_single_precision(value: float) -> None:
    assert erf(np.array([value], np.float32))[0] == pytest.approx(math.erf(np.float32(value)), abs=3e-7)


def test_slices_of_time_do_not_see_each_other_and_see_all_of_themselves() -> None:
    verbs, shape = NumpyVision(), Patches(2, 4, 2, 2)
    q, k, v = RANDOM.standard_normal((3, 16, 24)).astype(np.float32)
    whole = verbs.see(q, k, v, 3, shape)
    alone = verbs.see(q[8:], k[8:], v[8:], 3, Patches(1, 4, 2, 2))
    np.testing.assert_allclose(whole[8:], alone, atol=1e-6)
    v[15] += 1  # the last patch reaches the first row of its slice
    moved = np.abs(verbs.see(q, k, v, 3, shape) - whole).max(axis=1)
    assert (moved[8:] > 0).all() and not moved[:8].any()
