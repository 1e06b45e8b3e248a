"""Query and key preparation on the CPU emulator, against the NumPy verbs and the cache's NumPy codecs."""

from __future__ import annotations

import struct

import ml_dtypes
import numpy as np
import pytest

from ninfer.ops.numpy_attention import Rotary, rotate
from ninfer.ops.numpy_math import shifted_norm
from ninfer.runtime.kvformat import KV_FORMATS, rotation
from tests.emulator import EmulatedLibrary, toolkit

pytestmark = pytest.mark.skipif(toolkit() is None, reason="needs CUDA headers and a host compiler")
BF16, DIM, PAGE = ml_dtypes.bfloat16, 256, 64
NAMES = ("bf16", "int8", "fp8", "nvfp4", "k8v4")


def split_rows(part, codec):
    """A head's page part as stored here -> rows of codes and scales as the NumPy codec takes them."""
    row = codec.row_bytes(DIM)
    scales = {512: 0, 264: 8, 258: 2, 144: 16}[row]
    codes = part[: PAGE * (row - scales)].reshape(PAGE, -1)
    return np.concatenate((codes, part[PAGE * (row - scales) :].reshape(PAGE, scales)), axis=1)


@pytest.mark.parametrize("kernel", ["rope_append", "rope_prompt"])
@pytest.mark.parametrize("name", NAMES)
def test_heads_are_normed_turned_and_cached(name, kernel):
    rng = np.random.default_rng(len(name))
    heads, kv_heads, rows, pairs = 3, 2, 5, 32
    form = KV_FORMATS[name]
    q, k, v = (rng.standard_normal((rows, n, DIM)).astype(BF16) for n in (heads, kv_heads, kv_heads))
    q_norm, k_norm = (rng.standard_normal(DIM).astype(BF16) for _ in range(2))
    positions = rng.integers(0, 200_000, (3, rows)).astype(np.int32)
    rotary = Rotary.of(64, 1e7, (11, 11, 10))
    sizes = [PAGE * codec.row_bytes(DIM) for codec in (form.key, form.value)]
    pool = np.zeros((4, 2, kv_heads * sum(sizes)), np.uint8)
    tables = np.array([[3, 1, 9], [2, 9, 9]], np.int32)
    offsets, frontiers = np.array([0, 3, 5], np.int32), np.array([62, 7], np.int32)
    q_out = np.zeros_like(q)
    table = np.full((rows, pairs, 2), np.nan, np.float32)
    library, at = EmulatedLibrary(2), NAMES.index(name)
    library.get("rope.cu", "rope_table", KV=at).launch(
        1, 256, table, positions, rotary.frequencies, rotary.axes.astype(np.int32), rows, pairs
    )
    threads, grid, strides = 128, -(-rows * (heads + kv_heads) // 4), []
    if kernel == "rope_prompt":
        threads, grid, strides = 256, -(-rows * 2 // 8), [heads * DIM, kv_heads * DIM]
    library.get("rope.cu", kernel, KV=at).launch(
        grid,
        threads,
        *(part.view(np.uint16) for part in (q_out, q, k, v)),
        *strides,
        *(part.view(np.uint16) for part in (q_norm, k_norm)),
        table,
        pairs,
        struct.pack("Qqiiii", pool.ctypes.data, pool[0].nbytes, *sizes, kv_heads, 3),
        pool[0, 0].nbytes,
        struct.pack("QQQii", tables.ctypes.data, offsets.ctypes.data, frontiers.ctypes.data, 2, 0),
        rows,
        heads,
        1e-6,
    )
    angles = rotary.angles(positions)
    want_q = shifted_norm(q.astype(np.float32), q_norm.astype(np.float32), 1e-6)
    want_k = shifted_norm(k.astype(np.float32), k_norm.astype(np.float32), 1e-6)
    rotate(want_q, angles)
    rotate(want_k, angles)
    if name == "nvfp4":
        want_q = want_q @ rotation(DIM)
    assert np.abs(q_out.astype(np.float32) - want_q).max() < 8e-3 * np.abs(want_q).max()
    places = [(3, 62), (3, 63), (1, 0), (2, 7), (2, 8)]
    for row, (page, token) in enumerate(places):
        raw = pool[page, 1]
        for head in range(kv_heads):
            key = split_rows(raw[head * sizes[0] : (head + 1) * sizes[0]], form.key)[token]
            begin = kv_heads * sizes[0] + head * sizes[1]
            value = split_rows(raw[begin : begin + sizes[1]], form.value)[token]
            for codec, got, want in (
                (form.key, key, want_k[row, head]),
                (form.value, value, v[row, head].astype(np.float32)),
            ):
                ours, theirs = codec.decode(got[None])[0], codec.decode(codec.encode(want[None]))[0]
                assert np.linalg.norm(ours - theirs) < 2e-3 * np.linalg.norm(theirs) + 1e-6
            if name != "nvfp4" and name != "k8v4":
                assert (value == form.value.encode(v[row, head].astype(np.float32)[None])[0]).all()
    untouched = pool.copy()
    untouched[[p for p, _ in places], 1] = 0
    assert not untouched.any()
