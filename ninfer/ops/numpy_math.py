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


def shifted_norm(x: Floats, weight: Floats, eps: float) -> Floats:
    """(1 + weight) RMSNorm(x): every norm of the text model but the Gated DeltaNet's inner one."""
    out = rms_norm(x, eps)
    out *= weight + np.float32(1)
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
    """log(1 + exp(x)), and x itself from 20 on, where they agree in float32."""
    out: Floats = np.where(x > 20, x, np.log1p(np.exp(np.minimum(x, np.float32(20)))))
    return out
