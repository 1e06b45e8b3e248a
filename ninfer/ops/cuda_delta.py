"""Launches of the Gated DeltaNet kernels: a step, a prompt, a fold.

The one thing a reader would get wrong: decode advances a slot inside the kernel, prefill needs
``delta_ring`` behind it, and fold needs it once for all layers.
"""

from __future__ import annotations

import struct

import attrs

from ninfer.kernels_cu.arrays import DeviceArray
from ninfer.kernels_cu.pack import Library
from ninfer.ops.cuda_state import (
    NO_RECORD,
    DeltaWeights,
    ImagePool,
    Records,
    Shape,
    Take,
    pack_sequences,
)
from ninfer.ops.verbs import Step

SPAN = 16  # tokens that delta_prefill.cu stages at once


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
            512,
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
        shape, count, take = self.shape, step.rows, self.take
        padded = -(-count // SPAN) * SPAN
        q, k = take((count, shape.key_width), "f32"), take((count, shape.key_width), "f32")
        v, o = take((count, shape.value_width), "f32"), take((count, shape.value_width), "f32")
        decay, beta = take((shape.value_heads, padded), "f32"), take((shape.value_heads, padded), "f32")
        image, heads = self.images.pack(layer), 2 * shape.key_heads + shape.value_heads
        get = self.library.get
        get("delta_prefill.cu", "delta_prepare").launch(
            (padded // SPAN, -(-heads // 4)),
            128,
            *(
                q,
                k,
                v,
                decay,
                beta,
                rows.pack(),
                weights.pack(shape),
                image,
                step.slots,
                step.frontiers,
                count,
            ),
            dependent=self.dependent,
        )
        get("delta_prefill.cu", "delta_recur").launch(
            (8, shape.value_heads),
            128,
            *(o, q, k, v, decay, beta, image, step.slots, shape.key_heads, shape.value_heads, count),
        )
        out = take(rows.z.shape, "bf16")
        total = count * shape.value_heads
        get("delta_prefill.cu", "delta_norm").launch(
            -(-total // 8), 256, out, o, rows.z, weights.norm, total, shape.eps
        )
        get("delta_step.cu", "delta_ring").launch(
            (-(-shape.channels // 256), 1, 1),
            256,
            *(
                rows.q,
                rows.k,
                rows.v,
                shape.key_width,
                shape.value_width,
                shape.key_width,
                shape.channels,
                0,
                0,
            ),
            *(image, 0, None, step.slots, step.offsets.rows(1, 2), step.frontiers),
        )
        return out

    def fold(self, lanes: DeviceArray, slots: DeviceArray, keeps: DeviceArray) -> None:
        """Advance slots over the first ``keeps`` rows of their lanes' records, in every layer."""
        if self.records is None or self.layers is None:
            raise ValueError("fold: no records were planned")
        shape, images, count = self.shape, self.images, lanes.shape[0]
        lane, deep, width = self.records.strides
        columns, frontiers = self.records.columns, self.records.frontiers
        self.library.get("delta_step.cu", "delta_fold").launch(
            (shape.value_heads, count, images.layers),
            512,
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
