"""Rotary positions and paged attention against plain formulas."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer.model.config import read_text_config
from ninfer.ops.numpy_attention import Rotary, attend_rows, attend_tiles, rotate
from ninfer.ops.numpy_state import TILE, frame_of
from ninfer.ops.verbs import Step
from ninfer.runtime.kvformat import KV_FORMATS
from ninfer.runtime.state import KVPages, new_pages
from tests.toy import DENSE

CONFIG = read_text_config({**DENSE, "num_hidden_layers": 3})
RANDOM = np.random.default_rng(8)


def turned(x: np.ndarray, positions: np.ndarray, dims: int = 64) -> np.ndarray:
    out = x.copy()
    rotate(out, Rotary.of(dims, 1e7, (11, 11, 10)).angles(positions))
    return out


def test_frequency_pairs_take_their_axis_by_remainder_of_three() -> None:
    rotary = Rotary.of(64, 1e7, (11, 11, 10))
    assert rotary.axes.tolist() == [d % 3 for d in range(32)]
    assert np.bincount(rotary.axes).tolist() == [11, 11, 10]


def test_an_axis_without_sections_left_yields_to_time() -> None:
    assert Rotary.of(16, 1e4, (6, 1, 1)).axes.tolist() == [0, 1, 2, 0, 0, 0, 0, 0]


def test_equal_axes_are_plain_rotary_embedding() -> None:
    x = RANDOM.standard_normal((5, 2, 256)).astype(np.float32)
    at = np.array([0, 1, 7, 300, 5000], np.int32)
    angle = at[:, None] * 1e7 ** (-2 * np.arange(32) / 64)
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
    low, high = x[..., :32], x[..., 32:64]
    wanted = np.concatenate((low * cos - high * sin, high * cos + low * sin, x[..., 64:]), -1)
    np.testing.assert_allclose(turned(x, np.stack([at] * 3)), wanted, atol=2e-6)


def test_moving_one_axis_turns_only_its_pairs() -> None:
    x = RANDOM.standard_normal((1, 1, 256)).astype(np.float32)
    for axis in range(3):
        at = np.zeros((3, 1), np.int32)
        at[axis] = 9
        moved = np.flatnonzero((turned(x, at) != x)[0, 0])
        assert set(moved % 32 % 3) == {axis} and moved.max() < 64


def reference(q: np.ndarray, k: np.ndarray, v: np.ndarray, start: int, first: int) -> np.ndarray:
    """Causal attention in double precision; q (T, kv, group, dim), k and v (tokens, kv, dim)."""
    out = np.zeros(q.shape)
    for row in range(len(q)):
        keys = slice(first, start + row + 1)
        if first <= start + row:
            scores = np.einsum("hgd,thd->hgt", q[row].astype(np.float64), k[keys])
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            out[row] = np.einsum("hgt,thd->hgd", weights / weights.sum(-1, keepdims=True), v[keys])
    return out


def filled(tokens: int, page_tokens: int) -> tuple[KVPages, np.ndarray, np.ndarray, np.ndarray]:
    count = -(-tokens // page_tokens)
    pages = new_pages(CONFIG, 1, KV_FORMATS["fp32"], count, page_tokens)
    pages.values[:] = np.nan
    table = RANDOM.permutation(count).astype(np.int32)
    k, v = RANDOM.standard_normal((2, tokens, CONFIG.kv_heads, CONFIG.head_dim)).astype(np.float32)
    pages.append(0, table, 0, k, v)
    return pages, table, k, v


def step_of(kind: str, start: int, rows: int, table: np.ndarray, first: int) -> Step:
    positions = np.zeros((3, rows), np.int32)
    offsets, zero = np.array([0, rows], np.int32), np.zeros(1, np.int32)
    frontiers = np.array([start], np.int32)
    ids = np.zeros(rows, np.int32)
    return Step(kind, rows, 1, ids, positions, offsets, frontiers, table[None], zero, first=first)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 700), st.integers(1, 150), st.sampled_from([16, 64, 1024]), st.sampled_from([0, 1]))
@pytest.mark.parametrize("kind", ["prefill", "verify"])
def test_attention_equals_the_formula(
    kind: str, start: int, rows: int, page_tokens: int, first: int
) -> None:
    rows = min(rows, 5) if kind == "verify" else rows
    pages, table, k, v = filled(start + rows, page_tokens)
    step = step_of(kind, start, rows, table, first)
    q = RANDOM.standard_normal((rows, 2, 2, CONFIG.head_dim)).astype(np.float32)
    if kind == "verify":
        out = attend_rows(q, pages, 0, step)
    else:
        frame = frame_of(step)
        tiled = np.ascontiguousarray(frame.spread(q).transpose(0, 2, 3, 1, 4))
        out = frame.gather(attend_tiles(tiled, pages, 0, step, frame).transpose(0, 3, 1, 2, 4))
    np.testing.assert_allclose(out, reference(q, k, v, start, first), atol=3e-5)


def test_no_score_matrix_is_larger_than_a_tile() -> None:
    """4,096 tokens against themselves would need 256 MB of scores at once; a tile needs one."""
    import tracemalloc

    pages, table, _, _ = filled(4096, 64)
    step = step_of("prefill", 0, 4096, table, 0)
    frame = frame_of(step)
    q = np.zeros((frame.tiles, 2, 2, TILE, CONFIG.head_dim), np.float32)
    tracemalloc.start()
    attend_tiles(q, pages, 0, step, frame)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak - q.nbytes < 8 << 20
