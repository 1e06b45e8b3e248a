"""The Gated DeltaNet: chunked against recurrent, fold against steps, conventions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer.ops import numpy_delta
from ninfer.ops.numpy_math import l2_norm, rms_norm, shifted_norm, sigmoid, silu, softplus
from ninfer.ops.numpy_state import TILE, Frame

RANDOM = np.random.default_rng(2)
KEY_HEADS, HEADS, DIM = 2, 6, 16


def random_inputs(rows: int) -> numpy_delta.Inputs:
    def draw(*shape: int) -> np.ndarray:
        return RANDOM.standard_normal((rows, *shape)).astype(np.float32)

    q, k = (l2_norm(draw(KEY_HEADS, DIM), 1e-6) for _ in range(2))
    q *= np.float32(DIM**-0.5)
    g, beta = numpy_delta.gates(draw(HEADS), draw(HEADS), draw(HEADS)[0], draw(HEADS)[0])
    return numpy_delta.Inputs(q, k, draw(HEADS, DIM), g, beta)


def by_the_formula(x: numpy_delta.Inputs, state: np.ndarray) -> np.ndarray:
    """The facts' rule in double precision, head by head; S is (value, key) there."""
    out = np.zeros(x.v.shape)
    for head in range(HEADS):
        s = state[head].T.astype(np.float64)
        for t in range(len(x.v)):
            k, q = x.k[t, head // (HEADS // KEY_HEADS)], x.q[t, head // (HEADS // KEY_HEADS)]
            s = np.exp(float(x.g[t, head])) * s
            u = float(x.beta[t, head]) * (x.v[t, head] - s @ k)
            s = s + np.outer(u, k)
            out[t, head] = s @ q
        state[head] = s.T
    return out


def relative(found: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


def test_one_token_follows_the_formula() -> None:
    x = random_inputs(9)
    start = RANDOM.standard_normal((HEADS, DIM, DIM)).astype(np.float32)
    ours, theirs = start.copy(), start.copy()
    decay = np.exp(x.g)
    out = [numpy_delta.recur(ours, x.q[t], x.k[t], x.v[t], decay[t], x.beta[t]) for t in range(9)]
    wanted = by_the_formula(x, theirs)
    assert relative(np.array(out), wanted) < 1e-6 and relative(ours, theirs) < 1e-6


@settings(max_examples=15, deadline=None)
@given(st.integers(0, TILE - 1), st.integers(1, 3 * TILE))
def test_chunked_form_equals_stepping_wherever_it_starts(lead: int, rows: int) -> None:
    x = random_inputs(rows)
    frame = Frame(-(-(lead + rows) // TILE), TILE, lead, rows)
    tiled = numpy_delta.Inputs(*(frame.spread(part) for part in (x.q, x.k, x.v, x.g, x.beta)))
    start = RANDOM.standard_normal((HEADS, DIM, DIM)).astype(np.float32)
    ours, theirs = start.copy(), start.copy()
    found, wanted = frame.gather(numpy_delta.chunked(tiled, ours)), by_the_formula(x, theirs)
    assert relative(found, wanted) < 2e-5
    assert relative(ours, theirs) < 2e-5


def test_strong_decay_neither_overflows_nor_loses_the_newest_token() -> None:
    x = random_inputs(TILE)
    x.g[:] = -90
    tiled = numpy_delta.Inputs(*(part[None] for part in (x.q, x.k, x.v, x.g, x.beta)))
    state = RANDOM.standard_normal((HEADS, DIM, DIM)).astype(np.float32)
    theirs = state.copy()
    with np.errstate(all="raise", under="ignore"):
        found = numpy_delta.chunked(tiled, state)[0]
    assert relative(found, by_the_formula(x, theirs)) < 1e-5


def test_convolution_is_causal_and_weights_the_newest_column_last() -> None:
    columns = RANDOM.standard_normal((3 + 5, 4)).astype(np.float32)
    taps = RANDOM.standard_normal((4, 4)).astype(np.float32)
    found = numpy_delta.convolve(columns, taps)
    for row in range(5):
        raw = sum(columns[row + tap] * taps[tap] for tap in range(4))
        np.testing.assert_allclose(found[row], raw / (1 + np.exp(-raw)), rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize(("lead", "rows"), [(0, 1), (0, 2), (5, 1), (62, 3), (63, 2), (0, 64), (10, 130)])
def test_history_is_the_last_columns_whatever_the_frame(lead: int, rows: int) -> None:
    frame = Frame(-(-(lead + rows) // TILE), TILE, lead, rows)
    history = RANDOM.standard_normal((3, 4)).astype(np.float32)
    raw = RANDOM.standard_normal((rows, 4)).astype(np.float32)
    taps = RANDOM.standard_normal((4, 4)).astype(np.float32)
    line = np.concatenate((history, raw))
    wanted = numpy_delta.convolve(line, taps)
    found = numpy_delta.convolve_tiles(frame.spread(raw), taps, history, frame)
    np.testing.assert_array_equal(frame.gather(found), wanted)
    np.testing.assert_array_equal(history, line[-3:])


def test_padding_that_is_not_zero_before_the_rows_does_not_leak() -> None:
    """Zero rows stay zero through the norm, so padding columns are zero by construction."""
    assert not rms_norm(np.zeros((2, 8), np.float32), 1e-6).any()


# Conventions


def test_a_zero_weight_leaves_text_norms_at_unit_scale() -> None:
    x = RANDOM.standard_normal((3, 32)).astype(np.float32)
    found = shifted_norm(x, np.zeros(32, np.float32), 1e-6)
    np.testing.assert_allclose(np.mean(found**2, axis=-1), 1, rtol=1e-4)
    np.testing.assert_allclose(found, x / np.sqrt(np.mean(x**2, -1, keepdims=True) + 1e-6), rtol=1e-5)


def test_l2_norm_adds_epsilon_to_the_sum() -> None:
    x = np.full((1, 4), 1e-3, np.float32)
    np.testing.assert_allclose(l2_norm(x, 1e-6), 1e-3 / np.sqrt(4e-6 + 1e-6), rtol=1e-5)


@given(st.floats(-300, 300, width=32))
def test_activations_are_exact_at_every_size(value: float) -> None:
    x = np.array([value], np.float32)
    with np.errstate(over="ignore"):
        s, soft = sigmoid(x)[0], softplus(x)[0]
        assert silu(x)[0] == pytest.approx(value / (1 + np.exp(-np.float64(value))), rel=1e-5, abs=1e-30)
    assert s == pytest.approx(1 / (1 + np.exp(-np.float64(value))), rel=1e-5, abs=1e-37)
    assert soft == pytest.approx(np.logaddexp(0, np.float64(value)), rel=1e-5, abs=1e-37)
