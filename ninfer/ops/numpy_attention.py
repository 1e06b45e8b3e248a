"""Gated grouped-query attention over a paged cache, in float32.

Decode and verify rows are computed one by one, page by page; prefill rows tile by tile with an online
softmax over key blocks, so no more than one tile of scores exists at a time.  Both grids are aligned to
absolute token indices.  The one thing a reader would get wrong: frequency
pair d takes its position from axis d % 3 only while that axis has sections left, else from the time axis.
"""

from __future__ import annotations

from itertools import pairwise

import attrs
import numpy as np

from ninfer.ops.numpy_state import TILE, Floats, Frame, Ints, Pages
from ninfer.ops.verbs import Step

BLOCK = 4 * TILE  # keys of a prefill block
LOWEST = np.float32(-1e30)  # stands in for the peak of a row without keys


@attrs.frozen(eq=False)
class Rotary:
    """Interleaved three-axis rotary embedding of the first ``2 * pairs`` head dimensions."""

    frequencies: np.ndarray[tuple[int], np.dtype[np.float64]]
    axes: np.ndarray[tuple[int], np.dtype[np.int64]]

    @classmethod
    def of(cls, dims: int, theta: float, section: tuple[int, int, int]) -> Rotary:
        """Build from the number of rotated dimensions, the base and the pairs each axis owns."""
        pairs = np.arange(dims // 2)
        axes = pairs % 3
        for axis in (1, 2):
            axes[(axes == axis) & (pairs >= 3 * section[axis])] = 0
        return cls(theta ** (-2.0 * pairs / dims), axes)

    def angles(self, positions: Ints) -> tuple[Floats, Floats]:
        """Cosines and sines of (3, T) positions.  -> two (T, 1, pairs), broadcasting over heads."""
        angle = positions[self.axes].T * self.frequencies
        return (
            np.cos(angle).astype(np.float32)[:, None, :],
            np.sin(angle).astype(np.float32)[:, None, :],
        )


def rotate(x: Floats, angles: tuple[Floats, Floats]) -> None:
    """Rotate (T, heads, head_dim) in place: dimension d pairs with d + pairs."""
    cos, sin = angles
    pairs = cos.shape[-1]
    low, high = x[..., :pairs], x[..., pairs : 2 * pairs]
    turned = low * cos
    turned -= high * sin
    high *= cos
    high += low * sin
    low[...] = turned


def attend_rows(q: Floats, pages: Pages, layer: int, step: Step) -> Floats:
    """Attention of decode or verify rows.  q (T, kv_heads, group, head_dim), scaled.  -> like q."""
    out = np.empty_like(q)
    for s in range(step.sequences):
        begin, end = int(step.offsets[s]), int(step.offsets[s + 1])
        for row in range(begin, end):
            keys = int(step.frontiers[s]) + row - begin + 1
            _attend_row(q[row], pages, layer, step.tables[s], step.first, keys, out[row])
    return out


def _attend_row(
    q: Floats, pages: Pages, layer: int, table: Ints, first: int, keys: int, out: Floats
) -> None:
    """One row over ``keys`` tokens, page by page; neighbouring pages share a call, not their bits."""
    size = pages.page_tokens
    full, rest = divmod(keys, size)
    count = full + (rest > 0)
    scores = np.empty((*q.shape[:2], count, 1, size), np.float32)
    parts = np.empty((count, *q.shape[:2], 1, q.shape[2]), np.float32)
    by_page, q = scores.transpose(2, 0, 1, 3, 4), q[:, :, None]
    stored = [(at, pages.values[page : page + n, layer]) for at, n, page in _runs(table, full)]
    if rest:
        stored.append((full, pages.values[table[full] : table[full] + 1, layer, :, :, :rest]))
    for at, run in stored:
        k = run[:, 0, :, None].swapaxes(3, 4)
        np.matmul(q, k, out=by_page[at : at + len(run), ..., : run.shape[3]])
    weights = scores.reshape(*q.shape[:2], -1)[..., :keys]
    weights[..., :first] = -np.inf
    weights -= np.maximum(weights.max(axis=-1, keepdims=True), LOWEST)
    np.exp(weights, out=weights)
    for at, run in stored:
        here = slice(at, at + len(run))
        np.matmul(by_page[here, ..., : run.shape[3]], run[:, 1, :, None], out=parts[here])
    total = weights.sum(axis=-1, keepdims=True)
    total[total == 0] = 1  # no key at all: the result is zero
    np.divide(np.add.reduce(parts, axis=0)[:, :, 0], total, out=out)


def _runs(table: Ints, pages: int) -> list[tuple[int, int, int]]:
    """Stretches of neighbouring pages: (first index, how many, first page)."""
    numbers = table[:pages]
    breaks = np.flatnonzero(np.diff(numbers) != 1) + 1
    edges = [0, *breaks.tolist(), pages] if pages else []
    return [(a, b - a, int(numbers[a])) for a, b in pairwise(edges)]


def attend_tiles(q: Floats, pages: Pages, layer: int, step: Step, frame: Frame) -> Floats:
    """Attention of prefill tiles.  q (tiles, kv_heads, group, TILE, head_dim), scaled.  -> like q."""
    out = np.empty_like(q)
    start = int(step.frontiers[0])
    for tile in range(frame.tiles):
        at = start - frame.lead + tile * TILE
        stop = min(at + TILE, start + step.rows)
        _attend_tile(q[tile], pages, layer, step, at, stop, out[tile])
    return out


def _attend_tile(q: Floats, pages: Pages, layer: int, step: Step, at: int, stop: int, out: Floats) -> None:
    """Rows at indices ``at .. at + TILE - 1``; keys exist below ``stop``."""
    heads, group, rows, dim = q.shape
    flat = q.reshape(heads, group * rows, dim)
    peak = np.full((heads, group * rows, 1), -np.inf, np.float32)
    total = np.zeros_like(peak)
    result = np.zeros_like(flat)
    for begin in range(0, at + TILE, BLOCK):
        end = min(begin + BLOCK, at + TILE)
        k, v = _block(pages, layer, step.tables[0], begin, end, stop)
        scores = flat @ k.swapaxes(1, 2)
        _mask(scores.reshape(heads, group, rows, end - begin), at, begin, step.first)
        new = np.maximum(peak, scores.max(axis=-1, keepdims=True))
        np.maximum(new, LOWEST, out=new)  # a row without keys so far keeps weight 0
        scores -= new
        np.exp(scores, out=scores)
        shrink = np.exp(peak - new)
        total *= shrink
        total += scores.sum(axis=-1, keepdims=True)
        result *= shrink
        result += scores @ v
        peak = new
    total[total == 0] = 1  # a row without keys: its result is zero
    np.divide(result, total, out=out.reshape(flat.shape))


def _mask(scores: Floats, at: int, begin: int, first: int) -> None:
    """Hide keys after each row, and keys below ``first``, in (heads, group, rows, keys) scores."""
    keys = begin + np.arange(scores.shape[-1])
    if keys[-1] > at:
        scores[..., keys > (at + np.arange(TILE))[:, None]] = -np.inf
    if begin < first:
        scores[..., keys < first] = -np.inf


def _block(pages: Pages, layer: int, table: Ints, begin: int, end: int, stop: int) -> tuple[Floats, Floats]:
    """Keys and values of a block; tokens that do not exist yet are zero, whatever their page holds."""
    if end <= stop:
        return pages.span(layer, table, begin, end)
    real = pages.span(layer, table, begin, stop)
    shape = (real[0].shape[0], end - begin, real[0].shape[2])
    k, v = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
    k[:, : stop - begin], v[:, : stop - begin] = real
    return k, v
