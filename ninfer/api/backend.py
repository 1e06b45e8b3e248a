"""Which backend computes: an explicit context, then ``NINFER_BACKEND``, then automatic choice.

The one thing a reader would get wrong: an explicit choice never falls back.  An engine whose backend is
another one refuses the call.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

BACKENDS = ("numpy", "cuda")
_CHOSEN: ContextVar[str | None] = ContextVar("ninfer_backend", default=None)


@contextmanager
def attn_backend(name: str) -> Iterator[None]:
    """Choose the backend for engines built and calls made in the block.  Raises ``ValueError``."""
    token = _CHOSEN.set(_known(name, "attn_backend"))
    try:
        yield
    finally:
        _CHOSEN.reset(token)


def chosen_backend(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the explicit choice, or None for automatic.  Raises ``ValueError`` for an unknown name."""
    chosen = _CHOSEN.get()
    if chosen is None and environment.get("NINFER_BACKEND"):
        return _known(environment["NINFER_BACKEND"], "NINFER_BACKEND")
    return chosen


def _known(name: str, where: str) -> str:
    if name not in BACKENDS:
        raise ValueError(f"{where}: there is no backend {name!r}; choose one of {', '.join(BACKENDS)}")
    return name
