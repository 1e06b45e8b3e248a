"""Host memory in the place of device memory: arrays out of NumPy, and NumPy views of arrays.

The one thing a reader would get wrong: ``take`` poisons what it lends (every byte 0xff, NaN as floats),
so a kernel that reads what nobody wrote is seen.
"""

from __future__ import annotations

import ctypes
from typing import Any

import ml_dtypes
import numpy as np

from ninfer.kernels_cu.arrays import KIND_BYTES, DeviceArray
from tests.emulator import KINDS

DTYPES = {
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "i32": np.dtype(np.int32),
    "u32": np.dtype(np.uint32),
    "u64": np.dtype(np.uint64),
    "i64": np.dtype(np.int64),
    "u8": np.dtype(np.uint8),
}


def take(shape: tuple[int, ...], kind: str) -> DeviceArray:
    """Lend a poisoned array at a multiple of 256 bytes."""
    nbytes = int(np.prod(shape)) * KIND_BYTES[kind]
    room = np.full(nbytes + 256, 0xFF, np.uint8)
    at = -room.ctypes.data % 256
    return DeviceArray(room.ctypes.data + at, shape, kind, room)


def zeros(shape: tuple[int, ...], kind: str) -> DeviceArray:
    """Lend a zeroed array."""
    made = take(shape, kind)
    seen(made)[...] = 0
    return made


def on_device(values: Any) -> DeviceArray:
    """Copy a NumPy array to an aligned device array."""
    values = np.ascontiguousarray(values)
    made = take(values.shape, KINDS[str(values.dtype)])
    seen(made)[...] = values
    return made


def seen(array: DeviceArray) -> Any:
    """The NumPy view of a device array's memory; keeps the array alive."""
    rows, between = (array.shape[0], array.pitch) if array.pitch else (1, array.size)
    raw = (ctypes.c_uint8 * max(1, rows * between * KIND_BYTES[array.kind])).from_address(array.ptr)
    raw.array = array  # type: ignore[attr-defined]
    found = np.frombuffer(raw, DTYPES[array.kind], rows * between)
    return found.reshape(rows, between)[:, : array.shape[1]] if array.pitch else found.reshape(array.shape)


def gemm(x: DeviceArray, w: DeviceArray, out: DeviceArray, add: DeviceArray | None = None) -> None:
    """Stands in for cuBLAS: out = x @ w.T (+ add), row by row, so that a row's bits are its own."""
    matrix = seen(w).astype(np.float32)
    product = np.stack([matrix @ row for row in seen(x).astype(np.float32)])
    seen(out)[...] = product if add is None else product + seen(add)
