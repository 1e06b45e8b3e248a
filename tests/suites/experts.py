"""Mixtures of experts against float64 sums over decoded weights."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from ninfer.artifact import layouts
from ninfer.ops.cuda_experts import Bank, Experts, Pending, bank_of
from ninfer.ops.cuda_state import Shape
from ninfer.ops.numpy_experts import choose
from ninfer.ops.stored import stored_matrix
from ninfer.ops.verbs import Routing
from tests.suites.bed import Bed, only_on_a_card, run_in

BF16 = ml_dtypes.bfloat16


def weight(bed, rng, form, rows, columns):
    """A stored matrix and its decoded values."""
    values = rng.standard_normal((rows, columns), np.float32) / 8
    data = layouts.encode(values, form)
    stored = stored_matrix(bed.to(data.view(np.uint8)), form, values.shape)
    if form == "bf16":
        return stored, values.astype(BF16).astype(np.float32)
    return stored, layouts.decode_rows(data.data, form, values.shape, 0, rows)


def experts(bed):
    counters = bed.zeros((1024,), "u32")
    return Experts(bed.library, bed.take, Shape(256, 1, 1, 1, 1, 1e-6), bed.products, counters)


def silu(x):
    return x / (1 + np.exp(-x))


def close(got, want, tolerance=8e-3):
    assert np.isfinite(got).all()
    assert np.linalg.norm(got - want) <= tolerance * np.linalg.norm(want)


@pytest.mark.parametrize("wide", [False, True])
def test_routing_takes_the_best_experts_ties_to_the_lower_id(bed: Bed, wide):
    rng = np.random.default_rng(1)
    values = (rng.standard_normal((41, 256)) / 8).astype(BF16)
    values[7] = values[21] = values[30]  # three equal experts
    both, values = stored_matrix(bed.to(values), "bf16", (41, 256)), values.astype(np.float32)
    x = rng.standard_normal((4, 256)).astype(np.float32)
    norm = rng.standard_normal(256).astype(BF16)
    route = experts(bed).route(bed.to(x), bed.to(norm), both.take(0, 40), both.take(40, 41), 6, wide)
    normed = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * (1 + norm.astype(np.float32))
    close(bed.back(route.normed).astype(np.float32), normed)
    logits = normed @ values.T
    want, weights = choose(logits[:, :40], 6)
    for row in range(4):
        gap = np.sort(logits[row, :40])[::-1]
        if gap[5] - gap[6] > 0.05:
            assert sorted(bed.back(route.experts)[row]) == sorted(want[row])
    assert np.abs(np.sort(bed.back(route.weights)) - np.sort(weights)).max() < 2e-2
    assert np.abs(bed.back(route.weights).sum(-1) - 1).max() < 1e-5
    close(bed.back(route.shared), 1 / (1 + np.exp(-logits[:, 40])), 2e-2)
    for row in bed.back(route.experts):
        tied = [e for e in row if e in (7, 21, 30)]
        assert tied == [7, 21, 30][: len(tied)]


def test_a_row_that_is_not_finite_stays_so_and_reads_no_wild_expert(bed: Bed):
    rng = np.random.default_rng(2)
    both, _ = weight(bed, rng, "bf16", 17, 256)
    x = rng.standard_normal((2, 256)).astype(np.float32)
    x[1, 3] = np.nan
    norm = bed.to(np.zeros(256, BF16))
    route = experts(bed).route(bed.to(x), norm, both.take(0, 16), both.take(16, 17), 4, False)
    assert np.isfinite(bed.back(route.weights)[0]).all() and np.isnan(bed.back(route.weights)[1]).all()
    assert ((bed.back(route.experts) >= 0) & (bed.back(route.experts) < 16)).all()


CASES = [
    ("q8_g32_fp16", "q8_g32_fp16", "q8_g32_fp16", "q8_g32_fp16"),
    ("q4_g64_fp16", "q5_g64_fp16", "q8_g32_fp16", "q8_g32_fp16"),
    ("q4_g64_fp16", "q6_g64_fp16", "fp8_e4m3fn_row_bf16", "bf16"),
    ("bf16", "bf16", "bf16", "bf16"),
    ("nvfp4", "nvfp4", "q4_g64_fp16", "q4_g64_fp16"),
    ("fp8_e4m3fn_row_bf16", "fp8_e4m3fn_row_bf16", "fp8_e4m3fn_row_bf16", "fp8_e4m3fn_row_bf16"),
]


WAYS = ("experts_wide.cu", "experts_hopper.cu")  # what multiplies a prompt


class Mixture:
    """Random experts, interleaved per expert as the converter lays them."""

    def __init__(self, bed, seed, forms, count=5, hidden=256, width=64, common=128, per_token=3):
        self.bed = bed
        self.rng = rng = np.random.default_rng(seed)
        gate_up, down, shared, last = forms
        self.width, self.per_token, self.hidden, self.count = width, per_token, hidden, count
        rows = 2 * count * width
        both, self.gate_up = weight(bed, rng, gate_up, -(-rows // 128) * 128, hidden)
        slices = [both.take(i * width, (i + 1) * width) for i in range(2 * count)]
        self.pending = Pending(bank_of(slices[0::2]), bank_of(slices[1::2]))
        whole, self.down = weight(bed, rng, down, count * hidden, width)
        self.bank = bank_of([whole.take(e * hidden, (e + 1) * hidden) for e in range(count)])
        pair, self.shared = weight(bed, rng, shared, 2 * common, hidden)
        final, self.last = weight(bed, rng, last, hidden, common)
        self.common = (pair.take(0, common), pair.take(common, 2 * common), final)

    def rows(self, count):
        rng = self.rng
        normed = rng.standard_normal((count, self.hidden)).astype(BF16)
        chosen = np.argsort(rng.random((count, self.count)), axis=1)[:, : self.per_token].astype(np.int32)
        weights = rng.random((count, self.per_token)).astype(np.float32)
        shared, x = rng.random(count).astype(np.float32), rng.standard_normal((count, self.hidden))
        return normed, chosen, weights, shared, x.astype(np.float32)

    def want(self, normed, chosen, weights, shared, x):
        out, common, width = x.astype(float), self.last.shape[1], self.width
        n = normed.astype(float)
        for e in range(self.count):
            rows, places = np.nonzero(chosen == e)
            gate, up = (
                self.gate_up[2 * e * width :][:width].T,
                self.gate_up[(2 * e + 1) * width :][:width].T,
            )
            y = silu(n[rows] @ gate) * (n[rows] @ up)
            down = self.down[e * self.hidden :][: self.hidden].T
            out[rows] += weights[rows, places, None] * (y @ down)
        y = silu(n @ self.shared[:common].T) * (n @ self.shared[common:].T)
        return out + shared[:, None] * (y @ self.last.T)

    def run(self, rows, wide=False, way="experts_wide.cu"):
        bed = self.bed
        normed, chosen, weights, shared, x = rows
        route = Routing(*(bed.to(part) for part in (normed, chosen, weights, shared)))
        run = experts(bed)
        run.hopper = way == "experts_hopper.cu"
        return bed.back(run.add(self.pending, route, self.bank, self.common, bed.to(x), wide)).copy()


@pytest.mark.parametrize("forms", CASES)
def test_rows_add_up_their_experts_and_the_shared_one(bed: Bed, forms):
    mixture = Mixture(bed, 3, forms)
    rows = mixture.rows(3)
    got, want = mixture.run(rows), mixture.want(*rows)
    close(got - rows[-1], want - rows[-1])
    alone = tuple(part[1:2] for part in rows)
    assert (mixture.run(alone)[0] == got[1]).all()


def prompt(bed, forms, count, way):
    if not bed.can_run(way):
        pytest.skip(f"{way} takes another card")
    mixture = Mixture(bed, 5, forms)
    rows = mixture.rows(count)
    got, want = mixture.run(rows, True, way), mixture.want(*rows)
    close(got - rows[-1], want - rows[-1], 1.2e-2)
    some = slice(count // 3, count // 3 + 5)
    few = tuple(part[some] for part in rows)
    assert (mixture.run(few, True, way) == got[some]).all()


@pytest.mark.parametrize("forms", CASES)
@pytest.mark.parametrize("count", [1, 70])
@pytest.mark.parametrize("way", WAYS)
def test_prompts_group_rows_by_expert(bed: Bed, forms, count, way):
    prompt(bed, forms, count, way)


@pytest.mark.parametrize("order", [0, 1, 2])
@pytest.mark.parametrize("way", WAYS)
def test_long_prompts_fill_large_tiles(bed: Bed, way, order):
    run_in(bed, order)
    prompt(bed, CASES[1 + order], 140, way)


def test_experts_at_uneven_distances_are_refused(bed: Bed):
    mixture = Mixture(bed, 4, CASES[0])
    rows = mixture.pending.gate.rows
    with pytest.raises(ValueError, match="does not follow"):
        bank_of([rows.take(0, 8), rows.take(16, 24), rows.take(40, 48)])
    assert isinstance(mixture.bank, Bank)


@pytest.mark.parametrize("way", [None, *WAYS])
@pytest.mark.parametrize("down", ["q5_g64_fp16", "q6_g64_fp16"])
def test_real_shapes(bed: Bed, way, down):
    only_on_a_card(bed, True)
    forms = ("q4_g64_fp16", down, "q8_g32_fp16", "q8_g32_fp16")
    mixture = Mixture(bed, 6, forms, count=12, hidden=2048, width=512, common=512, per_token=8)
    rows = mixture.rows(600 if way else 9)
    got, want = mixture.run(rows, way is not None, way), mixture.want(*rows)
    close(got - rows[-1], want - rows[-1], 1.2e-2)
    for begin, end in ((4, 5), (2, 9)):
        some = tuple(part[begin:end] for part in rows)
        assert (mixture.run(some, way is not None, way) == got[begin:end]).all()
