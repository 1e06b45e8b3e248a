"""The Gated DeltaNet in float32: convolution, gates, the delta rule in two forms, record and fold.

Heads are laid out (key_heads, r, ...): the r value heads that share a key head are neighbours.  The
state is S[key dim, value dim] per value head.  Prefill uses the chunked form with chunks aligned to
absolute positions (padding rows have decay 1 and beta 0, so they leave S alone); decode and verify use
the recurrent form.  ``fold`` repeats decode's arithmetic on what verify recorded, bit for bit.

The one thing a reader would get wrong: the delta error uses the already decayed S.
"""

from __future__ import annotations

import attrs
import numpy as np

from ninfer.ops.numpy_math import l2_norm, sigmoid, silu, softplus
from ninfer.ops.numpy_state import TILE, Floats, Frame, Record, Slots
from ninfer.ops.verbs import Step

L2_EPS = 1e-6


@attrs.frozen(eq=False)
class Inputs:
    """One layer's rows after convolution and gates, heads apart.

    q, k (..., key_heads, key_dim) l2-normed, q divided by sqrt(key_dim); v (..., value_heads,
    value_dim); g, beta (..., value_heads), g being the logarithm of the decay.
    """

    q: Floats
    k: Floats
    v: Floats
    g: Floats
    beta: Floats


def gates(a: Floats, b: Floats, a_log: Floats, dt_bias: Floats) -> tuple[Floats, Floats]:
    """g = -exp(a_log) softplus(a + dt_bias) and beta = sigmoid(b)."""
    return -np.exp(a_log) * softplus(a + dt_bias), sigmoid(b)


def split_heads(mixed: Floats, key_width: int, key_dim: int, value_dim: int) -> tuple[Floats, ...]:
    """Split convolved channels into normed q, normed k and v, heads apart."""
    lead = mixed.shape[:-1]
    qk = l2_norm(mixed[..., : 2 * key_width].reshape(*lead, -1, key_dim), L2_EPS)
    heads = key_width // key_dim
    q, k = qk[..., :heads, :], qk[..., heads:, :]
    q *= np.float32(key_dim**-0.5)
    return q, k, mixed[..., 2 * key_width :].reshape(*lead, -1, value_dim)


def convolve(columns: Floats, taps: Floats) -> Floats:
    """Causal depthwise convolution and SiLU: (taps - 1 + rows, channels) -> (rows, channels)."""
    rows = len(columns) - len(taps) + 1
    out = columns[:rows] * taps[0]
    for tap in range(1, len(taps)):
        out += columns[tap : tap + rows] * taps[tap]
    return silu(out)


def convolve_tiles(raw: Floats, taps: Floats, history: Floats, frame: Frame) -> Floats:
    """Convolve prefill tiles (tiles, TILE, channels); leaves the new history behind.  -> same shape."""
    before = len(taps) - 1
    rows = raw.reshape(-1, raw.shape[-1])
    columns = np.zeros((before + len(rows), rows.shape[1]), np.float32)
    columns[before:] = rows
    columns[frame.lead : frame.lead + before] = history
    end = frame.lead + frame.rows
    history[...] = columns[end : end + before]
    return convolve(columns, taps).reshape(raw.shape)


def recur(state: Floats, q: Floats, k: Floats, v: Floats, decay: Floats, beta: Floats) -> Floats:
    """One token: advance S (value_heads, key_dim, value_dim) in place.  -> o (value_heads, value_dim)."""
    absorb(state, k, v, decay, beta)
    heads = len(q)
    s = state.reshape(heads, -1, *state.shape[1:])
    out: Floats = np.matmul(q[:, None, None, :], s)
    return out.reshape(v.shape)


def absorb(state: Floats, k: Floats, v: Floats, decay: Floats, beta: Floats) -> None:
    """S <- decay S; u = beta (v - S k); S <- S + k u^T.  The one place where decode writes S."""
    heads = len(k)
    state *= decay[:, None, None]
    s = state.reshape(heads, -1, *state.shape[1:])
    u = v - np.matmul(k[:, None, None, :], s).reshape(v.shape)
    u *= beta[:, None]
    s += k[:, None, :, None] * u.reshape(heads, -1, 1, v.shape[-1])


def chunked(x: Inputs, state: Floats) -> Floats:
    """Run whole tiles, advancing ``state``.  Inputs (tiles, TILE, ...) -> o (tiles, TILE, heads, dim)."""
    key_heads, key_dim = x.k.shape[-2:]
    r = x.v.shape[-2] // key_heads
    q, k = (part.swapaxes(1, 2)[:, :, None] for part in (x.q, x.k))  # (tiles, Hk, 1, TILE, dk)
    shape = (len(x.v), TILE, key_heads, r)
    v = x.v.reshape(*shape, -1).transpose(0, 2, 3, 1, 4)  # (tiles, Hk, r, TILE, dv)
    g, beta = (part.reshape(shape).transpose(0, 2, 3, 1) for part in (x.g, x.beta))
    total = np.cumsum(g, axis=-1, dtype=np.float32)
    decay = _decays(total)
    kk = np.matmul(k, k.swapaxes(-1, -2))
    solved = _unit_lower_inverse(np.tril(beta[..., None] * kk * decay, -1))
    w = np.matmul(solved, (beta * np.exp(total))[..., None] * k)
    u = np.matmul(solved, beta[..., None] * v)
    scores = np.matmul(q, k.swapaxes(-1, -2)) * decay
    q_in = np.exp(total)[..., None] * q
    k_out = (np.exp(total[..., -1:] - total)[..., None] * k).swapaxes(-1, -2)
    last = np.exp(total[..., -1])[..., None, None]
    out = np.empty(v.shape, np.float32)
    s = state.reshape(key_heads, r, key_dim, -1)
    for tile in range(len(v)):
        fresh = u[tile] - np.matmul(w[tile], s)
        np.matmul(scores[tile], fresh, out=out[tile])
        out[tile] += np.matmul(q_in[tile], s)
        s *= last[tile]
        s += np.matmul(k_out[tile], fresh)
    return out.transpose(0, 3, 1, 2, 4).reshape(x.v.shape)


def _decays(total: Floats) -> Floats:
    """exp(G_i - G_j) for j <= i, else 0; masked before the exponential so that nothing overflows."""
    difference: Floats = total[..., :, None] - total[..., None, :]
    difference[..., ~np.tri(TILE, dtype=bool)] = -np.inf
    np.exp(difference, out=difference)
    return difference


def _unit_lower_inverse(strict: Floats) -> Floats:
    """(I + A)^-1 for strictly lower A (..., n, n), doubling solved diagonal blocks."""
    n = strict.shape[-1]
    out = np.zeros_like(strict)
    out[..., np.arange(n), np.arange(n)] = 1
    size = 1
    while size < n:
        for at in range(0, n, 2 * size):
            top, low = slice(at, at + size), slice(at + size, at + 2 * size)
            corner = np.matmul(strict[..., low, top], out[..., top, top])
            out[..., low, top] = -np.matmul(out[..., low, low], corner)
        size *= 2
    return out


def run_rows(x: Inputs, layer: int, slots: Slots, step: Step) -> Floats:
    """Run decode or verify rows.  Inputs (T, ...) -> o (T, value_heads, value_dim)."""
    out = np.empty_like(x.v)
    decay = np.exp(x.g)
    for s in range(step.sequences):
        state = slots.recurrent[step.slots[s], layer]
        if step.kind == "verify":
            state = state.copy()
        for row in range(step.offsets[s], step.offsets[s + 1]):
            out[row] = recur(state, x.q[row], x.k[row], x.v[row], decay[row], x.beta[row])
        if step.kind == "verify":
            rows = slice(step.offsets[s], step.offsets[s + 1])
            record = slots.records[int(step.lanes[s])]
            record.keys.append(x.k[rows])
            record.values.append(x.v[rows])
            record.decays.append(decay[rows])
            record.betas.append(x.beta[rows])
    return out


def convolve_rows(raw: Floats, taps: Floats, layer: int, slots: Slots, step: Step) -> Floats:
    """Convolve decode or verify rows (T, channels).  Decode moves the history, verify records."""
    before = len(taps) - 1
    out = np.empty_like(raw)
    for s in range(step.sequences):
        rows = slice(step.offsets[s], step.offsets[s + 1])
        history = slots.history[step.slots[s], layer]
        columns = np.concatenate((history, raw[rows]))
        out[rows] = convolve(columns, taps)
        if step.kind == "verify":
            slots.records[int(step.lanes[s])].columns.append(raw[rows])
        else:
            history[...] = columns[-before:]
    return out


def fold(record: Record, slot: int, keep: int, slots: Slots) -> None:
    """Advance a slot over the first ``keep`` rows of a record."""
    for layer, columns in enumerate(record.columns):
        state, history = slots.recurrent[slot, layer], slots.history[slot, layer]
        for row in range(keep):
            absorb(
                state,
                record.keys[layer][row],
                record.values[layer][row],
                record.decays[layer][row],
                record.betas[layer][row],
            )
        history[...] = np.concatenate((history, columns[:keep]))[-len(history) :]
