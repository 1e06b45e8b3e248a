"""What work costs, in CPU seconds of the calling thread, so that a busy machine changes little.

The one thing a reader would get wrong: caches shared with busy neighbours still make the same work
dearer for a while, so a bound on growth has failed only when it fails again and again.
"""

from __future__ import annotations

import time
from collections.abc import Callable

_TRIES = 4
_TIMES, _AT_MOST = 4, 9  # four times the size costs 4 when linear, 16 when quadratic


def least_cost(work: Callable[[], object], runs: int = 3) -> float:
    """The cheapest of several runs."""
    spent = []
    for _ in range(runs):
        begun = time.thread_time()
        work()
        spent.append(time.thread_time() - begun)
    return min(spent)


def grows_linearly(prepare: Callable[[int], Callable[[], object]], size: int) -> bool:
    """Say whether the cost of ``prepare(size)()`` grows with the size and not with its square."""
    small, large = prepare(size), prepare(_TIMES * size)
    small()  # what is made once is made now
    return any(least_cost(large) < _AT_MOST * least_cost(small) for _ in range(_TRIES))
