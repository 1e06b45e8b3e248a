"""The vision verbs in NumPy, float32.

Arrays are (rows, width); an item is always encoded whole, so nothing here depends on how a prompt is
cut.  The one thing a reader would get wrong: patches are in merge-block order, so a patch's row and
column come from ``coordinates``, not from its index.
"""

from __future__ import annotations

import attrs
import numpy as np
from numpy.typing import NDArray

from ninfer.ops.numpy_state import Floats
from ninfer.ops.numpy_weights import multiply
from ninfer.ops.vision_verbs import Affine, Linear, Patches

THETA = 10_000.0
QUERIES = 256  # rows of attention scores that exist at once, per head
Indices = NDArray[np.int64]


def coordinates(shape: Patches) -> tuple[Indices, Indices]:
    """Row and column of every patch of one time slice, in merge-block order."""
    m = shape.merge
    grid = np.arange(shape.height * shape.width).reshape(shape.height // m, m, shape.width // m, m)
    order = grid.transpose(0, 2, 1, 3).ravel()
    return order // shape.width, order % shape.width


def resample(table: Floats, shape: Patches) -> Floats:
    """Bilinear positions of one time slice from a square table.  -> (height * width, hidden)."""
    side = round(len(table) ** 0.5)
    square = table.reshape(side, side, -1)
    rows, columns = coordinates(shape)
    top, bottom, down = _between(rows, shape.height, side)
    left, right, across = _between(columns, shape.width, side)
    upper: Floats = square[top, left] + (square[top, right] - square[top, left]) * across
    lower: Floats = square[bottom, left] + (square[bottom, right] - square[bottom, left]) * across
    return upper + (lower - upper) * down


def _between(index: Indices, size: int, side: int) -> tuple[Indices, Indices, Floats]:
    """Neighbours and weight of coordinates spread so that the corners meet."""
    at = np.linspace(0, side - 1, size, dtype=np.float32)[index]
    low = at.astype(np.int64)
    return low, np.minimum(low + 1, side - 1), (at - low).astype(np.float32)[:, None]


def erf(x: Floats) -> Floats:
    """The error function, within 2e-7."""
    t = 1 / (1 + 0.5 * np.abs(x, dtype=np.float64))
    coefficients = (
        -1.26551223,
        1.00002368,
        0.37409196,
        0.09678418,
        -0.18628806,
        0.27886807,
        -1.13520398,
        1.48851587,
        -0.82215223,
        0.17087277,
    )
    series = np.polynomial.polynomial.polyval(t, coefficients)
    tail = t * np.exp(series - np.square(x, dtype=np.float64))
    return np.copysign(1 - tail, x).astype(np.float32)


@attrs.frozen(eq=False)
class NumpyVision:
    """Implements ``VisionVerbs``."""

    eps: float = 1e-6

    def embed_patches(self, pixels: Floats, linear: Linear, table: Floats, shape: Patches) -> Floats:
        """Project pixels and add positions."""
        if pixels.dtype == np.uint8:
            pixels = pixels.astype(np.float32) / np.float32(127.5) - np.float32(1)
        x = self.linear(pixels, linear).reshape(shape.time, -1, linear.weight.rows)
        x += resample(table, shape)
        return x.reshape(shape.count, -1)

    def normed(self, x: Floats, norm: Affine, linears: tuple[Linear, ...]) -> tuple[Floats, ...]:
        """LayerNorm, then each linear layer."""
        found = multiply(self._norm(x, norm), [linear.weight for linear in linears])
        return tuple(y + linear.bias for y, linear in zip(found, linears, strict=True))

    def see(self, q: Floats, k: Floats, v: Floats, heads: int, shape: Patches) -> Floats:
        """Attention within time slices."""
        size = shape.height * shape.width
        split = (shape.time, size, heads, -1)
        q, k, v = (np.ascontiguousarray(part.reshape(split).transpose(0, 2, 1, 3)) for part in (q, k, v))
        cos, sin = _angles(shape, q.shape[-1])
        q, k = _turned(q, cos, sin) * np.float32(q.shape[-1] ** -0.5), _turned(k, cos, sin)
        out = np.empty((shape.time, size, heads, q.shape[-1]), np.float32)
        for slot, head in np.ndindex(shape.time, heads):
            _see_one(q[slot, head], k[slot, head], v[slot, head], out[slot, :, head])
        return out.reshape(shape.count, -1)

    def linear_add(self, y: Floats, linear: Linear, x: Floats) -> Floats:
        """x + y @ W.T + b."""
        return self.linear(y, linear) + x

    def normed_gelu(self, x: Floats, norm: Affine, linear: Linear) -> Floats:
        """Tanh GELU of a normed linear layer."""
        y = self.linear(self._norm(x, norm), linear)
        inner = np.float32((2 / np.pi) ** 0.5) * (y + np.float32(0.044715) * y * y * y)
        y *= np.float32(0.5) * (np.float32(1) + np.tanh(inner))
        return y

    def merge(self, x: Floats, norm: Affine, shape: Patches) -> Floats:
        """LayerNorm, then the patches of a block side by side."""
        return self._norm(x, norm).reshape(shape.tokens, -1)

    def linear_gelu(self, y: Floats, linear: Linear) -> Floats:
        """Exact GELU of a linear layer."""
        y = self.linear(y, linear)
        y *= np.float32(0.5) * (np.float32(1) + erf(y * np.float32(0.5**0.5)))
        return y

    def linear(self, y: Floats, linear: Linear) -> Floats:
        """y @ W.T + b."""
        (out,) = multiply(y, (linear.weight,))
        out += linear.bias
        return out

    def _norm(self, x: Floats, norm: Affine) -> Floats:
        centred: Floats = x - x.mean(axis=-1, keepdims=True)
        scale = np.vecdot(centred, centred) / np.float32(x.shape[-1]) + np.float32(self.eps)
        centred /= np.sqrt(scale)[..., None]
        centred *= norm.weight
        centred += norm.bias
        return centred


def _angles(shape: Patches, dim: int) -> tuple[Floats, Floats]:
    """Cosines and sines (patches of a slice, dim / 2): row angles, then column angles."""
    frequencies = THETA ** (-np.arange(0, dim // 2, 2) / (dim // 2))
    angle = np.concatenate([axis[:, None] * frequencies for axis in coordinates(shape)], axis=1)
    return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)


def _turned(x: Floats, cos: Floats, sin: Floats) -> Floats:
    low, high = np.split(x, 2, axis=-1)
    return np.concatenate((low * cos - high * sin, high * cos + low * sin), axis=-1)


def _see_one(q: Floats, k: Floats, v: Floats, out: Floats) -> None:
    for begin in range(0, len(q), QUERIES):
        scores = q[begin : begin + QUERIES] @ k.T
        scores -= scores.max(axis=1, keepdims=True)
        np.exp(scores, out=scores)
        total = scores.sum(axis=1, keepdims=True)
        np.divide(scores @ v, total, out=out[begin : begin + QUERIES])
