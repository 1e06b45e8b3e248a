"""Stands in for the products of ops.gemm_bias: NumPy over planes in host memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from ninfer.kernels_cu.arrays import KIND_BYTES, DeviceArray
from ninfer.ops.gemm_bias import Plane, check_planes
from tests.emulator.memory import seen


def plane_of(plane: Plane) -> Any:
    """The NumPy view of a plane."""
    span = (plane.rows - 1) * plane.stride + plane.columns
    flat = seen(DeviceArray(plane.ptr, (span,), plane.kind, plane.owner))
    step = KIND_BYTES[plane.kind]
    return np.lib.stride_tricks.as_strided(flat, (plane.rows, plane.columns), (plane.stride * step, step))


def multiply(
    x: Plane,
    w: DeviceArray,
    out: Plane,
    bias: DeviceArray | None = None,
    *,
    gelu: bool = False,
    add: bool = False,
) -> None:
    """Implements ``PlaneGemm``."""
    check_planes(x, w, out, bias, gelu)
    y = plane_of(x).astype(np.float32) @ seen(w).astype(np.float32).T
    if bias is not None:
        y += seen(bias).astype(np.float32)
    if gelu:
        y *= 0.5 * (1 + np.tanh((2 / np.pi) ** 0.5 * (y + 0.044715 * y**3)))
    found = plane_of(out)
    found[...] = y + found if add else y
