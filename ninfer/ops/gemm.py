"""cuBLASLt through ctypes: bf16 products for many rows, with an algorithm pinned for each matrix shape.

Owns a handle and its fixed workspace, so products may be captured.  The algorithm for (N, K, output kind)
is chosen once, for ``TUNED_ROWS`` rows and without split sums, and kept for every number of rows: a row's
sum then runs over K in one order, whatever chunk it comes in.

The one thing a reader would get wrong: cuBLAS is column-major.  y (T, N) = x (T, K) @ w (N, K).T is asked
for as y.T (N, T) = w.T.T @ x.T, so "m" is N and "n" is T.
"""

from __future__ import annotations

import ctypes
from typing import Any, Protocol

import attrs

from ninfer.faults import StartupError
from ninfer.kernels_cu.arrays import DeviceArray
from ninfer.kernels_cu.driver import DriverError
from ninfer.kernels_cu.libraries import find_library

WORKSPACE_BYTES = 32 << 20
TUNED_ROWS = 2048
_COMPUTE_32F, _R_32F, _R_16BF = 68, 0, 14
_TRANS_A, _PREF_WORKSPACE, _PREF_REDUCTION = 3, 1, 3
_TYPES = {"bf16": _R_16BF, "f32": _R_32F}
_ONE, _ZERO = ctypes.byref(ctypes.c_float(1)), ctypes.byref(ctypes.c_float(0))


class _Choice(ctypes.Structure):
    """One answer of the heuristic; its first 64 bytes are the algorithm."""

    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


class Gemm(Protocol):
    """A product for many rows."""

    def __call__(
        self, x: DeviceArray, w: DeviceArray, out: DeviceArray, add: DeviceArray | None = None
    ) -> None:
        """out = x @ w.T (+ add): x (T, K) bf16, w (N, K) bf16, out (T, N) bf16 or f32, add like out."""


@attrs.define(eq=False)
class CublasLt:
    """Products on ``stream`` with a workspace of ``WORKSPACE_BYTES``."""

    workspace: DeviceArray
    stream: int = 0
    _lib: Any = None
    _handle: Any = None
    _product: Any = None
    _pinned: dict[tuple[int, int, str, bool], Any] = attrs.field(factory=dict)
    _layouts: dict[tuple[int, int, int, int], Any] = attrs.field(factory=dict)

    def __attrs_post_init__(self) -> None:
        path = find_library("cublasLt")
        if path is None:
            raise StartupError("cuBLAS is missing: install the extra ninfer[cuda13] or ninfer[cuda12]")
        self._lib = ctypes.CDLL(path)
        self._handle, self._product = ctypes.c_void_p(), ctypes.c_void_p()
        self._do("Create", ctypes.byref(self._handle))
        self._do("MatmulDescCreate", ctypes.byref(self._product), _COMPUTE_32F, _R_32F)
        transposed = ctypes.c_int(1)
        self._do(
            "MatmulDescSetAttribute", self._product, _TRANS_A, ctypes.byref(transposed), ctypes.c_size_t(4)
        )

    def _do(self, call: str, *arguments: Any) -> None:
        code = getattr(self._lib, f"cublasLt{call}")(*arguments)
        if code:
            raise DriverError(f"cublasLt{call}", code)

    def __call__(
        self, x: DeviceArray, w: DeviceArray, out: DeviceArray, add: DeviceArray | None = None
    ) -> None:
        """Multiply; see ``Gemm``.  Raises ValueError on shapes, DriverError when cuBLAS refuses."""
        (rows, columns), width = x.shape, w.shape[0]
        if (
            w.shape[1] != columns
            or out.shape != (rows, width)
            or (add is not None and add.shape != out.shape)
        ):
            raise ValueError(f"gemm: {x.shape} @ {w.shape}.T -> {out.shape}")
        algorithm = self._algorithm(width, columns, out.kind, add is not None)
        left, right = self._layout(_R_16BF, columns, width), self._layout(_R_16BF, columns, rows)
        result = self._layout(_TYPES[out.kind], width, rows)
        self._do(
            "Matmul", self._handle, self._product,
            _ONE, ctypes.c_void_p(w.ptr), left, ctypes.c_void_p(x.ptr), right,
            _ZERO if add is None else _ONE, ctypes.c_void_p((add or out).ptr), result,
            ctypes.c_void_p(out.ptr), result, algorithm,
            ctypes.c_void_p(self.workspace.ptr), ctypes.c_size_t(self.workspace.nbytes),
            ctypes.c_void_p(self.stream),
        )  # fmt: skip

    def _layout(self, kind: int, rows: int, columns: int) -> Any:
        key = (kind, rows, columns, rows)
        if key not in self._layouts:
            made = ctypes.c_void_p()
            self._do(
                "MatrixLayoutCreate", ctypes.byref(made), kind,
                ctypes.c_uint64(rows), ctypes.c_uint64(columns), ctypes.c_int64(rows),
            )  # fmt: skip
            self._layouts[key] = made
        return self._layouts[key]

    def _algorithm(self, width: int, columns: int, kind: str, adds: bool) -> Any:
        key = (width, columns, kind, adds)
        if key not in self._pinned:
            self._pinned[key] = ctypes.byref(self._choose(width, columns, kind).algorithm)
        return self._pinned[key]

    def _choose(self, width: int, columns: int, kind: str) -> _Choice:
        preference, count = ctypes.c_void_p(), ctypes.c_int()
        limit, no_split = ctypes.c_uint64(self.workspace.nbytes), ctypes.c_uint32(0)
        self._do("MatmulPreferenceCreate", ctypes.byref(preference))
        for attribute, value in ((_PREF_WORKSPACE, limit), (_PREF_REDUCTION, no_split)):
            size = ctypes.c_size_t(ctypes.sizeof(value))
            self._do("MatmulPreferenceSetAttribute", preference, attribute, ctypes.byref(value), size)
        result = self._layout(_TYPES[kind], width, TUNED_ROWS)
        choice = _Choice()
        self._do(
            "MatmulAlgoGetHeuristic", self._handle, self._product,
            self._layout(_R_16BF, columns, width), self._layout(_R_16BF, columns, TUNED_ROWS),
            result, result, preference, 1, ctypes.byref(choice), ctypes.byref(count),
        )  # fmt: skip
        self._do("MatmulPreferenceDestroy", preference)
        if not count.value:
            raise StartupError(f"cuBLAS has no product of {columns} by {width} for this card")
        return choice
