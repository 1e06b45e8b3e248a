"""Request bodies to JSON values, within a budget and off the event loop when they are large.

Owns the choice between the quick way and the careful one.  Promises one meaning for both: what
``json_text.read_slowly`` accepts and gives.

The one thing a reader would get wrong: the quick way decides nothing alone.  Whatever it does not
take outright, it hands to the careful reader, whose refusals say where and why.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Awaitable, Callable
from functools import partial
from typing import NoReturn, TypeVar

from ninfer.http.json_text import read_slowly
from ninfer.settings import JsonBudget

QUICK_BYTES = 131_072  # of the densest JSON: 10 ms
T = TypeVar("T")
RunBlocking = Callable[[Callable[[], T]], Awaitable[T]]
"""Runs a function on a worker thread and gives its result; tests run it in place."""

_SURROGATE = re.compile(rb"\\u[dD][89A-Fa-f]")


def read_json(body: bytes, budget: JsonBudget) -> object:
    """Read one JSON body; raise ``Refused`` (INVALID ``invalid_json``, or TOO_LARGE)."""
    if len(body) <= QUICK_BYTES and not _SURROGATE.search(body):
        try:
            return _read_quickly(body, budget)
        except (ValueError, RecursionError):
            pass
    return read_slowly(body, budget)


async def aside(body: bytes, work: Callable[[], T], run_blocking: RunBlocking[T]) -> T:
    """Do ``work`` on ``body``: in place when it is small, on a worker thread when it is large.

    For whatever is done with a whole body, its schema and its lowering included: they grow with it.
    """
    return work() if len(body) <= QUICK_BYTES else await run_blocking(work)


async def load_json(body: bytes, budget: JsonBudget, run_blocking: RunBlocking[object]) -> object:
    """Read one JSON body without holding up the event loop; raise ``Refused``."""
    return await aside(body, partial(read_json, body, budget), run_blocking)


def _read_quickly(body: bytes, budget: JsonBudget) -> object:
    """Read what needs no second look; ``ValueError`` for everything else."""
    if sum(map(body.count, (b",", b"[", b"{", b":"))) >= budget.nodes:
        raise ValueError
    limit = budget.number_chars
    value: object = json.loads(
        body.decode("utf-8"),
        parse_constant=_refuse,
        parse_int=lambda text: int(text) if len(text) <= limit else _refuse(text),
        parse_float=lambda text: _finite(text) if len(text) <= limit else _refuse(text),
        object_pairs_hook=_unique,
    )
    _check_depth(value, budget.depth)
    return value


def _refuse(text: str) -> NoReturn:
    raise ValueError(text)


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _refuse(text)


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    return members if len(members) == len(pairs) else _refuse("")


def _check_depth(value: object, depth: int) -> None:
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(depth):
        below = (inner.values() if isinstance(inner, dict) else inner for inner in level)
        level = [child for children in below for child in children if isinstance(child, (dict, list))]
        if not level:
            return
    _refuse("")
