"""Launches of the Gated DeltaNet kernels: a step, a prompt, a fold.

The one thing a reader would get wrong: decode moves the convolution history inside the kernel, prefill
needs ``delta_ring`` behind it, and fold needs it once for all layers.
"""

from __future__ import annotations

import struct

import attrs

from ninfer.kernels_cu.arrays import DeviceArray
from ninfer.kernels_cu.pack import Library
from ninfer.ops.cuda_state import (
    DELTA_DIM,
    NO_RECORD,
    DeltaWeights,
    ImagePool,
    Records,
    Shape,
    Take,
    pack_sequences,
)
from ninfer.ops.verbs import Step

TILE, SPAN = 64, 16  # tokens of a tile, and of a warp of tiles_prepare
SOLVE_BYTES = 3 * TILE * DELTA_DIM * 2 + 2 * TILE * TILE * 4 + 2 * TILE * 4  # Solve of delta_tiles.cu
STAGE_BYTES = 3 * TILE * DELTA_DIM * 2 + 2 * TILE * TILE * 2 + 2 * TILE * 4  # Stage of delta_tiles.cu
WORK_BYTES = DELTA_DIM * TILE * 2 + 2 * TILE * TILE * 2


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
        return struct.pack("QQQQQiiii", *pointers, self.q.shape[1], self.v.shape[1], self.a.shape[1], 0)


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

    def __call__(self, rows: DeltaRows, weights: DeltaWeights, layer: int, step: Step) -> DeviceArray:
        """Run one layer over a step's rows.  -> (T, value_width) bf16."""
        if step.kind == "prefill":
            return self._prefill(rows, weights, layer, step)
        out = self.take(rows.z.shape, "bf16")
        record = NO_RECORD
        if step.kind == "verify":
            if self.records is None:
                raise ValueError("verify: no records were planned")
            record = self.records.pack(layer, step.lanes)
        self.library.get("delta_step.cu", "delta_step").launch(
            (self.shape.value_heads, step.sequences),
            256,
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
        return out

    def _prefill(self, rows: DeltaRows, weights: DeltaWeights, layer: int, step: Step) -> DeviceArray:
        shape, count = self.shape, step.rows
        o = self._tiles(rows, weights, layer, step)
        out, total = self.take(rows.z.shape, "bf16"), count * shape.value_heads
        stages = self._stages
        self.library.get("delta_tiles.cu", "delta_norm", STAGES=stages).launch(
            -(-total // 8), 256, out, o, rows.z, weights.norm, total, shape.eps
        )
        self.library.get("delta_step.cu", "delta_ring").launch(
            (-(-shape.channels // 256), 1, 1),
            256,
            *(rows.q, rows.k, rows.v, shape.key_width, shape.value_width, shape.key_width),
            *(shape.channels, 0, 0, self.images.pack(layer), 0, None, step.slots),
            *(step.offsets.rows(1, 2), step.frontiers),
        )
        return out

    @property
    def _stages(self) -> int:
        return 2 if self.shared_limit >= STAGE_BYTES * 2 + WORK_BYTES else 1

    def _tiles(self, rows: DeltaRows, weights: DeltaWeights, layer: int, step: Step) -> DeviceArray:
        """Run the delta rule tile by tile.  -> o (T, value_width) float32."""
        shape, count, take, get = self.shape, step.rows, self.take, self.library.get
        keys, values, stages = shape.key_heads, shape.value_heads, self._stages
        tiles = (count + 2 * TILE - 2) // TILE  # whatever the place of the first row in its tile
        total = tiles * TILE
        q, k, v = (take((total, n * DELTA_DIM), "bf16") for n in (keys, keys, values))
        g, beta, into, out_of = (take((values, total), "f32") for _ in range(4))
        image = self.images.pack(layer)
        get("delta_tiles.cu", "tiles_prepare", STAGES=stages).launch(
            (total // SPAN, -(-(2 * keys + values) // 4)),
            128,
            *(
                q,
                k,
                v,
                g,
                beta,
                rows.pack(),
                weights.pack(shape),
                image,
                step.slots,
                step.frontiers,
                count,
                total,
            ),
            dependent=self.dependent,
        )
        mixed = take((tiles * values, TILE, TILE), "bf16")
        u, w = (take((tiles * values, TILE, DELTA_DIM), "bf16") for _ in range(2))
        solved = struct.pack("5Q", mixed.ptr, u.ptr, w.ptr, into.ptr, out_of.ptr)
        get("delta_tiles.cu", "tiles_solve", STAGES=stages).launch(
            (tiles, values),
            256,
            *(solved, q, k, v, g, beta, step.frontiers, keys, values, count, total),
            shared=SOLVE_BYTES,
        )
        o = take((count, shape.value_width), "f32")
        run = solved + struct.pack("QQiiii", q.ptr, k.ptr, keys, values, total, tiles)
        get("delta_tiles.cu", "tiles_run", STAGES=stages).launch(
            (2, values),
            256,
            *(o, run, image, step.slots, step.frontiers, count),
            shared=stages * STAGE_BYTES + WORK_BYTES,
        )
        return o

    def fold(self, lanes: DeviceArray, slots: DeviceArray, keeps: DeviceArray) -> None:
        """Advance slots over the first ``keeps`` rows of their lanes' records, in every layer."""
        if self.records is None or self.layers is None:
            raise ValueError("fold: no records were planned")
        shape, images, count = self.shape, self.images, lanes.shape[0]
        lane, deep, width = self.records.strides
        columns, frontiers = self.records.columns, self.records.frontiers
        self.library.get("delta_step.cu", "delta_fold").launch(
            (shape.value_heads, count, images.layers),
            256,
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
