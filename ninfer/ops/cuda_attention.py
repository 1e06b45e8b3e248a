"""Launches of the attention kernels: rotary tables, cache append, attention of rows and of prompts.

The one thing a reader would get wrong: the rotary table belongs to a step's positions and is made once
for all its layers; a shifted step (MTP) has a table of its own.
"""

from __future__ import annotations

import struct

import attrs

from ninfer.kernels_cu.arrays import DeviceArray
from ninfer.kernels_cu.pack import Kernel, Library
from ninfer.ops.cuda_state import (
    AT_ONCE,
    HEAD_DIM,
    KV_KINDS,
    PAGE_TOKENS,
    SPLITS,
    PagePool,
    Shape,
    Take,
    pack_sequences,
    page_bytes,
)
from ninfer.ops.verbs import Step


def prompt_shared(warps: int, stages: int) -> int:
    """Bytes of shared memory that attend_prefill takes."""
    return (16 * warps + 128 * stages) * 512


PROMPT_HEADS = 4  # of a row that a warp of rope_prompt takes

# attend_hopper.cu: rows of a tile, heads and threads of a block; shared: queries, a ring of five, barriers.
HOPPER_ROWS, HOPPER_HEADS, HOPPER_THREADS = 64, 2, 384
HOPPER_SHARED = (HOPPER_HEADS + 5) * HOPPER_ROWS * HEAD_DIM * 2 + 5 * 16


ROWS_SHARED = 8 * 8 * 265 * 4  # bytes that attend_rows takes for the sums of its warps


def splits_of(pages: int) -> int:
    """How many splits a row of as many pages can have."""
    return min(SPLITS, -(-pages // AT_ONCE))


@attrs.define(eq=False)
class AttentionKernels:
    """Runs attention layers on the pages of ``pool``.

    frequencies   (pairs,) f64    rotary frequencies
    axes          (pairs,) i32    position axis of each pair
    line          (pages of a context,) i32: 0, 1, 2, ..., the table of widened pages
    counters      (rows of a step * heads,) u32, zero between launches
    splits        how many splits the longest sequence can have
    shared_limit  bytes of shared memory that a block may have
    hopper        whether prompts may use attend_hopper.cu where the card can run it
    """

    library: Library
    take: Take
    shape: Shape
    pool: PagePool
    frequencies: DeviceArray
    axes: DeviceArray
    line: DeviceArray
    counters: DeviceArray
    splits: int = SPLITS
    shared_limit: int = 99 << 10
    dependent: bool = True
    hopper: bool = True
    _positions: DeviceArray | None = None
    _table: DeviceArray | None = None

    def enter(self, step: Step) -> None:
        """Make the rotary table of a step.

        An ordinary launch, so that nothing of this pass overtakes the last; a drafting step, which reads
        no recurrent state and early no page of the draft before, may begin while its predecessor ends.
        """
        pairs = self.axes.size
        self._positions = step.positions
        self._table = self.take((step.rows, pairs, 2), "f32")
        self.library.get("rope.cu", "rope_table", KV=KV_KINDS[self.pool.kind]).launch(
            -(-step.rows * pairs // 256),
            256,
            *(self._table, step.positions, self.frequencies, self.axes, step.rows, pairs),
            dependent=self.dependent and step.first > 0,
        )

    def leave(self) -> None:
        """Give the table back."""
        self._positions = self._table = None

    def __call__(
        self,
        q: DeviceArray,
        gate: DeviceArray,
        k: DeviceArray,
        v: DeviceArray,
        norms: tuple[DeviceArray, DeviceArray],
        layer: int,
        step: Step,
    ) -> DeviceArray:
        """Append k and v, attend, gate.  -> (T, heads * HEAD_DIM) bf16."""
        if step.kind != "prefill":
            return self._rows(q, gate, k, v, norms, layer, step)
        turned = self.take(q.shape, "bf16")
        heads = self.shape.heads, self.shape.kv_heads
        self._append((turned, q, k, v), norms, heads, layer, step)
        return self._prompt(turned, gate, layer, step)

    def remember(self, k: DeviceArray, v: DeviceArray, k_norm: DeviceArray, layer: int, step: Step) -> None:
        """Append k and v alone."""
        self._append((k, k, k, v), (k_norm, k_norm), (0, self.shape.kv_heads), layer, step)

    def recall(
        self, q: DeviceArray, gate: DeviceArray, q_norm: DeviceArray, layer: int, step: Step
    ) -> DeviceArray:
        """Attend rows of a prompt whose keys and values are there.  -> (T, heads * HEAD_DIM) bf16."""
        if step.kind != "prefill":
            raise ValueError(f"recall: a {step.kind} pass")
        if step.positions is not self._positions:
            self.enter(step)  # the last rows of the pass
        turned = self.take(q.shape, "bf16")
        self._append((turned, q, q, q), (q_norm, q_norm), (self.shape.heads, 0), layer, step)
        return self._prompt(turned, gate, layer, step)

    def _append(
        self,
        arrays: tuple[DeviceArray, DeviceArray, DeviceArray, DeviceArray],
        norms: tuple[DeviceArray, DeviceArray],
        heads: tuple[int, int],
        layer: int,
        step: Step,
    ) -> None:
        """Turn queries, and enter keys and values, of as many ``heads`` (either may be none).

        Arrays are out, q, k, v.  Kernels take the pool's word for how many heads have keys here.
        """
        table, total = self._entered(step), sum(heads)
        pool = attrs.evolve(self.pool, kv_heads=heads[1]).pack(step.tables.shape[1])
        kind, place = KV_KINDS[self.pool.kind], layer * self.pool.layer_bytes
        rest = (*norms, table, self.axes.size, pool, place, pack_sequences(step), step.rows, heads[0])
        if step.kind == "prefill":
            _, q, k, _ = arrays
            self.library.get("rope.cu", "rope_prompt", KV=kind).launch(
                -(-step.rows * -(-total // PROMPT_HEADS) // 8),
                256,
                *(*arrays, q.stride, k.stride, *rest, self.shape.eps),
            )
            return
        self.library.get("rope.cu", "rope_append", KV=kind).launch(
            -(-step.rows * total // 4), 128, *arrays, *rest, self.shape.eps, dependent=self.dependent
        )

    def _rows(
        self,
        q: DeviceArray,
        gate: DeviceArray,
        k: DeviceArray,
        v: DeviceArray,
        norms: tuple[DeviceArray, DeviceArray],
        layer: int,
        step: Step,
    ) -> DeviceArray:
        """Append and attend single rows in one launch."""
        table = self._entered(step)
        shape, rows, take = self.shape, step.rows, self.take
        if rows * shape.heads > self.counters.size:
            raise ValueError(f"attend: {rows} rows, counters for {self.counters.size // shape.heads}")
        partial = take((rows, shape.heads, self.splits, HEAD_DIM), "f32")
        stats = take((rows, shape.heads, self.splits, 2), "f32")
        out = take(q.shape, "bf16")
        arrays = (part.ptr for part in (q, k, v, gate, *norms, table))
        raw = struct.pack("7Qiiif", *arrays, shape.heads, self.axes.size, gate.stride, shape.eps)
        pool, place = self.pool.pack(step.tables.shape[1]), layer * self.pool.layer_bytes
        self.library.get("attend_decode.cu", "attend_rows", KV=KV_KINDS[self.pool.kind]).launch(
            (self.splits, shape.kv_heads, rows),
            256,
            *(out, partial, stats, self.counters, raw, pool, place, pack_sequences(step), HEAD_DIM**-0.5),
            shared=ROWS_SHARED,
            dependent=self.dependent,
        )
        return out

    def _entered(self, step: Step) -> DeviceArray:
        """The rotary table of the step."""
        if self._table is None or step.positions is not self._positions:
            raise ValueError("attend: the step was not entered by embed")
        return self._table

    def _prompt(self, q: DeviceArray, gate: DeviceArray, layer: int, step: Step) -> DeviceArray:
        """Attend rows of a prompt; q is normed and turned."""
        pool, place = self.pool.pack(step.tables.shape[1]), layer * self.pool.layer_bytes
        heads, sequences, wide = self.shape.heads, pack_sequences(step), None
        out = self.take(q.shape, "bf16")
        if self.pool.kind != "bf16":
            wide, pool, sequences = self._widened(pool, place, sequences, step)
            place = 0
        kernel, rows, columns, threads, shared = self._prompt_kernel()
        kernel.launch(
            (columns, -(-step.rows // rows)),
            threads,
            *(out, q, gate, gate.stride, pool, place, sequences, step.rows, heads, HEAD_DIM**-0.5),
            shared=shared,
        )
        del wide  # the launch above read it
        return out

    def _prompt_kernel(self) -> tuple[Kernel, int, int, int, int]:
        """What attends a prompt here: kernel, rows of a block, blocks of a row, threads, shared bytes."""
        heads, group = self.shape.heads, self.shape.heads // self.shape.kv_heads
        able = group % HOPPER_HEADS == 0 and self.shared_limit >= HOPPER_SHARED
        if self.hopper and able and self.library.supports("attend_hopper.cu"):
            kernel = self.library.get("attend_hopper.cu", "attend_hopper")
            return kernel, HOPPER_ROWS, heads // HOPPER_HEADS, HOPPER_THREADS, HOPPER_SHARED
        fits = ((w, s) for w, s in ((8, 2), (8, 1), (4, 1)) if prompt_shared(w, s) <= self.shared_limit)
        warps, stages = next(fits)
        kernel = self.library.get("attend_prefill.cu", "attend_prefill", WARPS=warps, STAGES=stages)
        return kernel, 16 * warps, heads, 32 * warps, prompt_shared(warps, stages)

    def _widened(
        self, pool: bytes, place: int, sequences: bytes, step: Step
    ) -> tuple[DeviceArray, bytes, bytes]:
        """The sequence's pages in bf16, and the pool and the sequences that name them."""
        pages, kv_heads = step.tables.shape[1], self.shape.kv_heads
        wide = PagePool(self.take((pages, page_bytes("bf16", 1, kv_heads)), "u8"), "bf16", 1, kv_heads)
        self.library.get("rope.cu", "kv_widen", KV=KV_KINDS[self.pool.kind]).launch(
            (PAGE_TOKENS // 8, pages, kv_heads), 256, wide.data, pool, place, sequences, step.rows
        )
        line = attrs.evolve(step, tables=self.line)
        return wide.data, wide.pack(pages), pack_sequences(line)
