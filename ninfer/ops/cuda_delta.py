"""Launches of the Gated DeltaNet kernels: a step, a prompt, a fold.

The one thing a reader would get wrong: decode moves the convolution history inside the kernel, prefill
needs ``delta_ring`` behind it, and fold needs it once for all layers.
"""

from __future__ import annotations

import struct

import attrs

from ninfer.kernels_cu.arrays import DeviceArray
from ninfer.kernels_cu.pack import Kernel, Library
from ninfer.ops.cuda_state import (
    DELTA_DIM,
    LATE,
    NO_NOTES,
    NO_RECORD,
    NOTE,
    DeltaWeights,
    ImagePool,
    Notes,
    Records,
    Shape,
    Take,
    pack_sequences,
)
from ninfer.ops.verbs import Step

TILE, LOWER = 64, 10 * 16 * 16  # tokens of a tile; elements of a lower triangle of it
STEP_THREADS = 512  # of delta_step and delta_fold
MOST_STAGES = 3  # tiles under way in tiles_run
HELD_BYTES = 3 * DELTA_DIM * DELTA_DIM * 4  # states that a block of delta_lanes has under way
NOTE_BYTES = 3 * (LATE - 1) * NOTE * 4  # notes of those states
LANES_BYTES = HELD_BYTES + NOTE_BYTES + (7 << 10)  # with its workspace
SHARED_BY = 8  # the most value heads that may share a key head
SOLVE_BYTES = 3 * TILE * (TILE + 8) * 4 + 2 * SHARED_BY * TILE * 4  # Solve of delta_prepare.cu
STAGE_BYTES = 51 << 10  # Stage of delta_run.cuh
HOPPER_THREADS, HOPPER_BYTES = 384, 215_216  # of tiles_run in delta_hopper.cu; Tiles


@attrs.frozen(eq=False)
class DeltaRows:
    """Raw inputs of one layer: q, k, v, z and the gates a, b, all (T, width) bf16."""

    q: DeviceArray
    k: DeviceArray
    v: DeviceArray
    z: DeviceArray
    a: DeviceArray
    b: DeviceArray

    def pack(self) -> bytes:
        """The ``DeltaRows`` struct of delta.cuh."""
        pointers = (part.ptr for part in (self.q, self.k, self.v, self.a, self.b))
        return struct.pack("QQQQQiiii", *pointers, self.q.stride, self.v.stride, self.a.stride, 0)


@attrs.define(eq=False)
class Delta:
    """Runs DeltaNet layers on the slots of ``images``; ``layers`` is the table that fold reads."""

    library: Library
    take: Take
    shape: Shape
    images: ImagePool
    records: Records | None = None
    layers: DeviceArray | None = None  # u8: one DeltaLayer struct a layer
    shared_limit: int = 99 << 10
    dependent: bool = True
    blocks: int = 0  # multiprocessors, or 0: delta_step serves any number of lanes
    notes: Notes | None = None  # for steps of many lanes, which may leave slots behind
    hopper: bool = True  # whether prompts may use delta_hopper.cu where the card can run it

    def __call__(self, rows: DeltaRows, weights: DeltaWeights, layer: int, step: Step) -> DeviceArray:
        """Run one layer over a step's rows.  -> (T, value_width) bf16."""
        if step.kind == "prefill":
            return self._prefill(rows, weights, layer, step)
        if step.kind == "decode" and self.many(step.sequences):
            return self._lanes(rows, weights, layer, step)
        out = self.take(rows.z.shape, "bf16")
        record = NO_RECORD
        if step.kind == "verify":
            if self.records is None:
                raise ValueError("verify: no records were planned")
            record = self.records.pack(layer, step.lanes)
        self.library.get("delta_step.cu", "delta_step").launch(
            (self.shape.value_heads, step.sequences),
            STEP_THREADS,
            out,
            rows.z,
            rows.pack(),
            weights.pack(self.shape),
            self.images.pack(layer),
            pack_sequences(step),
            step.slots,
            record,
            dependent=self.dependent,
        )
        if step.kind == "tail":
            self._ring(rows, layer, step)
        return out

    def many(self, sequences: int) -> bool:
        """Whether delta_lanes takes a step of so many: more pairs of head and sequence than blocks."""
        pairs = self.shape.value_heads * sequences
        return 0 < self.blocks < pairs and self.shared_limit >= LANES_BYTES

    def lagging(self, sequences: int) -> bool:
        """Whether a decode step of so many sequences needs lags, and may leave slots behind."""
        return self.notes is not None and self.many(sequences)

    def _lanes(self, rows: DeltaRows, weights: DeltaWeights, layer: int, step: Step) -> DeviceArray:
        """Take a step of more pairs of head and sequence than multiprocessors."""
        out, notes = self.take(rows.z.shape, "bf16"), NO_NOTES
        if self.notes is not None and step.lags is not None:
            notes = self.notes.pack(layer, step.lanes, step.lags)
        self.library.get("delta_lanes.cu", "delta_lanes").launch(
            self.blocks,
            STEP_THREADS,
            *(out, rows.z, rows.pack(), weights.pack(self.shape), self.images.pack(layer)),
            *(pack_sequences(step), step.slots, notes),
            shared=HELD_BYTES + NOTE_BYTES,
            dependent=self.dependent,
        )
        return out

    def _prefill(self, rows: DeltaRows, weights: DeltaWeights, layer: int, step: Step) -> DeviceArray:
        shape, get = self.shape, self.library.get
        o = self._tiles(rows, weights, layer, step)
        out, total = self.take(rows.z.shape, "bf16"), step.rows * shape.value_heads
        get("delta_tiles.cu", "delta_norm", STAGES=1).launch(
            -(-total // 64),
            256,
            out,
            o,
            rows.z,
            rows.z.stride,
            weights.norm,
            shape.value_heads,
            total,
            shape.eps,
        )
        self._ring(rows, layer, step)
        return out

    def _ring(self, rows: DeltaRows, layer: int, step: Step) -> None:
        """Move the convolution history behind the rows of the one sequence."""
        shape = self.shape
        self.library.get("delta_step.cu", "delta_ring").launch(
            (-(-shape.channels // 256), 1, 1),
            256,
            *(rows.q, rows.k, rows.v, rows.q.stride, rows.v.stride, shape.key_width),
            *(shape.channels, 0, 0, self.images.pack(layer), 0, None, step.slots),
            *(step.offsets.rows(1, 2), step.frontiers),
        )

    def _walker(self) -> tuple[Kernel, int, int]:
        """What walks the tiles of a prompt here: kernel, threads, shared bytes."""
        if self.hopper and self.shared_limit >= HOPPER_BYTES and self.library.supports("delta_hopper.cu"):
            return self.library.get("delta_hopper.cu", "tiles_run"), HOPPER_THREADS, HOPPER_BYTES
        stages = min(MOST_STAGES, max(1, self.shared_limit // STAGE_BYTES))
        return self.library.get("delta_tiles.cu", "tiles_run", STAGES=stages), 128, stages * STAGE_BYTES

    def _tiles(self, rows: DeltaRows, weights: DeltaWeights, layer: int, step: Step) -> DeviceArray:
        """Run the delta rule tile by tile.  -> o (T, value_width) bf16."""
        shape, count, take, get = self.shape, step.rows, self.take, self.library.get
        keys, values, image = shape.key_heads, shape.value_heads, self.images.pack(layer)
        tiles = (count + 2 * TILE - 2) // TILE  # whatever the place of the first row in its tile
        q, k, v = (take((tiles, n, TILE, DELTA_DIM), "bf16") for n in (keys, keys, values))
        lower = take((tiles, values, 2, LOWER), "bf16")
        into, out_of = (take((values, tiles, TILE), "f32") for _ in range(2))
        prepared = struct.pack("6Q", q.ptr, k.ptr, v.ptr, lower.ptr, into.ptr, out_of.ptr)
        get("delta_prepare.cu", "tiles_prepare").launch(
            (keys + -(-values // 2), tiles),
            256,
            *(prepared, rows.pack(), weights.pack(shape), image),
            struct.pack("QQii", step.slots.ptr, step.frontiers.ptr, count, tiles),
            shared=SOLVE_BYTES,
        )
        out = take((count, shape.value_width), "bf16")
        walk, threads, shared = self._walker()
        walk.launch(
            (2, values),
            threads,
            *(out, prepared + struct.pack("iiii", keys, values, tiles, 0)),
            *(image, step.slots, step.frontiers, count),
            shared=shared,
        )
        return out

    def catch_up(self, lanes: DeviceArray, slots: DeviceArray, counts: DeviceArray) -> None:
        """Bring the first ``counts`` notes of lanes into the states of slots, in every layer."""
        if self.notes is None:
            raise ValueError("catch_up: no notes were planned")
        images = self.images
        self.library.get("delta_lanes.cu", "delta_catch_up").launch(
            (self.shape.value_heads, lanes.shape[0], images.layers),
            STEP_THREADS,
            *(self.notes.pack(0, lanes), slots, counts, images.pack(0), images.recurrent_bytes),
            dependent=self.dependent,
        )

    def fold(self, lanes: DeviceArray, slots: DeviceArray, keeps: DeviceArray) -> None:
        """Advance slots over the first ``keeps`` rows of their lanes' records, in every layer."""
        if self.records is None or self.layers is None:
            raise ValueError("fold: no records were planned")
        shape, images, count = self.shape, self.images, lanes.shape[0]
        lane, deep, width = self.records.strides
        columns, frontiers = self.records.columns, self.records.frontiers
        self.library.get("delta_step.cu", "delta_fold").launch(
            (shape.value_heads, count, images.layers),
            STEP_THREADS,
            *(
                columns,
                lane,
                deep,
                width,
                self.layers,
                images.pack(0),
                images.recurrent_bytes,
                images.ring_bytes,
            ),
            *(lanes, slots, keeps, frontiers),
            dependent=self.dependent,
        )
        flat = columns.reshape(columns.size)
        self.library.get("delta_step.cu", "delta_ring").launch(
            (-(-shape.channels // 256), count, images.layers),
            256,
            *(flat, flat.rows(shape.key_width, flat.size), flat.rows(2 * shape.key_width, flat.size)),
            *(width, width, shape.key_width, shape.channels, lane, deep, images.pack(0), images.ring_bytes),
            *(lanes, slots, keeps, frontiers),
        )
