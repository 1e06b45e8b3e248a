"""cuBLASLt products of the vision tower: bf16, bias and tanh GELU in the epilogue, rows that lie apart.

Shares the handle, workspace and stream of ``gemm.CublasLt``.  An item is always encoded whole, so the
algorithm may follow the number of rows: it is chosen once for each shape and power of two of rows.

The one thing a reader would get wrong: the bias has the kind of the result, float32 where that is added up
in float32.
"""

from __future__ import annotations

import ctypes
from typing import Any, Protocol

import attrs

from ninfer.faults import StartupError
from ninfer.kernels_cu.arrays import KIND_BYTES, DeviceArray
from ninfer.ops.gemm import CublasLt, _Choice

LEAST_ROWS = 256
_R_32F, _R_16BF, _COMPUTE_32F = 0, 14, 68
_TRANS_A, _EPILOGUE, _BIAS = 3, 7, 8
_PREF_WORKSPACE, _PREF_REDUCTION = 1, 3
_PREF_ALIGNMENTS = (5, 6, 7, 8)  # of A, B, C and D
_BEST_ALIGNMENT = 256
_PLAIN, _WITH_BIAS, _WITH_GELU = 1, 4, 36
_TYPES = {"bf16": _R_16BF, "f32": _R_32F}


@attrs.frozen(eq=False)
class Plane:
    """Rows of ``columns`` elements, ``stride`` elements apart; ``owner`` keeps them alive."""

    ptr: int
    rows: int
    columns: int
    stride: int
    kind: str
    owner: Any = attrs.field(default=None, repr=False)

    @classmethod
    def of(cls, array: DeviceArray) -> Plane:
        """See a dense array of two axes."""
        rows, columns = array.shape
        return cls(array.ptr, rows, columns, columns, array.kind, array)

    def lines(self, begin: int, end: int) -> Plane:
        """View rows ``begin`` .. ``end`` - 1."""
        if not 0 <= begin <= end <= self.rows:
            raise ValueError(f"rows {begin}..{end} of {self.rows}")
        step = self.stride * KIND_BYTES[self.kind]
        return attrs.evolve(self, ptr=self.ptr + begin * step, rows=end - begin)

    def band(self, begin: int, columns: int) -> Plane:
        """View ``columns`` columns from ``begin`` on."""
        if not 0 <= begin <= begin + columns <= self.columns:
            raise ValueError(f"columns {begin}+{columns} of {self.columns}")
        return attrs.evolve(self, ptr=self.ptr + begin * KIND_BYTES[self.kind], columns=columns)


class PlaneGemm(Protocol):
    """A product for many rows, between planes."""

    def __call__(
        self,
        x: Plane,
        w: DeviceArray,
        out: Plane,
        bias: DeviceArray | None = None,
        *,
        gelu: bool = False,
        add: bool = False,
    ) -> None:
        """out = x @ w.T (+ bias) (then tanh GELU) (+ out): x bf16, w (N, K) bf16, bias (N,) like out."""


@attrs.define(eq=False)
class PlanesLt:
    """Implements ``PlaneGemm`` with what ``gemm`` holds."""

    gemm: CublasLt
    _products: dict[int, Any] = attrs.field(factory=dict)
    _chosen: dict[tuple[object, ...], Any] = attrs.field(factory=dict)

    def __call__(
        self,
        x: Plane,
        w: DeviceArray,
        out: Plane,
        bias: DeviceArray | None = None,
        *,
        gelu: bool = False,
        add: bool = False,
    ) -> None:
        """Multiply; see ``PlaneGemm``.  Raises ValueError on shapes, DriverError when cuBLAS refuses."""
        check_planes(x, w, out, bias, gelu)
        self.gemm.layouts.trim()
        product = self._product(_PLAIN if bias is None else _WITH_GELU if gelu else _WITH_BIAS)
        if bias is not None:
            self._set(product, _BIAS, ctypes.c_void_p(bias.ptr))
        left = self.gemm.layouts(_R_16BF, x.columns, w.shape[0], x.columns)
        right, result = self._planed(x), self._planed(out)
        one, beta, workspace = ctypes.c_float(1), ctypes.c_float(add), self.gemm.workspace
        self.gemm._do(
            "Matmul", self.gemm._handle, product,
            ctypes.byref(one), ctypes.c_void_p(w.ptr), left, ctypes.c_void_p(x.ptr), right,
            ctypes.byref(beta), ctypes.c_void_p(out.ptr), result, ctypes.c_void_p(out.ptr), result,
            self._algorithm(product, x, w, out, add), ctypes.c_void_p(workspace.ptr),
            ctypes.c_size_t(workspace.nbytes), ctypes.c_void_p(self.gemm.stream),
        )  # fmt: skip

    def _set(self, product: Any, attribute: int, value: Any) -> None:
        size = ctypes.c_size_t(ctypes.sizeof(value))
        self.gemm._do("MatmulDescSetAttribute", product, attribute, ctypes.byref(value), size)

    def _product(self, epilogue: int) -> Any:
        if epilogue not in self._products:
            made = ctypes.c_void_p()
            self.gemm._do("MatmulDescCreate", ctypes.byref(made), _COMPUTE_32F, _R_32F)
            self._set(made, _TRANS_A, ctypes.c_int(1))
            self._set(made, _EPILOGUE, ctypes.c_int(epilogue))
            self._products[epilogue] = made
        return self._products[epilogue]

    def _planed(self, plane: Plane) -> Any:
        """The layout of a row-major plane: a column-major one with its axes exchanged."""
        return self.gemm.layouts(_TYPES[plane.kind], plane.columns, plane.rows, plane.stride)

    def _algorithm(self, product: Any, x: Plane, w: DeviceArray, out: Plane, add: bool) -> Any:
        rows = 1 << (max(LEAST_ROWS, x.rows) - 1).bit_length()
        fit = _alignment(x.ptr | w.ptr | out.ptr)
        key = (product.value, rows, x.columns, x.stride, out.columns, out.stride, out.kind, add, fit)
        if key not in self._chosen:
            tall, found = attrs.evolve(x, rows=rows), attrs.evolve(out, rows=rows)
            self._chosen[key] = self._choose(product, tall, found, fit)
        return ctypes.byref(self._chosen[key].algorithm)

    def _choose(self, product: Any, x: Plane, out: Plane, fit: int) -> Any:
        do, preference, count = self.gemm._do, ctypes.c_void_p(), ctypes.c_int()
        wishes: list[tuple[int, Any]] = [(_PREF_WORKSPACE, ctypes.c_uint64(self.gemm.workspace.nbytes))]
        wishes += [(_PREF_REDUCTION, ctypes.c_uint32(0))]  # no split sums
        wishes += [(operand, ctypes.c_uint32(fit)) for operand in _PREF_ALIGNMENTS]
        do("MatmulPreferenceCreate", ctypes.byref(preference))
        for attribute, value in wishes:
            size = ctypes.c_size_t(ctypes.sizeof(value))
            do("MatmulPreferenceSetAttribute", preference, attribute, ctypes.byref(value), size)
        result, choice = self._planed(out), _Choice()
        do(
            "MatmulAlgoGetHeuristic", self.gemm._handle, product,
            self.gemm.layouts(_R_16BF, x.columns, out.columns, x.columns), self._planed(x),
            result, result, preference, 1, ctypes.byref(choice), ctypes.byref(count),
        )  # fmt: skip
        do("MatmulPreferenceDestroy", preference)
        if not count.value:
            raise StartupError(f"cuBLAS has no product of {x.columns} by {out.columns} for this card")
        return choice


def _alignment(addresses: int) -> int:
    """The largest power of two, up to 256, that divides every address in the union of their bits."""
    return min(_BEST_ALIGNMENT, addresses & -addresses) if addresses else _BEST_ALIGNMENT


def check_planes(x: Plane, w: DeviceArray, out: Plane, bias: DeviceArray | None, gelu: bool) -> None:
    """Raise ValueError unless shapes and kinds agree."""
    agree = w.shape == (out.columns, x.columns) and out.rows == x.rows and x.kind == w.kind == "bf16"
    fits = bias is None or (bias.shape == (out.columns,) and bias.kind == out.kind)
    if not agree or not fits or (gelu and bias is None):
        raise ValueError(f"gemm: {x} @ {w.shape}.T + {bias} -> {out}")
