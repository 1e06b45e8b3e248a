"""The vision verbs on CUDA: bf16 between products, the residual stream float32, one item at a time.

Products run on cuBLASLt over at most ``ROWS`` rows; stored weights are widened to bf16 just before, into
scratch, so nothing of the tower is kept twice.  Queries, keys and values lie side by side, and attention
puts its result where the queries were.

The one thing a reader would get wrong: nothing here is functional.  ``linear_add`` adds in place, and
``normed_gelu`` only remembers what to do, so that its wide result exists for ``ROWS`` rows at a time.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import attrs
import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ninfer.faults import StartupError
from ninfer.kernels_cu.arrays import DeviceArray
from ninfer.kernels_cu.pack import Library
from ninfer.model.config import VisionConfig
from ninfer.ops.cuda_state import Take
from ninfer.ops.gemm_bias import Plane, PlaneGemm
from ninfer.ops.products import Products, joined
from ninfer.ops.stored import StoredMatrix
from ninfer.ops.vision_verbs import Affine, Linear, Patches

ROWS = 16_384  # patches that products take at once
SENT_ROWS = 4_096  # patches that one copy to the device takes
HEAD_DIM, WIDEST = 72, 2_048
_LOG2E = 1.4426950408889634
_BF16 = np.dtype(ml_dtypes.bfloat16)


@attrs.frozen(eq=False)
class Deferred:
    """gelu(LayerNorm(x) @ W.T + b), not yet computed."""

    norm: Affine
    linear: Linear


def check_vision(config: VisionConfig) -> None:
    """Refuse towers that no kernel was written for.  Raises StartupError."""
    if config.hidden != config.heads * HEAD_DIM or config.hidden > WIDEST or config.hidden % 8:
        raise StartupError(
            f"the CUDA backend cannot run a vision tower of {config.heads} heads over {config.hidden}: "
            "start without --vision, or use --backend numpy"
        )


def wide_biases(library: Library, linears: Iterable[Linear], keep: Take) -> dict[int, DeviceArray]:
    """Biases of products that end in float32, widened for good; by the address of the stored one."""
    found = {}
    for linear in linears:
        count = linear.bias.shape[0]
        found[linear.bias.ptr] = wide = keep((count,), "f32")
        library.get("vision_rows.cu", "vision_widen").launch(
            -(-count // 256), 256, linear.bias, wide, count
        )
    return found


@attrs.define(eq=False)
class CudaVision:
    """Implements ``VisionVerbs``.

    send    copies host values to the device in stream order, as ``Transfers.send``
    biases  see ``wide_biases``
    """

    library: Library
    take: Take
    products: Products
    gemm: PlaneGemm
    send: Callable[[DeviceArray, NDArray[Any]], None]
    biases: dict[int, DeviceArray]
    eps: float = 1e-6
    dependent: bool = True

    def _launch(self, name: str, grid: int, block: int, *arguments: Any) -> None:
        kernel = self.library.get("vision_rows.cu", name)
        kernel.launch(grid, block, *arguments, dependent=self.dependent)

    def _wide(self, matrix: StoredMatrix) -> DeviceArray:
        if matrix.format == "bf16":
            return DeviceArray(matrix.codes, (matrix.rows, matrix.columns), "bf16", matrix.owner)
        return self.products.widen(matrix)

    def _norm(self, x: DeviceArray, norm: Affine) -> DeviceArray:
        rows, width = x.shape
        out = self.take(x.shape, "bf16")
        self._launch(
            "vision_norm", -(-rows // 8), 256, x, norm.weight, norm.bias, out, rows, width, self.eps
        )
        return out

    def embed_patches(
        self, pixels: NDArray[Any], linear: Linear, table: DeviceArray, shape: Patches
    ) -> DeviceArray:
        """Project pixels, which lie in host memory, and add positions.  -> float32."""
        rows, width = shape.count, linear.weight.rows
        if pixels.shape != (rows, linear.weight.columns) or table.shape[1] != width:
            raise ValueError(f"{pixels.shape} pixels for {shape}")
        x, weight = self.take((rows, width), "f32"), self._wide(linear.weight.data)
        side, place = round(table.shape[0] ** 0.5), pack_slice(shape)
        self._launch(
            "vision_positions", -(-rows // 8), 256, x, table, linear.bias, place, side, rows, width
        )
        for begin, end in spans(rows, SENT_ROWS):
            part = Plane.of(self._scaled(pixels[begin:end]))
            self.gemm(part, weight, Plane.of(x.rows(begin, end)), add=True)
        return x

    def _scaled(self, pixels: NDArray[Any]) -> DeviceArray:
        """Send pixels, and scale bytes to -1 .. 1.  -> bf16."""
        out = self.take(pixels.shape, "bf16")
        if pixels.dtype != np.uint8:
            self.send(out, pixels.astype(_BF16))
            return out
        raw = self.take(pixels.shape, "u8")
        self.send(raw, pixels)
        self._launch("vision_pixels", -(-out.size // 2048), 256, raw, out, out.size)
        return out

    def normed(self, x: DeviceArray, norm: Affine, linears: tuple[Linear, ...]) -> tuple[Plane, ...]:
        """LayerNorm, then each linear layer: bands of one array."""
        widths = [linear.weight.rows for linear in linears]
        out = Plane.of(self.take((x.shape[0], sum(widths)), "bf16"))
        begins = [sum(widths[:i]) for i in range(len(widths))]
        parts = [(w, b, out.band(at, w.shape[0])) for at, (w, b) in self._together(linears, begins)]
        for begin, end in spans(x.shape[0], ROWS):
            n = Plane.of(self._norm(x.rows(begin, end), norm))
            for weight, bias, band in parts:
                self.gemm(n, weight, band.lines(begin, end), bias)
        return tuple(out.band(at, width) for at, width in zip(begins, widths, strict=True))

    def _together(
        self, linears: tuple[Linear, ...], begins: list[int]
    ) -> Iterator[tuple[int, tuple[DeviceArray, DeviceArray]]]:
        """Widened matrices and biases with their first column; all as one where they are neighbours."""
        whole: StoredMatrix | None = linears[0].weight.data
        for linear, before in zip(linears[1:], linears, strict=False):
            follows = linear.bias.ptr == before.bias.ptr + before.bias.nbytes
            whole = joined(whole, linear.weight.data) if whole is not None and follows else None
        if whole is not None:
            first = linears[0].bias
            yield 0, (self._wide(whole), DeviceArray(first.ptr, (whole.rows,), first.kind, first.owner))
            return
        for at, linear in zip(begins, linears, strict=True):
            yield at, (self._wide(linear.weight.data), linear.bias)

    def see(self, q: Plane, k: Plane, v: Plane, heads: int, shape: Patches) -> Plane:
        """Attention within time slices, in the place of the queries."""
        width, size = heads * HEAD_DIM, shape.height * shape.width
        apart = [part.ptr - q.ptr for part in (q, k, v)] + [q.stride, q.rows]
        if apart != [0, 2 * width, 4 * width, 3 * width, shape.count] or q.columns != width:
            raise ValueError(f"see: {q}, {k}, {v} of {heads} heads for {shape}")
        qkv = DeviceArray(q.ptr, (q.rows, q.stride), "bf16", q.owner)
        scale, place = HEAD_DIM**-0.5 * _LOG2E, pack_slice(shape)
        self._launch("vision_rotate", -(-q.rows // 8), 288, qkv, place, q.rows, heads, scale)
        grid = (-(-size // 128), heads, shape.time)
        kernel = self.library.get("vision_attend.cu", "vision_attend")
        kernel.launch(grid, 128, qkv, size, heads, dependent=self.dependent)
        return q

    def normed_gelu(self, x: DeviceArray, norm: Affine, linear: Linear) -> Deferred:
        """Tanh GELU of a normed linear layer, put off until ``linear_add``."""
        return Deferred(norm, linear)

    def linear_add(self, y: Plane | Deferred, linear: Linear, x: DeviceArray) -> DeviceArray:
        """x + y @ W.T + b, in place; a ``Deferred`` y is that of this x."""
        weight, bias = self._wide(linear.weight.data), self.biases[linear.bias.ptr]
        inner = self._wide(y.linear.weight.data) if isinstance(y, Deferred) else weight
        for begin, end in spans(x.shape[0], ROWS):
            part = x.rows(begin, end)
            rows = self._gelu(y, inner, part) if isinstance(y, Deferred) else y.lines(begin, end)
            self.gemm(rows, weight, Plane.of(part), bias, add=True)
        return x

    def _gelu(self, y: Deferred, weight: DeviceArray, x: DeviceArray) -> Plane:
        out = Plane.of(self.take((x.shape[0], y.linear.weight.rows), "bf16"))
        self.gemm(Plane.of(self._norm(x, y.norm)), weight, out, y.linear.bias, gelu=True)
        return out

    def merge(self, x: DeviceArray, norm: Affine, shape: Patches) -> DeviceArray:
        """LayerNorm, then the patches of a block side by side."""
        return self._norm(x, norm).reshape(shape.tokens, x.size // shape.tokens)

    def linear_gelu(self, y: DeviceArray, linear: Linear) -> DeviceArray:
        """Exact GELU of a linear layer, bf16."""
        out = self.linear(y, linear)
        self._launch("vision_gelu", -(-out.size // 1024), 256, out, out.size)
        return out

    def linear(self, y: DeviceArray, linear: Linear) -> DeviceArray:
        """y @ W.T + b, bf16."""
        out = self.take((y.shape[0], linear.weight.rows), "bf16")
        self.gemm(Plane.of(y), self._wide(linear.weight.data), Plane.of(out), linear.bias)
        return out


def spans(count: int, step: int) -> Iterator[tuple[int, int]]:
    """Cut 0 .. count - 1 into pieces of ``step``."""
    for begin in range(0, count, step):
        yield begin, min(begin + step, count)


def pack_slice(shape: Patches) -> bytes:
    """One ``Slice`` of vision_rows.cu."""
    return struct.pack("4i", shape.height, shape.width, shape.merge, shape.height * shape.width)
