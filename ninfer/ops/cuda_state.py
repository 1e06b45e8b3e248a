"""What the CUDA verbs read and write beside their arguments: KV pages, StateImages, verification records.

Owns their layout on the device and the C structs that kernels take (pages.cuh, delta.cuh, hidden.cu).
An image is one contiguous block (recurrent states, convolution rings, last hidden state), a page is one
contiguous block of every attention layer, so copying either is one copy.

The one thing a reader would get wrong: a recurrent state is S[value dim][key dim] here and the convolution
history a ring of four columns by absolute position; neither is the NumPy layout.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import attrs

from ninfer.kernels_cu.arrays import DeviceArray
from ninfer.ops.verbs import Step

PAGE_TOKENS = 64
HEAD_DIM = 256  # of attention heads
DELTA_DIM = 128  # of keys and values of DeltaNet heads
TAPS = 4
LATE = 4  # tokens that a slot takes at once in steps of many lanes: fewer may wait in its lane's notes
NOTE = 2 * DELTA_DIM + 4  # floats that a token waits in, a value head: k, u, the decay
SPLITS, AT_ONCE = 32, 2  # of attend_decode.cu: splits of a row, pages that a block takes at once
EDGE_BYTES = 16  # at the end of an image, never used on the device: exported images have their edge there
# Cache format -> variant number of the kernels; bytes of codes and scales of one row of HEAD_DIM.
KV_KINDS = {"bf16": 0, "int8": 1, "fp8": 2, "nvfp4": 3, "k8v4": 4}
_ROW_BYTES = {
    "bf16": (512, 512),
    "int8": (264, 264),
    "fp8": (258, 258),
    "nvfp4": (144, 144),
    "k8v4": (258, 144),
}
Take = Callable[[tuple[int, ...], str], DeviceArray]


@attrs.frozen
class Shape:
    """Head counts and widths of a decoder."""

    hidden: int
    heads: int
    kv_heads: int
    key_heads: int
    value_heads: int
    eps: float

    @property
    def key_width(self) -> int:
        """Width of the q (and of the k) part of a DeltaNet layer."""
        return self.key_heads * DELTA_DIM

    @property
    def value_width(self) -> int:
        """Width of the v (and of the z) part of a DeltaNet layer."""
        return self.value_heads * DELTA_DIM

    @property
    def channels(self) -> int:
        """Channels of the causal convolution."""
        return 2 * self.key_width + self.value_width


@attrs.frozen(eq=False)
class PagePool:
    """The paged cache.

    data    (pages, page_bytes) u8
    kind    cache format, a key of ``KV_KINDS``
    layers  attention layers, the MTP layer included
    """

    data: DeviceArray
    kind: str
    layers: int
    kv_heads: int

    @property
    def part_bytes(self) -> tuple[int, int]:
        """Bytes of one head's keys and of one head's values in a page."""
        key, value = _ROW_BYTES[self.kind]
        return PAGE_TOKENS * key, PAGE_TOKENS * value

    @property
    def layer_bytes(self) -> int:
        """Bytes of one layer of a page."""
        return self.kv_heads * sum(self.part_bytes)

    @property
    def page_bytes(self) -> int:
        """Bytes of one page."""
        return self.layers * self.layer_bytes

    def pack(self, table_stride: int) -> bytes:
        """The ``Pool`` struct of pages.cuh."""
        key, value = self.part_bytes
        return struct.pack(
            "Qqiiii", self.data.ptr, self.page_bytes, key, value, self.kv_heads, table_stride
        )

    def page(self, number: int) -> DeviceArray:
        """One page as bytes."""
        return self.data.rows(number, number + 1)


def page_bytes(kind: str, layers: int, kv_heads: int) -> int:
    """Bytes of one page of a pool yet to be made."""
    return layers * kv_heads * PAGE_TOKENS * sum(_ROW_BYTES[kind])


@attrs.frozen(eq=False)
class ImagePool:
    """StateImages: (slots, image_bytes) u8 in ``data``, ``layers`` being DeltaNet layers."""

    data: DeviceArray
    shape: Shape
    layers: int

    @property
    def recurrent_bytes(self) -> int:
        """Bytes of one layer's recurrent state."""
        return self.shape.value_heads * DELTA_DIM * DELTA_DIM * 4

    @property
    def ring_bytes(self) -> int:
        """Bytes of one layer's convolution ring."""
        return TAPS * self.shape.channels * 2

    @property
    def hidden_offset(self) -> int:
        """Where the hidden state begins in an image."""
        return self.layers * (self.recurrent_bytes + self.ring_bytes)

    @property
    def image_bytes(self) -> int:
        """Bytes of one image."""
        return self.data.shape[1]

    def pack(self, layer: int) -> bytes:
        """The ``Images`` struct of delta.cuh for one layer."""
        ring = self.layers * self.recurrent_bytes + layer * self.ring_bytes
        return struct.pack("Qqqq", self.data.ptr, self.image_bytes, layer * self.recurrent_bytes, ring)

    def pack_hidden(self) -> bytes:
        """The ``Saved`` struct of hidden.cu."""
        return struct.pack("Qq", self.data.ptr + self.hidden_offset, self.image_bytes)

    def image(self, slot: int) -> DeviceArray:
        """One image as bytes."""
        return self.data.rows(slot, slot + 1)


def image_bytes(shape: Shape, layers: int) -> int:
    """Bytes of one image of a pool yet to be made, room for its edge included; a multiple of 256."""
    fixed = ImagePool(DeviceArray(0, (0, 0), "u8"), shape, layers).hidden_offset
    return -(-(fixed + shape.hidden * 2 + EDGE_BYTES) // 256) * 256


@attrs.frozen(eq=False)
class Records:
    """What verifications leave for ``fold``, by lane.

    columns    (lanes, layers, rows, width) bf16: raw convolution inputs, then a, then b
    hidden     (lanes, rows, hidden) bf16
    frontiers  (lanes,) i32: tokens before the recorded rows
    """

    columns: DeviceArray
    hidden: DeviceArray
    frontiers: DeviceArray

    @classmethod
    def take(cls, take: Take, shape: Shape, layers: int, lanes: int, rows: int) -> Records:
        """Place records for verifications of at most ``rows`` rows."""
        width = record_width(shape)
        return cls(
            take((lanes, layers, rows, width), "bf16"),
            take((lanes, rows, shape.hidden), "bf16"),
            take((lanes,), "i32"),
        )

    @property
    def rows(self) -> int:
        """How many rows a record holds."""
        return self.columns.shape[2]

    @property
    def strides(self) -> tuple[int, int, int]:
        """Elements between lanes, layers and rows."""
        _, layers, rows, width = self.columns.shape
        return layers * rows * width, rows * width, width

    def pack(self, layer: int, lanes: DeviceArray) -> bytes:
        """The ``Record`` struct of delta_step.cu for one layer."""
        lane, deep, width = self.strides
        base = self.columns.ptr + layer * deep * 2
        return struct.pack("QQQqqii", base, self.frontiers.ptr, lanes.ptr, lane, deep, width, 1)


@attrs.frozen(eq=False)
class Notes:
    """What tokens bring to recurrent states that are not written in every step, by lane.

    data  (lanes, layers, value heads, LATE - 1, NOTE) f32: k, u, the decay
    """

    data: DeviceArray

    @classmethod
    def take(cls, take: Take, shape: Shape, layers: int, lanes: int) -> Notes:
        """Place notes of as many tokens as a slot may be behind."""
        return cls(take((lanes, layers, shape.value_heads, LATE - 1, NOTE), "f32"))

    def pack(self, layer: int, lanes: DeviceArray, lags: DeviceArray | None = None) -> bytes:
        """The ``Notes`` struct of delta_lanes.cu for one layer."""
        _, layers, heads, most, width = self.data.shape
        deep = heads * most * width
        lagged, base = 0 if lags is None else lags.ptr, self.data.ptr + 4 * layer * deep
        return struct.pack("QQQqqii", base, lagged, lanes.ptr, layers * deep, deep, most, 0)


NO_NOTES = struct.pack("QQQqqii", 0, 0, 0, 0, 0, 0, 0)
NO_RECORD = struct.pack("QQQqqii", 0, 0, 0, 0, 0, 0, 0)


def record_width(shape: Shape) -> int:
    """Elements of one recorded row, rounded up to whole 16-byte runs."""
    return -(-(shape.channels + 2 * shape.value_heads) // 8) * 8


def pack_sequences(step: Step) -> bytes:
    """The ``Sequences`` struct of pages.cuh."""
    return struct.pack(
        "QQQii", step.tables.ptr, step.offsets.ptr, step.frontiers.ptr, step.sequences, step.first
    )


@attrs.frozen(eq=False)
class DeltaWeights:
    """The small weights of one DeltaNet layer."""

    convolution: DeviceArray
    a_log: DeviceArray
    dt_bias: DeviceArray
    norm: DeviceArray

    def pack(self, shape: Shape) -> bytes:
        """The ``DeltaLayer`` struct of delta.cuh."""
        pointers = (self.convolution.ptr, self.a_log.ptr, self.dt_bias.ptr, self.norm.ptr)
        return struct.pack("QQQQiifi", *pointers, shape.key_heads, shape.value_heads, shape.eps, 0)
