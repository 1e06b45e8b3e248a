"""Mixture of experts in float32: routing, and experts applied to the rows that chose them.

Prefill rows are gathered by expert into tiles of ``GROUP`` rows (every place of such a tile gives
a row the same bits), decode and verify rows go one by one.  The one thing a reader would get wrong:
arrays here are flat, (rows, ...), padding rows included; ``Routing.experts`` is best first.
"""

from __future__ import annotations

import numpy as np

from ninfer.ops.numpy_math import silu
from ninfer.ops.numpy_state import Floats, Ints

GROUP = 8


def choose(logits: Floats, per_token: int) -> tuple[Ints, Floats]:
    """The best experts of each row of (rows, experts), ties to the lower id, and their weights."""
    order = np.argsort(-logits, axis=-1, kind="stable")[:, :per_token].astype(np.int32)
    chances = np.exp(logits - logits.max(axis=-1, keepdims=True))
    chances /= chances.sum(axis=-1, keepdims=True)
    kept = np.take_along_axis(chances, order, axis=-1)
    kept /= kept.sum(axis=-1, keepdims=True)
    return order, kept


def apply_experts(x: Floats, experts: Ints, weights: Floats, grouped: bool) -> Floats:
    """Multiply each chosen (row, k) by its expert.

    x (rows, k or 1, K); experts (rows, k); weights (experts, K, N).  -> (rows, k, N).
    """
    if grouped:
        return _apply_grouped(np.broadcast_to(x, (*experts.shape, x.shape[-1])), experts, weights)
    out = np.empty((experts.size, weights.shape[2]), np.float32)
    rows, share = x.reshape(-1, x.shape[-1]), experts.shape[1] // x.shape[1]
    for at, expert in enumerate(experts.ravel().tolist()):
        np.dot(rows[at // share], weights[expert], out=out[at])
    return out.reshape(*experts.shape, -1)


def _apply_grouped(x: Floats, experts: Ints, weights: Floats) -> Floats:
    """As ``apply_experts``; zero rows (padding) stay zero and cost nothing."""
    out = np.zeros((*experts.shape, weights.shape[2]), np.float32)
    real = x.any(axis=-1)
    for expert in np.unique(experts[real]):
        chosen = np.nonzero((experts == expert) & real)
        out[chosen] = _in_groups(x[chosen], weights[expert])
    return out


def _in_groups(rows: Floats, weight: Floats) -> Floats:
    padded = np.zeros((-(-len(rows) // GROUP) * GROUP, rows.shape[1]), np.float32)
    padded[: len(rows)] = rows
    y: Floats = np.matmul(padded.reshape(-1, GROUP, rows.shape[1]), weight)
    return y.reshape(len(padded), -1)[: len(rows)]


def swiglu(gate: Floats, up: Floats) -> Floats:
    """silu(gate) * up."""
    out = silu(gate)
    out *= up
    return out


def mix(y: Floats, weights: Floats) -> Floats:
    """Sum (rows, k, N) over k with (rows, k) weights, best expert first."""
    out = y[:, 0] * weights[:, :1]
    for k in range(1, y.shape[1]):
        out += y[:, k] * weights[:, k : k + 1]
    return out
