"""Attention end to end (norms, rotary, cache, softmax, gate) against plain float64 attention."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ninfer.ops.cuda_attention import AttentionKernels, splits_of
from ninfer.ops.cuda_state import KV_KINDS, PagePool, Shape, page_bytes
from ninfer.ops.numpy_attention import Rotary, rotate
from ninfer.ops.numpy_math import shifted_norm
from ninfer.ops.verbs import Step
from ninfer.runtime.kvformat import KV_FORMATS
from tests.suites.bed import Bed, only_on_a_card, relative, run_in

BF16, DIM, PAGE = ml_dtypes.bfloat16, 256, 64
WAYS = ("attend_prefill.cu", "attend_hopper.cu")  # what attends a prompt
LIMITS = {"bf16": 8e-3, "int8": 1.2e-2, "fp8": 1.2e-2, "nvfp4": 1.2e-2, "k8v4": 1.2e-2}


class Layer:
    """One attention layer of several sequences, and everything they have cached, in NumPy beside it."""

    def __init__(
        self, bed: Bed, kind: str, heads: int, kv_heads: int, capacity: int, lanes: int, seed: int
    ):
        self.bed, self.kind, self.heads, self.kv_heads = bed, kind, heads, kv_heads
        self.rng = rng = np.random.default_rng(seed)
        width = -(-capacity // PAGE)
        pages = lanes * width + 2
        self.tables = rng.permutation(pages)[: lanes * width].reshape(lanes, width).astype(np.int32)
        self.pool = PagePool(bed.take((pages, page_bytes(kind, 2, kv_heads)), "u8"), kind, 2, kv_heads)
        self.rotary = Rotary.of(64, 1e7, (11, 11, 10))
        self.norms = [(rng.standard_normal(DIM) / 4).astype(BF16) for _ in range(2)]
        self.keys = [np.zeros((0, kv_heads, DIM), np.float32) for _ in range(lanes)]
        self.values = [np.zeros((0, kv_heads, DIM), np.float32) for _ in range(lanes)]
        self.run = AttentionKernels(
            bed.library, bed.take, Shape(256, heads, kv_heads, 1, 1, 1e-6), self.pool,
            bed.to(self.rotary.frequencies), bed.to(self.rotary.axes.astype(np.int32)),
            bed.to(np.arange(width, dtype=np.int32)), bed.zeros((16 * heads,), "u32"),
            splits=splits_of(width), shared_limit=bed.machine.shared_bytes,
        )  # fmt: skip

    def attend_by(self, file: str) -> Layer:
        """Let the kernel of ``file`` attend prompts; skips where it cannot run."""
        if not self.bed.can_run(file):
            pytest.skip(f"{file} takes another card")
        self.run.hopper = file == "attend_hopper.cu"
        return self

    def rows(self, count: int) -> tuple[Any, ...]:
        """Projected q, gate, k, v."""
        widths = (self.heads, self.heads, self.kv_heads, self.kv_heads)
        return tuple(self.rng.standard_normal((count, n * DIM)).astype(BF16) for n in widths)

    def step(self, kind: str, lanes: list[int], counts: list[int], positions: Any, first: int = 0) -> Step:
        """A step that goes on where the lanes are."""
        to, lengths = self.bed.to, [len(self.keys[lane]) for lane in lanes]
        total = sum(counts)
        return Step(
            kind=kind,
            rows=total,
            sequences=len(lanes),
            ids=None,
            positions=to(positions),
            offsets=to(np.cumsum([0, *counts]).astype(np.int32)),
            frontiers=to(np.array(lengths, np.int32)),
            tables=to(self.tables[lanes]),
            slots=None,
            lanes=None,
            first=first,
        )

    def advance(
        self,
        kind: str,
        lanes: list[int],
        counts: list[int],
        parts: tuple[Any, ...],
        first: int = 0,
        keep: bool = True,
    ) -> tuple[Any, Any]:
        """Run rows; -> (what the kernels say, what plain attention says)."""
        lengths = [len(self.keys[lane]) for lane in lanes]
        positions = self._positions(lanes, counts)
        out = self._run(kind, lanes, counts, parts, positions, first)
        want = self._reference(lanes, counts, parts, positions, first)
        if not keep:
            for lane, n in zip(lanes, lengths, strict=True):
                self.keys[lane], self.values[lane] = self.keys[lane][:n], self.values[lane][:n]
        return out, want

    def fill(self, lane: int, count: int) -> None:
        """Run a random prompt without comparing its outputs, which would take the square of its length."""
        parts, positions = self.rows(count), self._positions([lane], [count])
        self._run("prefill", [lane], [count], parts, positions, 0)
        _, k, v = self._turned(parts, positions)
        self._cache(lane, k, v)

    def _positions(self, lanes: list[int], counts: list[int]) -> Any:
        lengths = [len(self.keys[lane]) for lane in lanes]
        line = np.concatenate([n + np.arange(c) for n, c in zip(lengths, counts, strict=True)])
        return np.stack([line * 3, line + 100_000, line // 2]).astype(np.int32)

    def _run(self, kind: str, lanes: Any, counts: Any, parts: Any, positions: Any, first: int) -> Any:
        step = self.step(kind, lanes, counts, positions, first)
        self.run.enter(step)
        norms = (self.bed.to(self.norms[0]), self.bed.to(self.norms[1]))
        return self.bed.back(self.run(*(self.bed.to(p) for p in parts), norms, 1, step)).astype(np.float32)

    def _turned(self, parts: Any, positions: Any) -> tuple[Any, Any, Any]:
        """Queries, and what the cache will give back of keys and values."""
        q, _, k, v = (part.astype(np.float32).reshape(len(part), -1, DIM) for part in parts)
        q, k = (
            shifted_norm(x, w.astype(np.float32), 1e-6) for x, w in zip((q, k), self.norms, strict=True)
        )
        angles = self.rotary.angles(positions)
        rotate(q, angles)
        rotate(k, angles)
        form = KV_FORMATS[self.kind]
        return q, form.key.decode(form.key.encode(k)), form.value.decode(form.value.encode(v))

    def _cache(self, lane: int, k: Any, v: Any) -> None:
        self.keys[lane] = np.concatenate((self.keys[lane], k))
        self.values[lane] = np.concatenate((self.values[lane], v))

    def _reference(self, lanes: Any, counts: Any, parts: Any, positions: Any, first: int) -> Any:
        q, k, v = self._turned(parts, positions)
        gate = parts[1].astype(np.float32).reshape(q.shape)
        out, at = np.zeros(gate.shape, np.float64), 0
        group = self.heads // self.kv_heads
        for lane, count in zip(lanes, counts, strict=True):
            rows = slice(at, at + count)
            before = len(self.keys[lane])
            self._cache(lane, k[rows], v[rows])
            keys, values = self.keys[lane], self.values[lane]
            seen = np.arange(len(keys)) <= before + np.arange(count)[:, None]
            seen &= np.arange(len(keys)) >= first
            for h in range(self.heads):
                score = q[rows, h] @ keys[:, h // group].T / 16
                score = np.where(seen, score.astype(np.float64), -np.inf)
                weight = np.exp(score - score.max(1, keepdims=True, initial=-1e30))
                total = weight.sum(1, keepdims=True)
                out[rows, h] = weight @ values[:, h // group] / np.where(total > 0, total, 1)
            at += count
        return (out / (1 + np.exp(-gate))).reshape(len(q), -1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KV_KINDS)
@pytest.mark.parametrize("heads, kv_heads", [(4, 2), (6, 1), (24, 4), (16, 2)])
@pytest.mark.parametrize("way", WAYS)
def test_prompts_rows_and_drafts_attend_to_what_was_cached(
    bed: Bed, kind: str, heads: int, kv_heads: int, way: str
) -> None:
    only_on_a_card(bed, heads > 6)
    layer = Layer(bed, kind, heads, kv_heads, 512, 2, heads).attend_by(way)
    limit = LIMITS[kind]
    for count in (70, 1, 58) if heads <= 6 else (70, 1, 58, 129, 64):
        out, want = layer.advance("prefill", [0], [count], layer.rows(count))
        assert relative(out, want) <= limit
    layer.advance("prefill", [1], [3], layer.rows(3))
    for counts in ([1, 1], [1, 1], [4, 2]):
        kind_of = "decode" if counts == [1, 1] else "verify"
        out, want = layer.advance(kind_of, [0, 1], counts, layer.rows(sum(counts)))
        assert relative(out, want) <= limit
        assert np.abs(out - want).max() <= 4 * limit * np.abs(want).max()


@pytest.mark.parametrize("kind", KV_KINDS)
def test_a_row_has_the_same_bits_alone_in_a_batch_and_in_a_verification(bed: Bed, kind: str) -> None:
    layer = Layer(bed, kind, 4, 2, 320, 3, 9)
    for lane, count in ((0, 150), (1, 40), (2, 64)):
        layer.advance("prefill", [lane], [count], layer.rows(count))
    rows = layer.rows(6)
    batch, _ = layer.advance("verify", [0, 1, 2], [3, 1, 2], rows, keep=False)
    for lane, begin, count in ((0, 0, 3), (1, 3, 1), (2, 4, 2)):
        for i in range(begin, begin + count):
            one = tuple(part[i : i + 1] for part in rows)
            out, _ = layer.advance("decode", [lane], [1], one)
            assert (out[0] == batch[i]).all()


@pytest.mark.parametrize("order", [0, 1, 2])
def test_rows_that_fill_one_page_and_begin_another_see_one_another(bed: Bed, order: int) -> None:
    """More new keys than a block has warps, in pages of one split and of the next."""
    run_in(bed, order)
    layer = Layer(bed, "int8", 4, 2, 320, 1, 11)
    layer.advance("prefill", [0], [119], layer.rows(119))
    rows = layer.rows(16)
    many, want = layer.advance("tail", [0], [16], rows, keep=False)
    assert relative(many, want) <= LIMITS["int8"]
    for i in range(16):
        one, _ = layer.advance("decode", [0], [1], tuple(part[i : i + 1] for part in rows))
        assert (one[0] == many[i]).all()
    assert not bed.back(layer.run.counters).any()


@pytest.mark.parametrize("kind", KV_KINDS)
@pytest.mark.parametrize("way", WAYS)
def test_a_prompts_bits_do_not_depend_on_how_it_was_cut(bed: Bed, kind: str, way: str) -> None:
    found = []
    for cuts in ((150,), (1, 63, 64, 22), (37, 100, 13)):
        layer = Layer(bed, kind, 2, 1, 192, 1, 5).attend_by(way)
        rows, at, outs = layer.rows(150), 0, []
        for count in cuts:
            piece = tuple(part[at : at + count] for part in rows)
            outs.append(layer.advance("prefill", [0], [count], piece)[0])
            at += count
        found.append(np.concatenate(outs))
    assert (found[0] == found[1]).all() and (found[0] == found[2]).all()


@pytest.mark.parametrize("limit", [99 << 10, 163 << 10])
def test_prompts_keep_their_bits_on_a_card_with_little_shared_memory(bed: Bed, limit: int) -> None:
    found = []
    for shared in (bed.machine.shared_bytes, limit):
        layer = Layer(bed, "bf16", 2, 1, 192, 1, 5).attend_by("attend_prefill.cu")
        layer.run.shared_limit = shared
        layer.advance("prefill", [0], [30], layer.rows(30))
        found.append(layer.advance("prefill", [0], [150], layer.rows(150))[0])
    assert (found[0] == found[1]).all()


@pytest.mark.parametrize("way", WAYS)
def test_keys_below_the_first_are_never_read(bed: Bed, way: str) -> None:
    layer = Layer(bed, "bf16", 2, 1, 128, 1, 6).attend_by(way)
    out, want = layer.advance("prefill", [0], [70], layer.rows(70), first=1)
    assert (out[0] == 0).all() and relative(out, want) <= 8e-3
    out, want = layer.advance("decode", [0], [1], layer.rows(1), first=1)
    assert relative(out, want) <= 8e-3


@pytest.mark.parametrize("order", [0, 1, 2])
def test_copies_products_and_barriers_of_hopper_meet_in_any_order(bed: Bed, order: int) -> None:
    """On the emulator threads run in three orders; a tile used too early or freed too soon ends the run."""
    layer = Layer(bed, "bf16", 2, 1, 448, 1, 7).attend_by("attend_hopper.cu")
    run_in(bed, order)
    for count in (1, 63, 356):
        out, want = layer.advance("prefill", [0], [count], layer.rows(count))
        assert relative(out, want) <= LIMITS["bf16"]


def test_heads_that_do_not_pair_attend_by_the_general_kernel(bed: Bed) -> None:
    layer = Layer(bed, "bf16", 3, 1, 128, 1, 8).attend_by("attend_hopper.cu")
    out, want = layer.advance("prefill", [0], [70], layer.rows(70))
    assert relative(out, want) <= LIMITS["bf16"]


@pytest.mark.parametrize("heads, kv_heads", [(24, 4), (16, 2)])
@pytest.mark.parametrize("way", WAYS)
def test_prompts_of_many_pages(bed: Bed, heads: int, kv_heads: int, way: str) -> None:
    only_on_a_card(bed, True)
    layer = Layer(bed, "bf16", heads, kv_heads, 1200, 1, 9).attend_by(way)
    for count in (1024, 77):
        out, want = layer.advance("prefill", [0], [count], layer.rows(count))
        assert relative(out, want) <= LIMITS["bf16"]


@pytest.mark.parametrize("kind", KV_KINDS)
@pytest.mark.parametrize("length", [4095, 4096, 4160, 9001])
def test_long_contexts_split_and_merge(bed: Bed, kind: str, length: int) -> None:
    only_on_a_card(bed, kind != "bf16" or length > 4096)
    layer = Layer(bed, kind, 6, 1, length + 8, 1, length)
    layer.fill(0, length) if bed.real else _fill(layer, length)
    out, want = layer.advance("verify", [0], [3], layer.rows(3))
    assert relative(out, want) <= LIMITS[kind]


def _fill(layer: Layer, length: int) -> None:
    """Append without the cost of prompt attention: two rows a verification of many tokens."""
    rows = layer.rows(length)
    form, k, v = KV_FORMATS[layer.kind], rows[2], rows[3]
    k, v = (part.astype(np.float32).reshape(length, -1, DIM) for part in (k, v))
    layer.keys[0] = form.key.decode(form.key.encode(k))
    layer.values[0] = form.value.decode(form.value.encode(v))
    data = layer.bed.back(layer.pool.data).view(BF16).reshape(-1, 2, 2, layer.kv_heads, PAGE, DIM)
    for i in range(length):
        page = data[layer.tables[0, i // PAGE], 1]
        page[0, :, i % PAGE], page[1, :, i % PAGE] = layer.keys[0][i], layer.values[0][i]
    layer.bed.machine.transfers.send(layer.pool.data, data.view(np.uint8))
