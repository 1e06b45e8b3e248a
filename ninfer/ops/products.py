"""Every product with a stored matrix: picks the kernel by how many rows there are and how they must agree.

Three routes: one streams the weights for up to eight rows at a time (decode, verification); ``wide``
widens the matrix to bf16 scratch and calls cuBLAS (prefill); odd shapes take the plain kernels.
Each route gives a row the same bits whatever the other rows are.

The one thing a reader would get wrong: the route is the caller's choice by kind of pass, not by the number
of rows, or a prompt's last rows would depend on how it was cut into chunks.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import attrs

from ninfer.kernels_cu.arrays import DeviceArray
from ninfer.ops.gemm import CublasLt, Gemm
from ninfer.ops.gemm_swiglu import FusedSwiglu
from ninfer.ops.linear import Ending, Linear, Rows, are_pair
from ninfer.ops.linear_source import Left
from ninfer.ops.stored import CODES, StoredMatrix, plane_steps

_MATRIX = struct.Struct("5Q4i")
_PIECES = 4 * 256 * 8  # elements that a block of dequantise or swiglu_rows makes


def matrix_bytes(m: StoredMatrix, out: int = 0, stride: int = 0) -> bytes:
    """One ``Matrix`` of formats.cuh."""
    return _MATRIX.pack(m.codes, m.high, m.scales, m.divisor, out, m.rows, m.first, stride, 0)


def joined(left: StoredMatrix, right: StoredMatrix) -> StoredMatrix | None:
    """One matrix of both, when the rows of ``right`` follow those of ``left`` in the same object."""
    steps = plane_steps(left.format, left.columns)
    follows = (
        left.format == right.format
        and left.columns == right.columns
        and right.codes == left.codes + left.rows * steps[0]
        and right.scales == left.scales + left.rows * steps[2]
        and right.first == left.first + left.rows
    )
    rows = left.rows + right.rows
    return attrs.evolve(left, rows=rows, nbytes=left.nbytes + right.nbytes) if follows else None


def bands(matrices: Sequence[StoredMatrix]) -> list[tuple[StoredMatrix, int]]:
    """The matrices of a call as few, where they lie one behind the other: each with how many it is.

    All are one, or else the first and the second, the third and the fourth, and so on: results of such a
    pair always have the same stride.
    """
    whole = _together(matrices)
    if whole is not None:
        return [(whole, len(matrices))]
    found: list[tuple[StoredMatrix, int]] = []
    for pair in (matrices[i : i + 2] for i in range(0, len(matrices), 2)):
        both = _together(pair)
        found += [(matrix, 1) for matrix in pair] if both is None else [(both, len(pair))]
    return found


def _together(matrices: Sequence[StoredMatrix]) -> StoredMatrix | None:
    """One matrix of all, if results of each begin on 16 bytes."""
    whole: StoredMatrix | None = matrices[0]
    for matrix in matrices[1:]:
        whole = joined(whole, matrix) if whole and whole.rows % 8 == matrix.rows % 8 == 0 else None
    return whole


def _pitch(whole: StoredMatrix, count: int) -> int:
    """Elements from row to row of a result; of several side by side, rows begin on 128 bytes."""
    return whole.rows if count == 1 else -(-whole.rows // 64) * 64


def _even(matrix: StoredMatrix) -> bool:
    return matrix.columns % 8 == 0 and matrix.aligned


@attrs.define(eq=False)
class Products:
    """Products over one linear kernel, one GEMM and one scratch allocator."""

    linear: Linear
    gemm: Gemm
    fused: FusedSwiglu = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.fused = FusedSwiglu(self.linear.library, self.linear.blocks)

    def __call__(
        self,
        rows: Rows,
        matrices: Sequence[StoredMatrix],
        outs: Sequence[DeviceArray],
        ending: Ending,
        residual: DeviceArray | None = None,
        *,
        wide: bool = False,
        next_norm: DeviceArray | None = None,
    ) -> Left | None:
        """outs[i] = ending(rows @ matrices[i].T); shapes as in ``Linear``, any number of columns.

        Several outs of a wide product are those of ``places``.
        """
        even = all(_even(matrix) for matrix in matrices)
        swiglu = ending is Ending.SWIGLU
        if swiglu and len({(m.format, m.rows) for m in matrices}) != 1:
            even = wide = False  # no fused kernel pairs two formats
        if even and not wide and (not swiglu or are_pair(matrices)):
            return self.linear(rows, matrices, outs, ending, residual, next_norm)
        x = self._normed(rows)
        if swiglu:
            self._swiglu(x, matrices[0], matrices[1], outs[0], wide and even)
            return None
        if wide and even:
            begin = 0
            for matrix, count in bands(matrices):
                first, begin = outs[begin], begin + count
                if first.stride != _pitch(matrix, count):
                    raise ValueError(f"products: {count} results are not side by side")
                shape = x.shape[0], matrix.rows
                out = DeviceArray(first.ptr, shape, first.kind, first.owner, first.pitch)
                self._wide(x, matrix, out, residual)
            return None
        for matrix, out in zip(matrices, outs, strict=True):
            self._any(x, matrix, out, ending, residual)
        return None

    def places(
        self, rows: int, matrices: Sequence[StoredMatrix], *, wide: bool = False
    ) -> tuple[DeviceArray, ...]:
        """Room for the bf16 results of one call: a wide product has those of neighbours side by side."""
        take = self.linear.take
        if not wide or not all(_even(matrix) for matrix in matrices):
            return tuple(take((rows, matrix.rows), "bf16") for matrix in matrices)
        outs, at = [], iter(matrices)
        for whole, count in bands(matrices):
            room, begin = take((rows, _pitch(whole, count)), "bf16"), 0
            for matrix in (next(at) for _ in range(count)):
                outs.append(room if count == 1 else room.columns(begin, begin + matrix.rows))
                begin += matrix.rows
        return tuple(outs)

    def _launch(
        self, name: str, grid: int | tuple[int, ...], *arguments: DeviceArray | int | float | bytes | None
    ) -> None:
        self.linear.library.get("plain.cu", name).launch(
            grid, 256, *arguments, dependent=self.linear.dependent
        )

    def _normed(self, rows: Rows) -> DeviceArray:
        if rows.norm is None:
            return rows.x
        out = self.linear.take(rows.x.shape, "bf16")
        self._launch("norm_any", rows.x.shape[0], rows.x, rows.norm, out, rows.x.shape[1], rows.eps)
        return out

    def _any(
        self,
        x: DeviceArray,
        matrix: StoredMatrix,
        out: DeviceArray,
        ending: Ending,
        residual: DeviceArray | None,
    ) -> None:
        grid = (-(-matrix.rows // 8), x.shape[0])
        packed = matrix_bytes(matrix, out.ptr, out.shape[1])
        self._launch("linear_any", grid, packed, CODES[matrix.format], x.shape[1], x, residual, int(ending))

    def _swiglu(
        self, x: DeviceArray, gate: StoredMatrix, up: StoredMatrix, out: DeviceArray, wide: bool
    ) -> None:
        take, width = self.linear.take, out.shape[1]
        both = joined(gate, up)
        if wide and both is not None and width % 8 == 0:
            self._paired(x, self._bf16(both), out)
            return
        a, b = take(out.shape, "f32"), take(out.shape, "f32")
        for matrix, half in ((gate, a), (up, b)):
            if wide:
                self._wide(x, matrix, half, None)
            else:
                self._any(x, matrix, half, Ending.STORE_F32, None)
        self._launch("swiglu_any", -(-out.size // 256), a, b, out, out.size)

    def _paired(self, x: DeviceArray, both: DeviceArray, out: DeviceArray) -> None:
        total, width = out.shape

        def apart() -> None:
            pair = self.linear.take((total, 2 * width), "bf16")
            self.gemm(x, both, pair, None)
            right = DeviceArray(pair.ptr + 2 * width, (total, width), "bf16", pair.owner)
            self._launch("swiglu_rows", -(-out.size // _PIECES), pair, right, out, total, width, 2 * width)

        clock = self.gemm.clock if isinstance(self.gemm, CublasLt) else None
        self.fused.run(x, both, out, apart, clock)

    def _wide(
        self, x: DeviceArray, matrix: StoredMatrix, out: DeviceArray, add: DeviceArray | None
    ) -> None:
        self.gemm(x, self._bf16(matrix), out, add)

    def _bf16(self, matrix: StoredMatrix) -> DeviceArray:
        if matrix.format != "bf16":
            return self.widen(matrix)
        return DeviceArray(matrix.codes, (matrix.rows, matrix.columns), "bf16", matrix.owner)

    def widen(self, matrix: StoredMatrix) -> DeviceArray:
        """The matrix in bf16: (N, K) of scratch."""
        out = self.linear.take((matrix.rows, matrix.columns), "bf16")
        packed = matrix_bytes(matrix, stride=matrix.columns)
        grid = -(-out.size // _PIECES)
        self._launch("dequantise", grid, packed, CODES[matrix.format], matrix.columns, out)
        return out

    def embed(self, table: StoredMatrix, ids: DeviceArray) -> DeviceArray:
        """Rows of the table as float32: (T, K)."""
        out = self.linear.take((ids.shape[0], table.columns), "f32")
        self._launch(
            "embed", ids.shape[0], matrix_bytes(table), CODES[table.format], table.columns, ids, out
        )
        return out

    def replace_rows(self, x: DeviceArray, rows: DeviceArray, features: DeviceArray) -> None:
        """x[rows[i]] = features[i], in place: x (T, K) float32, features (M, K) bf16."""
        if features.shape[1:] != x.shape[1:] or rows.shape[0] != features.shape[0]:
            raise ValueError(f"replace_rows: {features.shape} into {x.shape}")
        self._launch("replace_rows", rows.shape[0], rows, features, x, x.shape[1])
