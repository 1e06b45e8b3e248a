"""Gated DeltaNet kernels on the CPU emulator: held against NumPy, and bit for bit against each other."""

from __future__ import annotations

import itertools
import struct

import ml_dtypes
import numpy as np
import pytest

from ninfer.ops import numpy_delta
from tests.emulator import EmulatedLibrary, toolkit

pytestmark = pytest.mark.skipif(toolkit() is None, reason="needs CUDA headers and a host compiler")
BF16 = ml_dtypes.bfloat16
HEAD, TAPS = 128, 4


class Layer:
    """One layer's weights, images with some slots, and raw rows, as the kernels want them."""

    def __init__(self, seed, key_heads=1, value_heads=2, slots=3, layers=2):
        self.rng = rng = np.random.default_rng(seed)
        self.key_heads, self.value_heads, self.layers = key_heads, value_heads, layers
        self.key_width, self.value_width = key_heads * HEAD, value_heads * HEAD
        self.channels = 2 * self.key_width + self.value_width
        f32 = np.float32
        self.taps = (rng.standard_normal((TAPS, self.channels)) * 0.5).astype(BF16)
        self.a_log = rng.uniform(0, 1, value_heads).astype(f32)
        self.dt_bias = rng.standard_normal(value_heads).astype(f32)
        self.norm = rng.uniform(0.5, 1.5, HEAD).astype(BF16)
        self.recurrent_bytes = value_heads * HEAD * HEAD * 4
        self.ring_bytes = TAPS * self.channels * 2
        self.image_bytes = layers * (self.recurrent_bytes + self.ring_bytes)
        self.images = np.zeros((slots, self.image_bytes), np.uint8)
        self.device_layers = np.frombuffer(self.layer() * layers, np.uint8).copy()

    def layer(self):
        return struct.pack(
            "QQQQiifi",
            *(part.ctypes.data for part in (self.taps, self.a_log, self.dt_bias, self.norm)),
            self.key_heads,
            self.value_heads,
            1e-6,
            0,
        )

    def image(self, layer=0):
        start = self.layers * self.recurrent_bytes
        return struct.pack(
            "Qqqq",
            self.images.ctypes.data,
            self.image_bytes,
            layer * self.recurrent_bytes,
            start + layer * self.ring_bytes,
        )

    def state(self, slot, layer=0):
        """S as (value_heads, key dim, value dim), a copy."""
        begin = layer * self.recurrent_bytes
        raw = self.images[slot, begin : begin + self.recurrent_bytes].copy().view(np.float32)
        return raw.reshape(self.value_heads, HEAD, HEAD).swapaxes(1, 2)

    def rows(self, count):
        widths = (self.key_width, self.key_width, self.value_width, self.value_width)
        parts = [self.rng.standard_normal((count, w)).astype(BF16) for w in widths]
        gates = [self.rng.standard_normal((count, self.value_heads)).astype(BF16) for _ in range(2)]
        return Rows(*parts, *gates)


class Rows:
    def __init__(self, q, k, v, z, a, b):
        self.q, self.k, self.v, self.z, self.a, self.b = q, k, v, z, a, b

    def cut(self, begin, end):
        return Rows(*(part[begin:end].copy() for part in (self.q, self.k, self.v, self.z, self.a, self.b)))

    def struct(self):
        data = (part.ctypes.data for part in (self.q, self.k, self.v, self.a, self.b))
        return struct.pack("QQQQQiiii", *data, self.q.shape[1], self.v.shape[1], self.a.shape[1], 0)


def step(layer, rows, slots, frontiers, counts=None, record=None, lanes=None, order=0):
    counts = counts or [1] * len(slots)
    offsets = np.cumsum([0, *counts]).astype(np.int32)
    frontiers, slots = np.array(frontiers, np.int32), np.array(slots, np.int32)
    out = np.full((len(rows.z), layer.value_width), np.nan, BF16)
    of = struct.pack("QQQii", 0, offsets.ctypes.data, frontiers.ctypes.data, len(slots), 0)
    if record is None:
        noted = struct.pack("QQQqqii", 0, 0, 0, 0, 0, 0, 0)
    else:
        lanes = np.array(lanes, np.int32)
        noted = record.struct(lanes)
    EmulatedLibrary(order).get("delta_step.cu", "delta_step").launch(
        (layer.value_heads, len(slots)),
        512,
        out.view(np.uint16),
        rows.z.view(np.uint16),
        rows.struct(),
        layer.layer(),
        layer.image(),
        of,
        slots,
        noted,
    )
    return out


class Record:
    def __init__(self, layer, lanes=2, rows=6):
        self.width = layer.channels + 2 * layer.value_heads
        self.data = np.full((lanes, layer.layers, rows, self.width), np.nan, BF16)
        self.frontiers = np.full(lanes, -1, np.int32)

    def struct(self, lanes):
        lane = self.data[0].size
        return struct.pack(
            "QQQqqii",
            self.data.ctypes.data,
            self.frontiers.ctypes.data,
            lanes.ctypes.data,
            lane,
            self.data[0, 0].size,
            self.width,
            1,
        )


def fold(layer, record, lanes, slots, keeps):
    lanes, slots, keeps = (np.array(part, np.int32) for part in (lanes, slots, keeps))
    lane, deep = record.data[0].size, record.data[0, 0].size
    library, bits = EmulatedLibrary(), record.data.view(np.uint16)
    library.get("delta_step.cu", "delta_fold").launch(
        (layer.value_heads, len(lanes), layer.layers),
        512,
        bits,
        lane,
        deep,
        record.width,
        layer.device_layers,
        layer.image(),
        layer.recurrent_bytes,
        layer.ring_bytes,
        lanes,
        slots,
        keeps,
        record.frontiers,
    )
    flat = bits.reshape(-1)
    library.get("delta_step.cu", "delta_ring").launch(
        (-(-layer.channels // 256), len(lanes), layer.layers),
        256,
        flat,
        flat[layer.key_width :],
        flat[2 * layer.key_width :],
        record.width,
        record.width,
        layer.key_width,
        layer.channels,
        lane,
        deep,
        layer.image(),
        layer.ring_bytes,
        lanes,
        slots,
        keeps,
        record.frontiers,
    )


def prefill(layer, rows, slot, frontier, order=0):
    count, f32 = len(rows.z), np.float32
    padded = -(-count // 16) * 16
    q, k = (np.full((count, layer.key_width), np.nan, f32) for _ in range(2))
    v, o = (np.full((count, layer.value_width), np.nan, f32) for _ in range(2))
    decay, beta = (np.full((layer.value_heads, padded), np.nan, f32) for _ in range(2))
    slots, frontiers = np.array([slot], np.int32), np.array([frontier], np.int32)
    out = np.full((count, layer.value_width), np.nan, BF16)
    library, image, counts = EmulatedLibrary(order), layer.image(), np.array([count], np.int32)
    parts = 2 * layer.key_heads + layer.value_heads
    library.get("delta_prefill.cu", "delta_prepare").launch(
        (padded // 16, -(-parts // 4)),
        128,
        q,
        k,
        v,
        decay,
        beta,
        rows.struct(),
        layer.layer(),
        image,
        slots,
        frontiers,
        count,
    )
    library.get("delta_prefill.cu", "delta_recur").launch(
        (8, layer.value_heads),
        128,
        o,
        q,
        k,
        v,
        decay,
        beta,
        image,
        slots,
        layer.key_heads,
        layer.value_heads,
        count,
    )
    library.get("delta_prefill.cu", "delta_norm").launch(
        -(-count * layer.value_heads // 8),
        256,
        out.view(np.uint16),
        o,
        rows.z.view(np.uint16),
        layer.norm.view(np.uint16),
        count * layer.value_heads,
        1e-6,
    )
    library.get("delta_step.cu", "delta_ring").launch(
        (-(-layer.channels // 256), 1, 1),
        256,
        *(p.view(np.uint16) for p in (rows.q, rows.k, rows.v)),
        layer.key_width,
        layer.value_width,
        layer.key_width,
        layer.channels,
        0,
        0,
        image,
        0,
        None,
        slots,
        counts,
        frontiers,
    )
    return out


def reference(layer, rows):
    """Outputs and final S from an empty slot, by the NumPy recurrence."""
    raw = np.concatenate([part.astype(np.float32) for part in (rows.q, rows.k, rows.v)], axis=1)
    columns = np.concatenate((np.zeros((TAPS - 1, layer.channels), np.float32), raw))
    mixed = numpy_delta.convolve(columns, layer.taps.astype(np.float32))
    q, k, v = numpy_delta.split_heads(mixed, layer.key_width, HEAD, HEAD)
    a, b = rows.a.astype(np.float32), rows.b.astype(np.float32)
    g, beta = numpy_delta.gates(a, b, layer.a_log, layer.dt_bias)
    state = np.zeros((layer.value_heads, HEAD, HEAD), np.float32)
    o = np.stack([numpy_delta.recur(state, *x) for x in zip(q, k, v, np.exp(g), beta, strict=True)])
    o = o / np.sqrt((o * o).mean(-1, keepdims=True) + 1e-6) * layer.norm.astype(np.float32)
    z = rows.z.astype(np.float32)
    return o.reshape(z.shape) * z / (1 + np.exp(-z)), state


def near(got, want, tolerance):
    got = got.astype(float)
    assert np.isfinite(got).all()
    assert np.linalg.norm(got - want) <= tolerance * np.linalg.norm(want)


@pytest.mark.parametrize("key_heads, value_heads", [(1, 1), (1, 2), (2, 6)])
def test_steps_follow_the_numpy_recurrence(key_heads, value_heads):
    layer = Layer(value_heads, key_heads, value_heads)
    rows = layer.rows(6)
    out = np.concatenate([step(layer, rows.cut(i, i + 1), [1], [i], order=i % 3) for i in range(6)])
    want, state = reference(layer, rows)
    near(out, want, 8e-3)
    near(layer.state(1), state, 1e-5)
    assert not layer.images[[0, 2]].any()


@pytest.mark.parametrize("cuts", [(37,), (1, 2, 16, 17, 37), (3, 35, 37)])
def test_prefill_gives_the_bits_of_stepping_wherever_it_is_cut(cuts):
    stepped, filled = Layer(3), Layer(3)
    rows = stepped.rows(37)
    want = np.concatenate([step(stepped, rows.cut(i, i + 1), [2], [i]) for i in range(37)])
    edges = (0, *cuts)
    parts = [
        prefill(filled, rows.cut(a, b), 2, a, order=2 if a else 0) for a, b in itertools.pairwise(edges)
    ]
    assert (np.concatenate(parts) == want).all()
    assert (filled.images == stepped.images).all()


@pytest.mark.parametrize("keep", [0, 1, 3, 5])
def test_verify_then_fold_gives_the_bits_of_stepping(keep):
    layer, other = Layer(4), Layer(4)
    before, rows = layer.rows(2), layer.rows(5)
    for one in (layer, other):
        for i in range(2):
            step(one, before.cut(i, i + 1), [1], [i])
    image, record = layer.images.copy(), Record(layer)
    out = step(layer, rows, [1], [2], [5], record, [1])
    assert (layer.images == image).all()
    record.data[1, 1] = record.data[1, 0]  # the second layer has seen the same rows
    begin, ring = layer.recurrent_bytes, layer.layers * layer.recurrent_bytes
    fold(layer, record, [1], [1], [keep])
    want = [step(other, rows.cut(i, i + 1), [1], [2 + i]) for i in range(5)]
    assert (out == np.concatenate(want)).all()
    other = Layer(4)
    for i in range(2):
        step(other, before.cut(i, i + 1), [1], [i])
    for i in range(keep):
        step(other, rows.cut(i, i + 1), [1], [2 + i])
    assert (layer.images[1, :begin] == other.images[1, :begin]).all()
    end = ring + layer.ring_bytes
    assert (layer.images[1, ring:end] == other.images[1, ring:end]).all()


def test_a_row_has_the_same_bits_in_any_batch():
    layer = Layer(5)
    rows = layer.rows(3)
    alone = step(layer, rows.cut(1, 2), [0], [0])
    batch = step(layer, rows.cut(0, 3), [1, 2, 0][:3], [0, 0, 1])
    assert (batch[1] == alone[0]).all()
