"""Numeric formats: what a stored code means, and how float32 values become codes.

Owns the arithmetic alone (codes, scales, rounding); ``layouts`` owns where the bytes lie.
Promises the reference encoder's bits for the grouped formats: the scale is rounded to float16 first and
values are multiplied by the float32 reciprocal of that rounded scale.

The one thing a reader would get wrong: q formats and fp8 rows multiply by their scale, the nvfp4
matrix divisor divides.
"""

from __future__ import annotations

from typing import Any

import attrs
import ml_dtypes
import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

BF16 = np.dtype(ml_dtypes.bfloat16)
E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)
E2M1 = np.dtype(ml_dtypes.float4_e2m1fn)
E4M3_MAX, E2M1_MAX = 448.0, 6.0
NVFP4_GROUP = 16
E2M1_VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)

DIRECT: dict[str, np.dtype[Any]] = {
    "bf16": BF16,
    "fp32": np.dtype("<f4"),
    "int32": np.dtype("<i4"),
}


class Unencodable(ValueError):
    """Values that the format has no code for: not finite, or too large for its scale."""


class Corrupt(ValueError):
    """Stored bits that the format does not allow."""


@attrs.frozen
class Grouped:
    """Signed ``bits``-bit codes, one float16 multiplier for every ``group`` columns of a row."""

    name: str
    bits: int
    group: int

    @property
    def high(self) -> int:
        """The largest code."""
        return int(2 ** (self.bits - 1) - 1)

    @property
    def low(self) -> int:
        """The smallest code; eight-bit codes are symmetric."""
        return -self.high if self.bits == 8 else -self.high - 1


GROUPED = {
    item.name: item
    for item in (
        Grouped("q4_g64_fp16", 4, 64),
        Grouped("q5_g64_fp16", 5, 64),
        Grouped("q6_g64_fp16", 6, 64),
        Grouped("q8_g32_fp16", 8, 32),
    )
}
NVFP4 = "nvfp4"
FP8_ROW = "fp8_e4m3fn_row_bf16"
NAMES = (*DIRECT, *GROUPED, NVFP4, FP8_ROW)


def align(value: int, to: int) -> int:
    """Round up to a multiple."""
    return -(-value // to) * to


def _finite(values: F32) -> F32:
    if not np.isfinite(values).all():
        raise Unencodable("holds a value that is not finite")
    return values


def encode_grouped(values: F32, form: Grouped) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float16]]:
    """Quantise rows: (n, K) float32 -> codes (n, K padded to 128) int8, scales (n, padded / group) float16.

    Padded columns get code 0, wholly padded groups scale 0.  Raises Unencodable.
    """
    rows, columns = values.shape
    padded = np.zeros((rows, align(columns, 128)), np.float32)
    padded[:, :columns] = _finite(values)
    grouped = padded.reshape(rows, -1, form.group)
    amax = np.abs(grouped).max(axis=2)
    with np.errstate(over="ignore", under="ignore"):
        scales = (amax / np.float32(form.high)).astype(np.float16)
    if np.isinf(scales).any():
        raise Unencodable("holds a value too large for a float16 scale")
    scales[(amax > 0) & (scales == 0)] = np.finfo(np.float16).smallest_subnormal
    wide = scales.astype(np.float32)
    inverse = np.divide(np.float32(1), wide, out=np.zeros_like(wide), where=wide > 0)
    grouped *= inverse[:, :, None]
    codes = np.clip(np.rint(grouped), form.low, form.high).astype(np.int8)
    return codes.reshape(rows, -1), scales


def decode_grouped(codes: npt.NDArray[np.int8], scales: npt.NDArray[np.float16], form: Grouped) -> F32:
    """Widen codes (n, K padded) and scales (n, groups) to float32 (n, K padded).  Raises Corrupt."""
    if (scales.view(np.uint16) >= 0x7C00).any():
        raise Corrupt("holds a scale that is negative or not finite")
    if codes.size and codes.min() < form.low:
        raise Corrupt(f"holds a code below {form.low}")
    rows = len(codes)
    wide = codes.reshape(rows, -1, form.group).astype(np.float32)
    wide *= scales.astype(np.float32)[:, :, None]
    return wide.reshape(rows, -1)


def nvfp4_divisor(amax: float) -> np.float32:
    """Choose a matrix divisor: the largest group scale lands on the largest e4m3 value."""
    if not np.isfinite(amax):
        raise Unencodable("holds a value that is not finite")
    if amax == 0:
        return np.float32(1)
    return np.float32(min(E4M3_MAX * E2M1_MAX / amax, float(np.finfo(np.float32).max)))


def encode_nvfp4(values: F32, divisor: np.float32) -> tuple[Bytes, Bytes]:
    """Quantise rows (n, K), K % 16 == 0: e2m1 codes (n, K) one a byte, e4m3 scale bits (n, K / 16).

    A group that is not all zero never gets scale 0.
    """
    rows, columns = values.shape
    grouped = (_finite(values) * divisor).reshape(rows, columns // NVFP4_GROUP, NVFP4_GROUP)
    amax = np.abs(grouped).max(axis=2)
    scales = np.minimum(amax / np.float32(E2M1_MAX), np.float32(E4M3_MAX)).astype(E4M3)
    bits = scales.view(np.uint8)
    bits[(amax > 0) & (bits == 0)] = 1
    wide = scales.astype(np.float32)
    quotient = np.divide(grouped, wide[:, :, None], out=np.zeros_like(grouped), where=wide[:, :, None] > 0)
    codes = np.clip(quotient, -E2M1_MAX, E2M1_MAX).astype(E2M1).view(np.uint8) & np.uint8(15)
    return codes.reshape(rows, columns), bits


def decode_nvfp4(codes: Bytes, scales: Bytes, divisor: np.float32) -> F32:
    """Widen codes (n, K) and e4m3 scale bits (n, K / 16) to float32 (n, K).  Raises Corrupt."""
    if (scales >= 0x7F).any():
        raise Corrupt("holds a scale that is negative or not a number")
    if not (np.isfinite(divisor) and divisor > 0):
        raise Corrupt("has a matrix divisor that is not positive and finite")
    rows = len(codes)
    wide = E2M1_VALUES[codes].reshape(rows, -1, NVFP4_GROUP)
    wide *= scales.view(E4M3).astype(np.float32)[:, :, None]
    wide /= divisor
    return wide.reshape(rows, -1)


def encode_fp8_row(values: F32) -> tuple[Bytes, npt.NDArray[np.uint16]]:
    """Quantise rows (n, K): e4m3 bits (n, K) and bf16 row multiplier bits (n,)."""
    amax = np.abs(_finite(values)).max(axis=1, initial=0)
    scales = (amax / np.float32(E4M3_MAX)).astype(BF16)
    bits = scales.view(np.uint16)
    bits[(amax > 0) & (bits == 0)] = 1
    wide = scales.astype(np.float32)[:, None]
    quotient = np.divide(values, wide, out=np.zeros_like(values), where=wide > 0)
    codes = np.clip(quotient, -E4M3_MAX, E4M3_MAX).astype(E4M3)
    return codes.view(np.uint8), bits


def decode_fp8_row(codes: Bytes, scales: npt.NDArray[np.uint16]) -> F32:
    """Widen e4m3 bits (n, K) by bf16 row multipliers (n,) to float32 (n, K).  Raises Corrupt."""
    if ((codes & 0x7F) == 0x7F).any():
        raise Corrupt("holds a code that is not a number")
    wide = scales.view(BF16).astype(np.float32)
    if not np.isfinite(wide).all():
        raise Corrupt("holds a row scale that is not finite")
    values: F32 = codes.view(E4M3).astype(np.float32) * wide[:, None]
    return values
