"""How many threads BLAS may use, settled before NumPy is loaded.

One core is left to the event loop, since BLAS threads that wait spin and would take its time.  The one
thing a reader would get wrong: OpenBLAS reads its variable once, when NumPy is imported; afterwards
this has no effect.  A value that the operator has set is kept.
"""

from __future__ import annotations

import os

VARIABLE = "OPENBLAS_NUM_THREADS"
MOST = 16  # more threads than this only wait for each other at the sizes of a decode step


def settle_blas_threads(wanted: int | None = None) -> int:
    """Set the thread count (None: all cores but one) unless the environment has it.  -> the count."""
    cores = len(os.sched_getaffinity(0))
    chosen = wanted if wanted is not None else max(1, min(MOST, cores - 1))
    return int(os.environ.setdefault(VARIABLE, str(chosen)))
