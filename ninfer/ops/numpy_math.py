"""Small float32 formulas that the NumPy verbs share.

All work on the last axis.  Reductions go row by row in a fixed order, so a row's bits do not depend
on how many rows there are.  The one thing a reader would get wrong: ``sigmoid`` lets ``exp`` overflow
to infinity (the quotient is then an exact 0); callers run under ``np.errstate(over="ignore")``.
"""

from __future__ import annotations

import numpy as np

from ninfer.ops.numpy_state import Floats


def rms_norm(x: Floats, eps: float) -> Floats:
    """x / sqrt(mean(x^2) + eps)."""
    scale: Floats = np.vecdot(x, x)
    scale *= np.float32(1.0 / x.shape[-1])
    scale += np.float32(eps)
    np.sqrt(scale, out=scale)
    return x / scale[..., None]


def gain_of(weight: Floats) -> Floats:
    """What ``shifted_norm`` multiplies by: (1 + weight), times what turns a sum into a mean."""
    gain: Floats = (weight + np.float32(1)) * np.float32(len(weight) ** 0.5)
    return gain


def shifted_norm(x: Floats, weight: Floats, eps: float, gain: Floats | None = None) -> Floats:
    """(1 + weight) RMSNorm(x): every norm of the text model but the Gated DeltaNet's inner one."""
    scale: Floats = np.vecdot(x, x)
    scale += np.float32(eps * x.shape[-1])
    np.sqrt(scale, out=scale)
    out: Floats = x / scale[..., None]
    out *= gain_of(weight) if gain is None else gain
    return out


def l2_norm(x: Floats, eps: float) -> Floats:
    """x / sqrt(sum(x^2) + eps): epsilon inside, sum and not mean."""
    scale: Floats = np.vecdot(x, x)
    scale += np.float32(eps)
    np.sqrt(scale, out=scale)
    return x / scale[..., None]


def sigmoid(x: Floats) -> Floats:
    """1 / (1 + exp(-x))."""
    out = np.negative(x)
    np.exp(out, out=out)
    out += np.float32(1)
    return np.divide(np.float32(1), out, out=out)


def silu(x: Floats) -> Floats:
    """x * sigmoid(x)."""
    out = np.negative(x)
    np.exp(out, out=out)
    out += np.float32(1)
    return np.divide(x, out, out=out)


def softplus(x: Floats) -> Floats:
    """log(1 + exp(x)), without overflow."""
    out: Floats = np.logaddexp(x, np.float32(0))
    return out
