"""The Gated DeltaNet through its launcher: against the NumPy recurrence, and bit for bit against itself."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ninfer.kernels_cu.arrays import DeviceArray
from ninfer.ops import numpy_delta
from ninfer.ops.cuda_delta import Delta, DeltaRows
from ninfer.ops.cuda_state import LATE, DeltaWeights, ImagePool, Notes, Records, Shape, image_bytes
from ninfer.ops.verbs import Step
from tests.suites.bed import Bed, EmulatedBed, only_on_a_card, relative

BF16, HEAD = ml_dtypes.bfloat16, 128


WAYS = ("delta_tiles.cu", "delta_hopper.cu")  # what walks the tiles of a prompt


class Net:
    """One DeltaNet layer (twice, as two layers of an image) with slots and records."""

    def __init__(self, bed: Bed, key_heads: int, value_heads: int, seed: int = 1, slots: int = 4):
        self.bed, self.rng = bed, np.random.default_rng(seed)
        rng, f32 = self.rng, np.float32
        self.shape = shape = Shape(256, 2, 1, key_heads, value_heads, 1e-6)
        self.taps = (rng.standard_normal((4, shape.channels)) / 2).astype(BF16)
        self.a_log, self.dt_bias = (
            rng.uniform(0, 1, value_heads).astype(f32),
            rng.standard_normal(value_heads).astype(f32),
        )
        self.norm = rng.uniform(0.5, 1.5, HEAD).astype(BF16)
        parts = (self.taps, self.a_log, self.dt_bias, self.norm)
        self.weights = DeltaWeights(*(bed.to(part) for part in parts))
        self.images = ImagePool(bed.zeros((slots, image_bytes(shape, 2)), "u8"), shape, 2)
        table = bed.to(np.frombuffer(self.weights.pack(shape) * 2, np.uint8))
        records = Records.take(bed.take, shape, 2, 3, 11)  # more than a kernel takes at once
        limit = bed.machine.shared_bytes
        self.run = Delta(bed.library, bed.take, shape, self.images, records, table, limit)
        self.side_by_side = False  # whether inputs are columns of one array

    def walk_by(self, file: str) -> Net:
        """Choose what walks the tiles of a prompt."""
        if not self.bed.can_run(file):
            pytest.skip(f"{file} does not run here")
        self.run.hopper = file == "delta_hopper.cu"
        return self

    def rows(self, count: int) -> dict[str, Any]:
        shape, rng = self.shape, self.rng
        widths = {
            "q": shape.key_width,
            "k": shape.key_width,
            "v": shape.value_width,
            "z": shape.value_width,
        }
        widths |= {"a": shape.value_heads, "b": shape.value_heads}
        return {name: rng.standard_normal((count, width)).astype(BF16) for name, width in widths.items()}

    def go(
        self,
        kind: str,
        rows: dict[str, Any],
        slots: list[int],
        frontiers: list[int],
        counts: list[int],
        lanes: Any = None,
        lags: Any = None,
    ) -> Any:
        """Run layer 1; -> its outputs."""
        to = self.bed.to
        step = Step(
            kind=kind, rows=sum(counts), sequences=len(slots), ids=None, positions=None,
            offsets=to(np.cumsum([0, *counts]).astype(np.int32)),
            frontiers=to(np.array(frontiers, np.int32)),
            tables=to(np.zeros((len(slots), 1), np.int32)), slots=to(np.array(slots, np.int32)),
            lanes=to(np.array(lanes or range(len(slots)), np.int32)),
            lags=None if lags is None else to(np.array(lags, np.int32)),
        )  # fmt: skip
        return self.bed.back(self.run(DeltaRows(**self.sent(rows)), self.weights, 1, step))

    def sent(self, rows: dict[str, Any]) -> dict[str, DeviceArray]:
        if not self.side_by_side:
            return {name: self.bed.to(part) for name, part in rows.items()}
        whole = self.bed.to(np.concatenate(list(rows.values()), axis=1))
        ends = np.cumsum([part.shape[1] for part in rows.values()]).tolist()
        widths = zip(rows.items(), ends, strict=True)
        return {name: whole.columns(end - part.shape[1], end) for (name, part), end in widths}

    def image(self, slot: int) -> Any:
        return self.bed.back(self.images.image(slot)).reshape(-1)

    def state(self, slot: int) -> Any:
        """S of layer 1 as (value_heads, key dim, value dim)."""
        size = self.images.recurrent_bytes
        return self.image(slot)[size : 2 * size].view(np.float32).reshape(-1, HEAD, HEAD).swapaxes(1, 2)

    def reference(self, rows: dict[str, Any]) -> tuple[Any, Any]:
        """Outputs and final S from an empty slot."""
        f = {name: part.astype(np.float32) for name, part in rows.items()}
        raw = np.concatenate((f["q"], f["k"], f["v"]), axis=1)
        columns = np.concatenate((np.zeros((3, raw.shape[1]), np.float32), raw))
        mixed = numpy_delta.convolve(columns, self.taps.astype(np.float32))
        q, k, v = numpy_delta.split_heads(mixed, self.shape.key_width, HEAD, HEAD)
        g, beta = numpy_delta.gates(f["a"], f["b"], self.a_log, self.dt_bias)
        state = np.zeros((self.shape.value_heads, HEAD, HEAD), np.float32)
        o = np.stack([numpy_delta.recur(state, *x) for x in zip(q, k, v, np.exp(g), beta, strict=True)])
        o = o / np.sqrt((o * o).mean(-1, keepdims=True) + 1e-6) * self.norm.astype(np.float32)
        return o.reshape(f["z"].shape) * f["z"] / (1 + np.exp(-f["z"])), state


def cut(rows: dict[str, Any], begin: int, end: int) -> dict[str, Any]:
    return {name: part[begin:end] for name, part in rows.items()}


heads = pytest.mark.parametrize("key_heads, value_heads", [(1, 2), (2, 6), (16, 48), (16, 32)])
ways = pytest.mark.parametrize("way", WAYS)


@ways
@heads
def test_prompts_and_steps_follow_the_recurrence(
    bed: Bed, key_heads: int, value_heads: int, way: str
) -> None:
    only_on_a_card(bed, key_heads > 2)
    net, count = Net(bed, key_heads, value_heads).walk_by(way), 150 if bed.real else 40
    rows = net.rows(count)
    half = count // 2
    outs = [net.go("prefill", cut(rows, 0, half), [2], [0], [half])]
    outs += [net.go("decode", cut(rows, i, i + 1), [2], [i], [1]) for i in range(half, count)]
    want, state = net.reference(rows)
    assert relative(np.concatenate(outs), want) <= 8e-3
    assert relative(net.state(2), state) <= 5e-3
    assert not any(net.image(slot).any() for slot in (0, 1, 3))


@ways
def test_prompts_of_like_keys_follow_the_recurrence(bed: Bed, way: str) -> None:
    """Keys that hardly differ, wide gates, little decay: where the inverse of a tile is most sensitive."""
    net, count = Net(bed, 1, 3).walk_by(way), 130
    rows, like = net.rows(count), net.rng.standard_normal((1, HEAD))
    rows["k"] = (like + 0.3 * net.rng.standard_normal((count, HEAD))).astype(BF16)
    rows["b"], rows["a"] = np.full((count, 3), 4.0, BF16), np.full((count, 3), -4.0, BF16)
    out = net.go("prefill", rows, [1], [0], [count])
    want, state = net.reference(rows)
    assert relative(out, want) <= 1.5e-2
    assert relative(net.state(1), state) <= 1e-2


@ways
@heads
def test_prompts_do_not_depend_on_cuts_at_whole_tiles(
    bed: Bed, key_heads: int, value_heads: int, way: str
) -> None:
    only_on_a_card(bed, key_heads > 1)
    whole, cutted = (Net(bed, key_heads, value_heads).walk_by(way) for _ in range(2))
    rows = whole.rows(150)
    for net in (whole, cutted):  # begin inside a tile
        net.go("prefill", cut(rows, 0, 5), [1], [0], [5])
    want = whole.go("prefill", cut(rows, 5, 150), [1], [5], [145])
    edges = (5, 64, 128, 150)
    outs = [cutted.go("prefill", cut(rows, a, b), [1], [a], [b - a]) for a, b in itertools.pairwise(edges)]
    assert (np.concatenate(outs) == want).all()
    assert (cutted.image(1) == whole.image(1)).all()


@ways
def test_prompts_have_the_same_bits_from_inputs_side_by_side(bed: Bed, way: str) -> None:
    apart, beside = (Net(bed, 2, 8).walk_by(way) for _ in range(2))
    beside.side_by_side = True
    rows = apart.rows(70)
    want, got = (net.go("prefill", rows, [1], [0], [70]) for net in (apart, beside))
    assert (got == want).all() and (beside.image(1) == apart.image(1)).all()


@heads
@pytest.mark.parametrize("cuts", [(37,), (1, 2, 16, 17, 37), (70, 100)])
def test_prompts_agree_with_steps_wherever_they_are_cut(
    bed: Bed, key_heads: int, value_heads: int, cuts: Any
) -> None:
    only_on_a_card(bed, key_heads > 1)
    stepped, filled, count = Net(bed, key_heads, value_heads), Net(bed, key_heads, value_heads), cuts[-1]
    rows = stepped.rows(count)
    want = np.concatenate([stepped.go("decode", cut(rows, i, i + 1), [1], [i], [1]) for i in range(count)])
    edges = (0, *cuts)
    outs = [filled.go("prefill", cut(rows, a, b), [1], [a], [b - a]) for a, b in itertools.pairwise(edges)]
    assert relative(np.concatenate(outs), want) <= 8e-3
    assert relative(filled.state(1), stepped.state(1)) <= 5e-3
    size = 2 * filled.images.recurrent_bytes
    assert (filled.image(1)[size:] == stepped.image(1)[size:]).all()  # the convolution history is exact


@heads
def test_verify_then_fold_has_the_bits_of_steps(bed: Bed, key_heads: int, value_heads: int) -> None:
    only_on_a_card(bed, key_heads > 1)
    net, steps = Net(bed, key_heads, value_heads), Net(bed, key_heads, value_heads)
    before, rows = net.rows(6), net.rows(15)
    for one in (net, steps):
        for slot, count in ((0, 2), (1, 6)):
            one.go("prefill", cut(before, 0, count), [slot], [0], [count])
    images = [net.image(slot) for slot in (0, 1)]
    outs = net.go("verify", rows, [0, 1], [2, 6], [11, 4], lanes=[2, 0])
    assert all((net.image(slot) == images[slot]).all() for slot in (0, 1))
    keeps, to = [10, 4], bed.to
    _seen_by_both_layers(net)
    net.run.fold(*(to(np.array(part, np.int32)) for part in ([2, 0], [0, 1], keeps)))
    at = 0
    for slot, first, count, keep in ((0, 2, 11, 10), (1, 6, 4, 4)):
        for i in range(count):
            out = steps.go("decode", cut(rows, at + i, at + i + 1), [slot], [first + i], [1])
            assert (out[0] == outs[at + i]).all()
            if i + 1 == keep:
                kept = steps.image(slot)
        at += count
        size, ring = net.images.recurrent_bytes, net.images.ring_bytes
        for begin, end in ((size, 2 * size), (2 * size + ring, 2 * size + 2 * ring)):
            assert (net.image(slot)[begin:end] == kept[begin:end]).all()


def _seen_by_both_layers(net: Net) -> None:
    """fold runs every layer; give layer 0 the same rows."""
    records = net.run.records
    assert records is not None
    values = net.bed.back(records.columns)
    values[:, 0] = values[:, 1]
    net.bed.machine.transfers.send(records.columns, values.view(np.uint16))


def test_a_row_has_the_same_bits_in_any_batch(bed: Bed) -> None:
    net = Net(bed, 1, 2)
    rows = net.rows(3)
    batch = net.go("decode", rows, [2, 0, 3], [0, 0, 0], [1, 1, 1])
    assert (net.go("decode", cut(rows, 1, 2), [1], [0], [1])[0] == batch[1]).all()
    assert (net.image(0) == net.image(1)).all()


@pytest.mark.parametrize("key_heads, value_heads, blocks", [(1, 2, 1), (1, 3, 2), (2, 4, 5)])
def test_many_lanes_keep_the_bits_of_few(bed: Bed, key_heads: int, value_heads: int, blocks: int) -> None:
    few, many = Net(bed, key_heads, value_heads), Net(bed, key_heads, value_heads)
    many.run.blocks = blocks
    slots, start = [2, 0, 3], [0, 0, 0]
    for i in range(5):  # past the ring of the convolution
        rows = few.rows(3)
        out = [net.go("decode", rows, slots, [at + i for at in start], [1, 1, 1]) for net in (few, many)]
        assert (out[0] == out[1]).all()
    assert all((few.image(slot) == many.image(slot)).all() for slot in range(4))


@pytest.mark.parametrize("key_heads, value_heads, blocks", [(1, 2, 1), (1, 3, 2), (2, 4, 5)])
def test_states_that_are_behind_keep_the_bits_of_steps(
    bed: Bed, key_heads: int, value_heads: int, blocks: int
) -> None:
    few, many = Net(bed, key_heads, value_heads), Net(bed, key_heads, value_heads)
    many.run.blocks, many.run.notes = blocks, Notes.take(bed.take, many.shape, 2, 4)
    slots, lanes, counts = [2, 0, 3], [3, 0, 1], [0, 0, 0]
    for i in range(7):
        rows = few.rows(3)
        due = [count + 1 == LATE or (i + turn) % 5 == 0 for turn, count in enumerate(counts)]
        lags = [2 * count + now for count, now in zip(counts, due, strict=True)]
        counts = [0 if now else count + 1 for count, now in zip(counts, due, strict=True)]
        want = few.go("decode", rows, slots, [i] * 3, [1, 1, 1])
        assert (many.go("decode", rows, slots, [i] * 3, [1, 1, 1], lanes, lags) == want).all()
        behind = [slot for slot, count in zip(slots, counts, strict=True) if count]
        assert all((few.state(slot) == many.state(slot)).all() == (slot not in behind) for slot in slots)
    assert len({0, *counts}) > 2
    _noted_by_both_layers(many)
    many.run.catch_up(*(bed.to(np.array(part, np.int32)) for part in (lanes, slots, counts)))
    size = many.images.recurrent_bytes
    assert all((few.image(slot) == many.image(slot))[size:].all() for slot in range(4))


def _noted_by_both_layers(net: Net) -> None:
    """catch_up runs every layer; give layer 0 the same notes."""
    assert net.run.notes is not None
    values = net.bed.back(net.run.notes.data)
    values[:, 0] = values[:, 1]
    net.bed.machine.transfers.send(net.run.notes.data, values)


def test_tiles_keep_their_bits_on_a_card_with_little_shared_memory(bed: Bed) -> None:
    nets = [Net(bed, 1, 2).walk_by("delta_tiles.cu") for _ in range(2)]
    nets[1].run.shared_limit = 99 << 10
    rows = nets[0].rows(150)
    first, second = (net.go("prefill", rows, [1], [0], [150]) for net in nets)
    assert (first == second).all() and (nets[0].image(1) == nets[1].image(1)).all()


@pytest.mark.parametrize("order", [1, 2])
def test_warpgroup_products_and_copies_meet_in_any_order(bed: Bed, order: int) -> None:
    if bed.real:
        pytest.skip("the card chooses the order itself")
    found = []
    for bed_of in (EmulatedBed(0), EmulatedBed(order)):
        net = Net(bed_of, 1, 2).walk_by("delta_hopper.cu")
        found.append((net.go("prefill", net.rows(330), [1], [0], [330]), net.image(1)))
    (first, image), (other, changed) = found
    assert (first == other).all() and (image == changed).all()
