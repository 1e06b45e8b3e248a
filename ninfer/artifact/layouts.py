"""Storage layouts: where the planes of a tensor lie, and the codecs between bytes and float32.

Owns sizes, plane offsets and packing; ``formats`` owns the numbers in them.  Every decoder takes a
range of rows and touches no byte of another row; ``Encoder`` fills an object block by block, so a
matrix never has to exist in float32 as a whole.

The one thing a reader would get wrong: a row is the last axis; leading axes are laid out as more
rows, and ``row_split_k128_v1`` pads each row to 128 columns.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from ninfer.artifact import formats
from ninfer.artifact.formats import DIRECT, F32, FP8_ROW, GROUPED, NVFP4, Bytes, Corrupt, Grouped, align

CONTIGUOUS = "contiguous_le_v1"
ROW_SPLIT = "row_split_k128_v1"
BLOCK_SCALE = "block_scale_k16_m128x4_v1"
ROW_SCALE = "row_scale_v1"

LAYOUT_OF: Mapping[str, str] = {
    **dict.fromkeys(DIRECT, CONTIGUOUS),
    **dict.fromkeys(GROUPED, ROW_SPLIT),
    NVFP4: BLOCK_SCALE,
    FP8_ROW: ROW_SCALE,
}


class Unsupported(ValueError):
    """A pair of format and layout, or a shape, that this program does not know."""


@attrs.frozen
class Planes:
    """Byte planes of one stored matrix.

    ``rows`` x ``columns`` logical elements; ``row_bytes[p]`` bytes of plane p belong to each row
    (0 for a plane that is not row-major); plane p starts at ``offsets[p]`` and has ``sizes[p]`` bytes.
    """

    rows: int
    columns: int
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    row_bytes: tuple[int, ...]

    @property
    def total(self) -> int:
        """Encoded size in bytes."""
        return self.offsets[-1] + self.sizes[-1]


def matrix_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """Fold leading axes into rows: (..., K) -> (N, K).  Raises Unsupported below rank 2."""
    if len(shape) < 2:
        raise Unsupported(f"a quantised tensor of rank {len(shape)}")
    return math.prod(shape[:-1]), shape[-1]


def planes(form: str, shape: tuple[int, ...]) -> Planes:
    """Lay out a quantised matrix.

    q4/q8: base, scales.  q5/q6: base, high bits, scales.  nvfp4: codes, swizzled scales, divisor.
    fp8 row: codes, scales.  Raises Unsupported.
    """
    rows, columns = matrix_shape(shape)
    if form in GROUPED:
        return _row_split(GROUPED[form], rows, columns)
    if form == FP8_ROW:
        scales = align(rows * columns, 256)
        return Planes(rows, columns, (0, scales), (rows * columns, 2 * rows), (columns, 2))
    if form != NVFP4:
        raise Unsupported(f"format {form} has no planes")
    if rows % 128 or columns % 64:
        raise Unsupported(f"nvfp4 of {rows} x {columns}: rows must divide by 128, columns by 64")
    codes, scales = rows * columns // 2, rows * columns // 16
    start = align(codes, 256)
    return Planes(
        rows, columns, (0, start, start + scales), (codes, scales, 4), (columns // 2, columns // 16, 0)
    )


def _row_split(form: Grouped, rows: int, columns: int) -> Planes:
    groups = align(columns, 128) // form.group
    high = groups * (form.bits - 4) * form.group // 8 if form.bits in (5, 6) else 0
    high_at = align(rows * groups * 32, 256)
    if not high:
        return Planes(
            rows, columns, (0, high_at), (rows * groups * 32, 2 * rows * groups), (groups * 32, 2 * groups)
        )
    scale_at = high_at + align(rows * high, 256)
    sizes = (rows * groups * 32, rows * high, 2 * rows * groups)
    return Planes(rows, columns, (0, high_at, scale_at), sizes, (groups * 32, high, 2 * groups))


def encoded_bytes(form: str, layout: str, shape: tuple[int, ...]) -> int:
    """Size of a stored tensor in bytes.  Raises Unsupported for a pair or shape that is not known."""
    if form not in LAYOUT_OF:
        raise Unsupported(f"unknown format {form}")
    if LAYOUT_OF[form] != layout:
        raise Unsupported(f"format {form} in layout {layout}")
    if form in DIRECT:
        return math.prod(shape) * DIRECT[form].itemsize
    return planes(form, shape).total


def nvfp4_scale_offsets(rows: range, columns: int) -> npt.NDArray[np.int64]:
    """Byte offset in the scale plane of every (row, group): the 128 x 4 tile order of cuBLASLt."""
    n = np.arange(rows.start, rows.stop, dtype=np.int64)[:, None]
    g = np.arange(columns // 16, dtype=np.int64)[None, :]
    tile = (n // 128) * (columns // 64) + g // 4
    return tile * 512 + (n % 32) * 16 + ((n % 128) // 32) * 4 + g % 4


def _pack_nibbles(low: Bytes) -> Bytes:
    return low[..., 0::2] | (low[..., 1::2] << np.uint8(4))


def _unpack_nibbles(packed: Bytes) -> Bytes:
    out = np.empty((*packed.shape[:-1], packed.shape[-1] * 2), np.uint8)
    np.bitwise_and(packed, 15, out=out[..., 0::2])
    np.right_shift(packed, 4, out=out[..., 1::2])
    return out


def _pack_high(codes: Bytes, bits: int) -> Bytes:
    """(n, lanes) codes -> (n, lanes * bits / 8): bits 4.. of each lane, lowest first, as one bit stream."""
    stream = np.stack([(codes >> np.uint8(4 + bit)) & np.uint8(1) for bit in range(bits)], axis=-1)
    return np.packbits(stream.reshape(len(codes), -1), axis=1, bitorder="little")


def _unpack_high(packed: Bytes, bits: int) -> Bytes:
    stream = np.unpackbits(packed, axis=1, bitorder="little").reshape(len(packed), -1, bits)
    high = stream[..., 0] << np.uint8(4)
    for bit in range(1, bits):
        high |= stream[..., bit] << np.uint8(4 + bit)
    return high


def _split_codes(codes: npt.NDArray[np.int8], bits: int) -> tuple[Bytes, ...]:
    raw = codes.view(np.uint8)
    if bits == 8:
        return (raw,)
    base = _pack_nibbles(raw & np.uint8(15))
    return (base,) if bits == 4 else (base, _pack_high(raw, bits - 4))


def _join_codes(parts: list[Bytes], bits: int) -> npt.NDArray[np.int8]:
    if bits == 8:
        return parts[0].view(np.int8)
    raw = _unpack_nibbles(parts[0])
    if bits > 4:
        raw |= _unpack_high(parts[1], bits - 4)
    sign = np.uint8(1 << (bits - 1))
    return ((raw ^ sign).view(np.int8) - sign.view(np.int8)).astype(np.int8)


class Encoder:
    """Fills one stored matrix block by block.  ``data`` is the object's bytes, uint8."""

    def __init__(self, form: str, shape: tuple[int, ...], divisor: np.float32 | None = None) -> None:
        self.form = form
        self.planes = planes(form, shape)
        self.data: Bytes = np.zeros(self.planes.total, np.uint8)
        self._divisor = divisor
        if form == NVFP4:
            if divisor is None:
                raise ValueError("nvfp4 needs its divisor before the first row")
            self.data[-4:] = np.frombuffer(divisor.astype("<f4").tobytes(), np.uint8)

    def put(self, begin: int, values: F32) -> None:
        """Encode rows ``begin`` .. of float32 values (n, K).  Raises formats.Unencodable."""
        if self.form in GROUPED:
            form = GROUPED[self.form]
            codes, scales = formats.encode_grouped(values, form)
            stored = (*_split_codes(codes, form.bits), scales.astype("<f2").view(np.uint8))
        elif self.form == FP8_ROW:
            codes8, row_scales = formats.encode_fp8_row(values)
            stored = (codes8, row_scales.astype("<u2").view(np.uint8).reshape(-1, 2))
        else:
            stored = self._put_nvfp4(begin, values)
        for index, plane in enumerate(stored):
            self._rows(index, begin, len(values))[:] = plane

    def _put_nvfp4(self, begin: int, values: F32) -> tuple[Bytes]:
        assert self._divisor is not None
        codes, scales = formats.encode_nvfp4(values, self._divisor)
        where = nvfp4_scale_offsets(range(begin, begin + len(values)), self.planes.columns)
        self.data[self.planes.offsets[1] + where] = scales
        return (_pack_nibbles(codes),)

    def _rows(self, plane: int, begin: int, count: int) -> Bytes:
        width = self.planes.row_bytes[plane]
        start = self.planes.offsets[plane] + begin * width
        return self.data[start : start + count * width].reshape(count, width)


def encode(values: npt.NDArray[Any], form: str) -> Bytes:
    """Encode a whole array in ``form`` and its layout; returns the object's bytes as uint8.

    Raises Unsupported, formats.Unencodable.
    """
    if form in DIRECT:
        return np.frombuffer(np.ascontiguousarray(values).astype(DIRECT[form]).tobytes(), np.uint8)
    matrix = np.asarray(values, np.float32).reshape(matrix_shape(values.shape))
    divisor = formats.nvfp4_divisor(float(np.abs(matrix).max(initial=0))) if form == NVFP4 else None
    encoder = Encoder(form, values.shape, divisor)
    step = max(1, (1 << 20) // matrix.shape[1])
    for begin in range(0, len(matrix), step):
        encoder.put(begin, matrix[begin : begin + step])
    return encoder.data


def decode_rows(raw: memoryview, form: str, shape: tuple[int, ...], begin: int, end: int) -> F32:
    """Decode rows ``begin`` .. ``end`` - 1 of a stored matrix to float32 (n, K).

    Raises Unsupported, formats.Corrupt.
    """
    place = planes(form, shape)
    if not 0 <= begin <= end <= place.rows or len(raw) != place.total:
        raise ValueError(f"rows {begin}..{end} of {place.rows}, {len(raw)} bytes of {place.total}")
    data = np.frombuffer(raw, np.uint8)
    count = end - begin
    stored = [
        data[at + begin * width : at + end * width].reshape(count, width)
        for at, width in zip(place.offsets, place.row_bytes, strict=True)
    ]
    if form in GROUPED:
        kind = GROUPED[form]
        scales = stored[-1].view("<f2").astype(np.float16, copy=False)
        return formats.decode_grouped(_join_codes(stored[:-1], kind.bits), scales, kind)[:, : place.columns]
    if form == FP8_ROW:
        return formats.decode_fp8_row(stored[0], stored[1].view("<u2").reshape(count))
    scales8 = data[place.offsets[1] + nvfp4_scale_offsets(range(begin, end), place.columns)]
    return formats.decode_nvfp4(_unpack_nibbles(stored[0]), scales8, data[-4:].view("<f4")[0])


def decode_elements(
    raw: memoryview, form: str, layout: str, shape: tuple[int, ...], begin: int, end: int
) -> npt.NDArray[Any]:
    """Decode flat elements ``begin`` .. ``end`` - 1 to float32; int32 stays int32.

    Reads only the rows that hold those elements; fp32 and int32 come back as views.
    Raises Unsupported, formats.Corrupt.
    """
    if len(raw) != encoded_bytes(form, layout, shape):
        raise Corrupt(f"has {len(raw)} bytes")
    if form in DIRECT:
        width = DIRECT[form].itemsize
        flat = np.frombuffer(raw[begin * width : end * width], DIRECT[form])
        return flat.astype(np.float32) if form == "bf16" else flat
    columns = shape[-1]
    first, last = begin // columns, -(-end // columns)
    block = decode_rows(raw, form, shape, first, last).reshape(-1)
    return block[begin - first * columns : end - first * columns]
