"""The device sampler through its launcher, draw for draw against the NumPy sampler."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import pytest

from ninfer.engine.device import Bind
from ninfer.engine.job import Sampling
from ninfer.ops.cuda_sampler import LaneMemory, Sampler, pack_sampler
from ninfer.ops.sample_numpy import Purpose
from ninfer.ops.verbs import Step
from ninfer.runtime.lanes import Lane, judge, sample_rows
from tests.suites.bed import Bed, only_on_a_card

MIXED = (
    Sampling(),
    Sampling(temperature=1.0, seed=3),
    Sampling(temperature=0.7, top_p=0.8, top_k=5, seed=-9, presence=1.5),
    Sampling(temperature=1.3, min_p=0.1, top_p=0.95, seed=2**62, frequency=0.25),
    Sampling(presence=0.5, frequency=2.0),
)


@attrs.define(eq=False)
class Both:
    """The same lanes on the device and in NumPy."""

    bed: Bed
    vocab: int
    stride: int
    run: Sampler = attrs.field(init=False)
    lanes: list[Lane] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        memory = LaneMemory.take(self.bed.zeros, len(MIXED), self.vocab, 8)
        self.run = Sampler(self.bed.library, self.bed.take, memory)
        self.lanes = [Lane(self.vocab) for _ in MIXED]
        packed = b""
        for i, s in enumerate(MIXED):
            self.lanes[i].bind(Bind(i, s))
            packed += pack_sampler(
                s.temperature, s.top_p, s.min_p, s.presence, s.frequency, s.top_k, s.seed
            )
        self.bed.machine.transfers.send(memory.samplers, np.frombuffer(packed, np.uint8))

    def step(self, lanes: Any, frontiers: Any, counts: Any = None, ids: Any = None) -> Step:
        to, counts = self.bed.to, counts or [1] * len(lanes)
        return Step(
            kind="decode", rows=sum(counts), sequences=len(lanes), positions=None, slots=None,
            ids=None if ids is None else to(np.array(ids, np.int32)),
            offsets=to(np.cumsum([0, *counts]).astype(np.int32)),
            frontiers=to(np.array(frontiers, np.int32)),
            tables=to(np.zeros((len(lanes), 1), np.int32)), lanes=to(np.array(lanes, np.int32)),
        )  # fmt: skip

    def logits(self, rng: Any, rows: int) -> tuple[Any, Any]:
        """Noisy logits with ties over chunks, and the same with rubbish behind the vocabulary."""
        logits = rng.standard_normal((rows, self.vocab), np.float32) * 3
        logits[:, 50:60] = logits[:, 4200:4210] = logits.max(axis=1, keepdims=True)
        wide = np.full((rows, self.stride), 99, np.float32)
        wide[:, : self.vocab] = logits
        return logits, wide


SIZES = pytest.mark.parametrize("vocab, stride", [(9000, 9100), (248_077, 248_320)])


@SIZES
def test_draws_equal_the_numpy_sampler(bed: Bed, vocab: int, stride: int) -> None:
    only_on_a_card(bed, vocab > 9000)
    rng, both = np.random.default_rng(1), Both(bed, vocab, stride)
    for position in range(12):
        logits, wide = both.logits(rng, len(MIXED))
        numbers = [lane.number(position, Purpose.DECODE) for lane in both.lanes]
        want = sample_rows(both.lanes, logits, numbers)
        step = both.step(range(len(MIXED)), [position] * len(MIXED))
        out = bed.take((len(MIXED),), "i32")
        both.run.draw(bed.to(wide), step, step.frontiers, Purpose.DECODE, out)
        assert bed.back(out).tolist() == want == bed.back(both.run.memory.pending).tolist()


@SIZES
def test_verdicts_equal_the_numpy_judge(bed: Bed, vocab: int, stride: int) -> None:
    only_on_a_card(bed, vocab > 9000)
    rng, both = np.random.default_rng(2), Both(bed, vocab, stride)
    for _ in range(6):
        drafts = [rng.integers(0, vocab, rng.integers(1, 5)).tolist() for _ in MIXED]
        counts = [1 + len(draft) for draft in drafts]
        offsets = np.cumsum([0, *counts])
        logits, wide = both.logits(rng, sum(counts))
        for begin, draft in zip(offsets, drafts, strict=False):
            for i, token in enumerate(draft):
                if rng.random() < 0.7:
                    logits[begin + i, token] = wide[begin + i, token] = 60
        frontiers = rng.integers(0, 1000, len(MIXED)).tolist()
        ids = [token for draft in drafts for token in (0, *draft)]
        step, out = both.step(range(len(MIXED)), frontiers, counts, ids), bed.take((len(MIXED), 9), "i32")
        both.run.judge(bed.to(wide), step, out)
        got = [tuple(row[1 : 1 + row[0]].tolist()) for row in bed.back(out)]
        want = [
            judge(lane, logits[a : a + n].copy(), draft, at)
            for lane, a, n, draft, at in zip(both.lanes, offsets, counts, drafts, frontiers, strict=False)
        ]
        assert got == want


def test_best_is_the_lower_of_equal_ids(bed: Bed) -> None:
    both = Both(bed, 9000, 9000)
    logits, wide = both.logits(np.random.default_rng(3), 3)
    ids = np.arange(9000, dtype=np.int32)[::-1].copy()
    want = logits.argmax(axis=1)
    assert bed.back(both.run.best(bed.to(wide), None)).tolist() == want.tolist()
    assert bed.back(both.run.best(bed.to(wide), bed.to(ids))).tolist() == ids[want].tolist()
