"""Routing and experts against plain loops."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer.ops.numpy_experts import apply_experts, choose, mix

RANDOM = np.random.default_rng(4)


def test_ties_go_to_the_lower_expert_and_weights_sum_to_one() -> None:
    experts, weights = choose(np.array([[1, 2, 2, 2], [0, 0, 0, 0]], np.float32), 2)
    assert experts.tolist() == [[1, 2], [0, 1]]
    np.testing.assert_allclose(weights, [[0.5, 0.5], [0.5, 0.5]])


def test_weights_are_the_softmax_of_the_chosen_logits() -> None:
    logits = RANDOM.standard_normal((6, 16)).astype(np.float32)
    experts, weights = choose(logits, 4)
    kept = np.exp(np.take_along_axis(logits, experts, axis=1).astype(np.float64))
    np.testing.assert_allclose(weights, kept / kept.sum(axis=1, keepdims=True), rtol=1e-5)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 70), st.booleans())
def test_each_row_meets_the_experts_it_chose(rows: int, grouped: bool) -> None:
    x = RANDOM.standard_normal((rows, 1, 24)).astype(np.float32)
    x[::5] = 0  # padding
    weights = RANDOM.standard_normal((8, 24, 12)).astype(np.float32)
    experts = np.argsort(RANDOM.random((rows, 8)), axis=1)[:, :3].astype(np.int32)
    found = apply_experts(x, experts, weights, grouped)
    for row in range(rows):
        for k in range(3):
            wanted = x[row, 0] @ weights[experts[row, k]]
            np.testing.assert_allclose(found[row, k], wanted, rtol=1e-4, atol=1e-5)


def test_grouped_rows_have_the_same_bits_in_any_company() -> None:
    x = RANDOM.standard_normal((40, 1, 256)).astype(np.float32)
    weights = RANDOM.standard_normal((4, 256, 128)).astype(np.float32)
    experts = (np.arange(40)[:, None] % 4 + np.arange(2)).astype(np.int32) % 4
    whole = apply_experts(x, experts, weights, grouped=True)
    for rows in (range(7, 8), range(3, 20), range(11, 40)):
        part = apply_experts(x[list(rows)], experts[list(rows)], weights, grouped=True)
        assert np.array_equal(part, whole[list(rows)])


def test_mix_adds_the_best_expert_first() -> None:
    y = np.array([[[1e8], [1.0], [-1e8]]], np.float32)
    assert mix(y, np.ones((1, 3), np.float32)).tolist() == [[0.0]]
