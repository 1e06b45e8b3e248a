"""Paged attention kernels, run on the CPU emulator, against plain float64 attention."""

from __future__ import annotations

import struct

import ml_dtypes
import numpy as np
import pytest

from tests.emulator import EmulatedLibrary, toolkit

pytestmark = pytest.mark.skipif(toolkit() is None, reason="needs CUDA headers and a host compiler")
DIM, PAGE, SPLITS = 256, 64, 64
BF16 = ml_dtypes.bfloat16


class Cache:
    """A bf16 page pool of one layer among ``layers``, and the tables of some sequences."""

    def __init__(self, rng, lengths, kv_heads, layers=2, layer=1):
        self.kv_heads, self.part = kv_heads, PAGE * DIM * 2
        self.pages = [-(-n // PAGE) for n in lengths]
        total, stride = sum(self.pages) + 2, max(self.pages) + 1
        self.layer_bytes = 2 * kv_heads * self.part
        self.page_bytes = layers * self.layer_bytes
        self.pool = np.full((total, layers, 2, kv_heads, PAGE, DIM), np.nan, BF16)
        numbers, self.tables = rng.permutation(total), np.full((len(lengths), stride), -1, np.int32)
        self.layer = layer
        at = 0
        for s, count in enumerate(self.pages):
            self.tables[s, :count] = numbers[at : at + count]
            at += count
        self.keys = [rng.standard_normal((n, kv_heads, DIM)).astype(BF16) for n in lengths]
        self.values = [rng.standard_normal((n, kv_heads, DIM)).astype(BF16) for n in lengths]
        for s, n in enumerate(lengths):
            for i in range(n):
                page = self.pool[self.tables[s, i // PAGE], layer]
                page[0, :, i % PAGE], page[1, :, i % PAGE] = self.keys[s][i], self.values[s][i]

    def struct(self):
        return struct.pack(
            "Qqiiii",
            self.pool.ctypes.data,
            self.page_bytes,
            self.part,
            self.part,
            self.kv_heads,
            self.tables.shape[1],
        )


def sequences(cache, offsets, frontiers, first=0):
    return struct.pack(
        "QQQii",
        cache.tables.ctypes.data,
        offsets.ctypes.data,
        frontiers.ctypes.data,
        len(frontiers),
        first,
    )


def reference(q, gate, keys, values, first=0):
    """One row: q (heads, DIM), keys (n, kv_heads, DIM)."""
    heads, kv_heads = q.shape[0], keys.shape[1]
    out = np.zeros((heads, DIM))
    for h in range(heads):
        k, v = (
            keys[first:, h * kv_heads // heads].astype(float),
            values[first:, h * kv_heads // heads].astype(float),
        )
        score = k @ q[h].astype(float) / 16
        weight = np.exp(score - score.max())
        out[h] = weight @ v / weight.sum()
    return out.reshape(-1) / (1 + np.exp(-gate.astype(float)))


def run_decode(cache, q, gate, offsets, frontiers, heads, first=0, order=0):
    rows = q.shape[0]
    group = heads // cache.kv_heads
    out = np.full((rows, heads * DIM), np.nan, BF16)
    partial = np.full((rows, cache.kv_heads, SPLITS, group, DIM), np.nan, np.float32)
    stats = np.full((rows, cache.kv_heads, SPLITS, group, 2), np.nan, np.float32)
    counters = np.zeros((rows, cache.kv_heads), np.uint32)
    kernel = EmulatedLibrary(order).get("attend_decode.cu", "attend_decode", KV=0, HEAD_DIM=DIM)
    kernel.launch(
        (SPLITS, cache.kv_heads, rows),
        128,
        out.view(np.uint16),
        q.view(np.uint16),
        gate.view(np.uint16),
        gate.shape[1],
        cache.struct(),
        cache.layer * cache.layer_bytes,
        sequences(cache, offsets, frontiers, first),
        heads,
        1 / 16,
        partial,
        stats,
        counters,
    )
    assert not counters.any()
    return out


@pytest.mark.parametrize("heads, kv_heads", [(6, 1), (4, 2), (8, 1)])
@pytest.mark.parametrize("lengths", [[1, 64, 65], [200, 3], [4097 + 64]])
def test_decode_attends_over_the_rows_own_pages(heads, kv_heads, lengths):
    rng = np.random.default_rng(sum(lengths) + heads)
    cache = Cache(rng, lengths, kv_heads)
    q = rng.standard_normal((len(lengths), heads, DIM)).astype(BF16)
    gate = rng.standard_normal((len(lengths), heads * DIM + 8)).astype(BF16)
    offsets = np.arange(len(lengths) + 1, dtype=np.int32)
    frontiers = np.array(lengths, np.int32) - 1
    out = run_decode(cache, q, gate, offsets, frontiers, heads)
    for s in range(len(lengths)):
        want = reference(q[s], gate[s, : heads * DIM], cache.keys[s], cache.values[s])
        got = out[s].astype(float)
        assert np.linalg.norm(got - want) <= 8e-3 * np.linalg.norm(want)
    if sum(lengths) < 1000:
        assert (run_decode(cache, q, gate, offsets, frontiers, heads, order=2) == out).all()


def test_decode_row_is_the_same_in_any_batch_and_verify():
    rng = np.random.default_rng(5)
    cache = Cache(rng, [300, 70], 1)
    q = rng.standard_normal((4, 2, DIM)).astype(BF16)
    gate = rng.standard_normal((4, 2 * DIM)).astype(BF16)
    both = run_decode(cache, q, gate, np.array([0, 3, 4], np.int32), np.array([297, 69], np.int32), 2)
    cache.tables = cache.tables[:1].copy()
    for i in range(3):
        one = run_decode(
            cache,
            q[i : i + 1].copy(),
            gate[i : i + 1].copy(),
            np.array([0, 1], np.int32),
            np.array([297 + i], np.int32),
            2,
        )
        assert (one[0] == both[i]).all()


def test_first_key_is_never_read():
    rng = np.random.default_rng(6)
    cache = Cache(rng, [70], 1)
    cache.pool[cache.tables[0, 0], 1, :, :, 0] = np.nan
    q, gate = rng.standard_normal((1, 2, DIM)).astype(BF16), rng.standard_normal((1, 2 * DIM)).astype(BF16)
    out = run_decode(cache, q, gate, np.array([0, 1], np.int32), np.array([69], np.int32), 2, first=1)
    want = reference(q[0], gate[0], cache.keys[0], cache.values[0], first=1)
    assert np.linalg.norm(out[0].astype(float) - want) <= 8e-3 * np.linalg.norm(want)


def run_prefill(cache, q, gate, frontier, heads, first=0, warps=4, order=0):
    rows = q.shape[0]
    out = np.full((rows, heads * DIM), np.nan, BF16)
    offsets, frontiers = np.array([0, rows], np.int32), np.array([frontier], np.int32)
    kernel = EmulatedLibrary(order).get("attend_prefill.cu", "attend_prefill", WARPS=warps)
    kernel.launch(
        (heads, -(-rows // (16 * warps))),
        32 * warps,
        out.view(np.uint16),
        q.view(np.uint16),
        gate.view(np.uint16),
        gate.shape[1],
        cache.struct(),
        cache.layer * cache.layer_bytes,
        sequences(cache, offsets, frontiers, first),
        rows,
        heads,
        1 / 16,
        shared=(16 * warps + 128) * 512,
    )
    return out


@pytest.mark.parametrize("frontier, rows", [(0, 1), (0, 65), (63, 2), (100, 130)])
@pytest.mark.parametrize("heads, kv_heads, first", [(4, 2, 0), (2, 1, 1)])
def test_prefill_rows_see_everything_before_them(frontier, rows, heads, kv_heads, first):
    rng = np.random.default_rng(rows + heads)
    cache = Cache(rng, [frontier + rows], kv_heads)
    q = rng.standard_normal((rows, heads, DIM)).astype(BF16)
    gate = rng.standard_normal((rows, heads * DIM + 8)).astype(BF16)
    out = run_prefill(cache, q, gate, frontier, heads, first)
    for i in range(rows):
        if frontier + i < first:
            assert (out[i] == 0).all()
            continue
        keys, values = cache.keys[0][: frontier + i + 1], cache.values[0][: frontier + i + 1]
        want = reference(q[i], gate[i, : heads * DIM], keys, values, first)
        assert np.linalg.norm(out[i].astype(float) - want) <= 8e-3 * np.linalg.norm(want)
    for other in ({"order": 2}, {"warps": 8}):
        assert (run_prefill(cache, q, gate, frontier, heads, first, **other) == out).all()


def test_prefill_row_does_not_depend_on_where_its_chunk_began():
    rng = np.random.default_rng(9)
    cache = Cache(rng, [150], 1)
    q, gate = rng.standard_normal((150, 1, DIM)).astype(BF16), rng.standard_normal((150, DIM)).astype(BF16)
    whole = run_prefill(cache, q, gate, 0, 1)
    parts = [
        run_prefill(cache, q[a:b].copy(), gate[a:b].copy(), a, 1)
        for a, b in ((0, 37), (37, 100), (100, 150))
    ]
    assert (np.concatenate(parts) == whole).all()
