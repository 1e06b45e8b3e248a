"""The device sampler on the CPU emulator, draw for draw against the NumPy sampler."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from ninfer.engine.device import Bind, Row
from ninfer.engine.job import Sampling
from ninfer.ops import sample_numpy
from ninfer.ops.sample_numpy import Purpose
from ninfer.runtime.lanes import Lane, judge, sample_rows
from tests.emulator import EmulatedLibrary, toolkit

pytestmark = pytest.mark.skipif(toolkit() is None, reason="needs CUDA headers and a host compiler")
VOCAB, STRIDE, TOP, CHUNK, WIDTH = 9000, 9100, 20, 4096, 8
CHUNKS = -(-VOCAB // CHUNK)
MIXED = (
    Sampling(),
    Sampling(temperature=1.0, seed=3),
    Sampling(temperature=0.7, top_p=0.8, top_k=5, seed=-9, presence=1.5),
    Sampling(temperature=1.3, min_p=0.1, top_p=0.95, seed=2**62, frequency=0.25),
    Sampling(presence=0.5, frequency=2.0),
)


class Device:
    """Lane memory as the kernels want it."""

    def __init__(self, samplings):
        self.samplers = np.frombuffer(
            b"".join(
                struct.pack(
                    "q5fi", s.seed, s.temperature, s.top_p, s.min_p, s.presence, s.frequency, s.top_k
                )
                for s in samplings
            ),
            np.uint8,
        ).copy()
        self.counts = np.zeros((len(samplings), VOCAB), np.int32)
        self.pending = np.full(len(samplings), -7, np.int32)
        self.published = np.zeros((len(samplings), WIDTH), np.int32)
        self.library = EmulatedLibrary()

    def lanes(self):
        parts = (self.samplers, self.counts, self.pending, self.published)
        return struct.pack("QQQQii", *(part.ctypes.data for part in parts), VOCAB, WIDTH)

    def get(self, name):
        return self.library.get("sample.cu", name)

    def draw(self, logits, lanes, positions, purpose=0, offsets=None, ids=None):
        rows = len(logits)
        lanes, positions = np.array(lanes, np.int32), np.array(positions, np.int32)
        offsets = np.arange(rows + 1, dtype=np.int32) if offsets is None else np.array(offsets, np.int32)
        of = struct.pack("QQQii", 0, offsets.ctypes.data, 0, len(lanes), 0)
        keys = np.full((rows, CHUNKS, TOP), 1, np.uint64)
        tokens, stands = np.full(rows, -9, np.int32), np.full(rows, -9, np.int32)
        wide = np.full((rows, STRIDE), 99, np.float32)
        wide[:, :VOCAB] = logits
        self.get("sample_scan").launch(
            (CHUNKS, rows), 256, keys, wide, STRIDE, VOCAB, self.lanes(), of, lanes, ids
        )
        self.get("sample_choose").launch(
            rows, 256, tokens, stands, keys, CHUNKS, self.lanes(), of, lanes, positions, ids, purpose
        )
        if ids is None:
            return tokens.tolist()
        out = np.full((len(lanes), 1 + WIDTH), -9, np.int32)
        self.get("sample_judge").launch(len(lanes), 32, out, tokens, stands, ids, self.lanes(), of, lanes)
        return [tuple(row[1 : 1 + row[0]].tolist()) for row in out]


def lanes_of(samplings):
    lanes = [Lane(VOCAB) for _ in samplings]
    for i, (lane, sampling) in enumerate(zip(lanes, samplings, strict=True)):
        lane.bind(Bind(i, sampling))
    return lanes


def noisy(rng, rows):
    logits = rng.standard_normal((rows, VOCAB)).astype(np.float32) * 3
    logits[:, 50:60] = logits[:, 4200:4210] = logits.max(axis=1, keepdims=True)  # ties over chunks
    return logits


def test_tokens_equal_the_numpy_sampler_round_after_round():
    rng = np.random.default_rng(1)
    device, lanes = Device(MIXED), lanes_of(MIXED)
    for position in range(40):
        logits = noisy(rng, len(MIXED))
        numbers = [lane.number(position, Purpose.DECODE) for lane in lanes]
        want = sample_rows(lanes, logits.copy(), numbers)
        order = rng.permutation(len(MIXED))
        got = device.draw(logits[order], order, [position] * len(MIXED), int(Purpose.DECODE))
        assert got == [want[i] for i in order]
        assert device.pending.tolist() == want


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_not_finite_yields_minus_one_and_spares_the_others(bad):
    logits = noisy(np.random.default_rng(2), 3)
    clean = Device(MIXED).draw(logits, [0, 1, 2], [5, 5, 5])
    logits[1, VOCAB - 1] = bad
    assert Device(MIXED).draw(logits, [0, 1, 2], [5, 5, 5]) == [clean[0], -1, clean[2]]


def test_verification_equals_the_numpy_judge():
    rng = np.random.default_rng(3)
    device, lanes = Device(MIXED), lanes_of(MIXED)
    seen = set()
    for _ in range(30):
        drafts = {lane: rng.integers(0, VOCAB, rng.integers(1, 5)).tolist() for lane in range(len(MIXED))}
        offsets = np.cumsum([0, *(1 + len(d) for d in drafts.values())])
        logits = noisy(rng, offsets[-1])
        for lane, begin in zip(drafts, offsets, strict=False):
            for i, draft in enumerate(drafts[lane]):
                if rng.random() < 0.7:
                    logits[begin + i, draft] += 30
        ids = np.array([t for d in drafts.values() for t in (0, *d)], np.int32)
        frontiers = rng.integers(0, 1000, len(MIXED)).tolist()
        got = device.draw(logits, range(len(MIXED)), frontiers, offsets=offsets, ids=ids)
        want = [
            judge(lane, logits[a:b].copy(), drafts[i], frontiers[i])
            for i, (lane, a, b) in enumerate(zip(lanes, offsets, offsets[1:], strict=False))
        ]
        assert got == want
        seen |= {len(tokens) for tokens in want}
        keeps = [int(rng.integers(0, len(tokens) + 1)) for tokens in want]
        for lane, keep, tokens in zip(lanes, keeps, want, strict=True):
            lane.open = type("V", (), {"published": tokens, "row": Row(0, 0, 0, (), None)})()
            lane.settle(keep)
        device.get("sample_settle").launch(
            len(MIXED),
            32,
            device.lanes(),
            np.arange(len(MIXED), dtype=np.int32),
            np.array(keeps, np.int32),
            np.array([len(t) for t in want], np.int32),
        )
        for i, lane in enumerate(lanes):
            assert device.pending[i] == lane.pending
            if lane.counts is not None:
                assert (device.counts[i] == lane.counts._times).all()
    assert len(seen) > 3


def test_best_takes_the_lower_of_equal_ids_and_maps_it():
    logits = noisy(np.random.default_rng(4), 2)
    device, ids = Device(MIXED), np.arange(VOCAB, dtype=np.int32)[::-1].copy()
    keys, tokens = np.ones((2, CHUNKS, TOP), np.uint64), np.full(2, -9, np.int32)
    nobody = struct.pack("QQQQii", 0, 0, 0, 0, 0, 0)
    for mapped in (None, ids):
        device.get("sample_scan").launch(
            (CHUNKS, 2), 256, keys, logits, VOCAB, VOCAB, nobody, bytes(32), None, None
        )
        device.get("sample_best").launch(2, 256, tokens, keys, CHUNKS, mapped)
        want = logits.argmax(axis=1)
        assert tokens.tolist() == (want if mapped is None else ids[want]).tolist()


def test_feeding_and_recounting():
    device = Device(MIXED)
    device.pending[:] = [5, 6, -1, 8, 9]
    ids = np.zeros(3, np.int32)
    device.get("sample_feed").launch(
        1, 128, ids, np.array([-1, 40, -1], np.int32), np.array([3, 0, 2], np.int32), device.pending, 3
    )
    assert ids.tolist() == [8, 40, 0]
    generated = np.array([7, 7, 9, -1, VOCAB], np.int32)
    device.counts[1] = 3
    for add in (0, 1):
        device.get("sample_recount").launch(
            -(-VOCAB // 256), 256, device.counts[1], generated, 5, VOCAB, add
        )
    want = np.zeros(VOCAB)
    want[[7, 9]] = 2, 1
    assert (device.counts[1] == want).all()
    assert not device.counts[0].any()


def test_uniform_numbers_are_those_of_numpy():
    sampling = Sampling(temperature=1.0, seed=-(2**63))
    logits = np.zeros((1, VOCAB), np.float32)
    for position in (0, 1, 2**31 - 1):
        lane = lanes_of([sampling])[0]
        want = sample_numpy.sample(logits, [sampling], [lane.number(position, Purpose.PREFILL)])
        assert Device([sampling]).draw(logits, [0], [position]) == want.tolist()
