"""How a token's keys and values are stored: one row a format.

Owns byte counts and the NumPy codecs; CUDA kernels follow the same rules.  ``encode`` takes float32
rows (..., dim) to bytes (..., row bytes); ``decode`` gives back the float32 values that attention sees.

| format | rule of one row of ``dim`` elements |
|---|---|
| fp32 | exact; for reference runs |
| bf16 | round to nearest even |
| int8 | groups of 64, scale fp16(amax / 127), round to nearest even, clamped to +-127 |
| fp8 | e4m3fn, one scale fp16(clamp(amax / 448, 2^-24, 65504)) |
| nvfp4 | e2m1 in groups of 16 with e4m3 scale amax / 6, after a fixed rotation |
| k8v4 | keys as fp8, values as nvfp4 |

The one thing a reader would get wrong: the nvfp4 rotation is orthogonal and private; ``decode``
rotates back, so nobody else ever sees rotated values.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import attrs
import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]

GROUP8 = 64  # elements that share an int8 scale
GROUP4 = 16  # elements that share an nvfp4 scale
E2M1_STEPS = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)


@attrs.frozen
class Codec:
    """One way to store a row.  ``row_bytes`` is a function of the row's elements."""

    row_bytes: Callable[[int], int]
    encode: Callable[[Floats], Bytes]
    decode: Callable[[Bytes], Floats]


@attrs.frozen
class KVFormat:
    """A cache format: how keys and how values are stored."""

    name: str
    key: Codec
    value: Codec

    def token_bytes(self, kv_heads: int, dim: int) -> int:
        """Bytes of one token in one attention layer, keys and values together."""
        return kv_heads * (self.key.row_bytes(dim) + self.value.row_bytes(dim))


def _encode_fp32(x: Floats) -> Bytes:
    return np.ascontiguousarray(x, np.float32).view(np.uint8)


def _decode_fp32(codes: Bytes) -> Floats:
    return codes.view(np.float32)


def _encode_bf16(x: Floats) -> Bytes:
    return np.ascontiguousarray(x).astype(ml_dtypes.bfloat16).view(np.uint8)


def _decode_bf16(codes: Bytes) -> Floats:
    values: Floats = codes.view(ml_dtypes.bfloat16).astype(np.float32)
    return values


def _encode_int8(x: Floats) -> Bytes:
    groups = x.reshape(*x.shape[:-1], -1, GROUP8)
    scale = (np.abs(groups).max(-1) / np.float32(127)).astype(np.float16)
    inverse = _reciprocal(scale.astype(np.float32))
    codes = np.clip(np.rint(groups * inverse[..., None]), -127, 127).astype(np.int8)
    return _pack(codes.reshape(x.shape).view(np.uint8), scale.view(np.uint8))


def _decode_int8(raw: Bytes) -> Floats:
    elements = raw.shape[-1] * GROUP8 // (GROUP8 + 2)
    codes, scale = _unpack(raw, elements)
    values = codes.view(np.int8).astype(np.float32).reshape(*raw.shape[:-1], -1, GROUP8)
    scaled: Floats = values * scale.view(np.float16).astype(np.float32)[..., None]
    return scaled.reshape(*raw.shape[:-1], elements)


def _encode_fp8(x: Floats) -> Bytes:
    peak = np.abs(x).max(-1, keepdims=True) / np.float32(448)
    scale = np.clip(peak, np.float32(2**-24), np.float32(65504)).astype(np.float16)
    inverse = _reciprocal(scale.astype(np.float32))
    codes = np.clip(x * inverse, -448, 448).astype(ml_dtypes.float8_e4m3fn)
    return _pack(codes.view(np.uint8), scale.view(np.uint8))


def _decode_fp8(raw: Bytes) -> Floats:
    codes, scale = _unpack(raw, raw.shape[-1] - 2)
    values: Floats = codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    values *= scale.view(np.float16).astype(np.float32)
    return values


def _encode_nvfp4(x: Floats) -> Bytes:
    groups = (x @ rotation(x.shape[-1])).reshape(*x.shape[:-1], -1, GROUP4)
    peak = np.clip(np.abs(groups).max(-1) / np.float32(6), 0, 448)
    scale = peak.astype(ml_dtypes.float8_e4m3fn)
    scaled = groups * _reciprocal(scale.astype(np.float32))[..., None]
    codes = scaled.reshape(x.shape).astype(ml_dtypes.float4_e2m1fn).view(np.uint8)
    pairs = codes[..., 0::2] | codes[..., 1::2] << np.uint8(4)
    return _pack(pairs, scale.view(np.uint8))


def _decode_nvfp4(raw: Bytes) -> Floats:
    elements = raw.shape[-1] * GROUP4 // (GROUP4 // 2 + 1)
    packed, scale = _unpack(raw, elements // 2)
    codes = np.stack((packed & 15, packed >> 4), -1).reshape(*raw.shape[:-1], -1, GROUP4)
    values = np.where(codes & 8, -E2M1_STEPS[codes & 7], E2M1_STEPS[codes & 7])
    values *= scale.view(ml_dtypes.float8_e4m3fn).astype(np.float32)[..., None]
    turned: Floats = values.reshape(*raw.shape[:-1], elements) @ rotation(elements).T
    return turned


@lru_cache(maxsize=4)
def rotation(dim: int) -> Floats:
    """A fixed orthogonal (dim, dim) matrix: signs, then a Hadamard transform.  ``dim`` a power of 2."""
    if dim & (dim - 1):
        raise ValueError(f"nvfp4 cache: head_dim {dim} is no power of 2")
    matrix = np.ones((1, 1), np.float32)
    while len(matrix) < dim:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    signs = np.where(np.arange(dim, dtype=np.uint32) * np.uint32(2654435761) >> 31, -1.0, 1.0)
    spread: Floats = (signs[:, None] * matrix / np.sqrt(dim)).astype(np.float32)
    return spread


def _reciprocal(scale: Floats) -> Floats:
    return np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale > 0)


def _pack(codes: Bytes, scales: Bytes) -> Bytes:
    return np.concatenate((codes, scales), axis=-1)


def _unpack(raw: Bytes, codes: int) -> tuple[Bytes, Bytes]:
    return np.ascontiguousarray(raw[..., :codes]), np.ascontiguousarray(raw[..., codes:])


FP32 = Codec(lambda dim: 4 * dim, _encode_fp32, _decode_fp32)
BF16 = Codec(lambda dim: 2 * dim, _encode_bf16, _decode_bf16)
INT8 = Codec(lambda dim: dim + 2 * dim // GROUP8, _encode_int8, _decode_int8)
FP8 = Codec(lambda dim: dim + 2, _encode_fp8, _decode_fp8)
NVFP4 = Codec(lambda dim: dim // 2 + dim // GROUP4, _encode_nvfp4, _decode_nvfp4)

KV_FORMATS: dict[str, KVFormat] = {
    row.name: row
    for row in (
        KVFormat("fp32", FP32, FP32),
        KVFormat("bf16", BF16, BF16),
        KVFormat("int8", INT8, INT8),
        KVFormat("fp8", FP8, FP8),
        KVFormat("nvfp4", NVFP4, NVFP4),
        KVFormat("k8v4", FP8, NVFP4),
    )
}
