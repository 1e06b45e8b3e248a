"""How threads share the cores and the interpreter.

One core is left to the event loop, since BLAS threads that wait spin and would take its time.  The one
thing a reader would get wrong: OpenBLAS reads its variable once, when NumPy is imported; afterwards
settling it has no effect.  A value that the operator has set is kept.

A thread inside a driver call that never returns cannot be ended, and neither Python's end nor the driver's
may wait for it: ``leave`` ends the process without either.
"""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress

VARIABLE = "OPENBLAS_NUM_THREADS"
# Seconds after which a thread that computes in Python gives way.  The device thread takes the lock dozens
# of times a token; at Python's own 5 ms a body of 10 MB being read doubled the longest gap between tokens.
TURN = 0.0005
MOST = 16  # more threads than this only wait for each other at the sizes of a decode step


def settle_blas_threads(wanted: int | None = None) -> int:
    """Set the thread count (None: all cores but one) unless the environment has it.  -> the count."""
    cores = len(os.sched_getaffinity(0))
    chosen = wanted if wanted is not None else max(1, min(MOST, cores - 1))
    return int(os.environ.setdefault(VARIABLE, str(chosen)))


def shorten_turns() -> None:
    """Let threads that wait for the interpreter have it soon."""
    sys.setswitchinterval(TURN)


LEFT = " (given up)"  # at the end of the name of a thread that nobody waits for any more


def give_up(thread: threading.Thread) -> None:
    """Wait for a thread no more; ``leave`` will know of it."""
    thread.name += LEFT


def leave(code: int) -> int:
    """Return the exit code; if a thread that was given up still runs, end the process with it at once."""
    if not any(thread.name.endswith(LEFT) for thread in threading.enumerate()):
        return code
    with suppress(OSError, ValueError, AttributeError):  # a stream may be closed, or None
        print("ninfer: the device has not ended its work; the process ends without it", file=sys.stderr)
        sys.stderr.flush()
        sys.stdout.flush()
    os._exit(code)
