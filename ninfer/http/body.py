"""Request bodies to JSON values, within a budget.

Owns the choice between the quick way and the careful one.  Promises one meaning for both: what
``json_text.read_slowly`` accepts and gives.

The one thing a reader would get wrong: the quick way decides nothing alone.  Whatever it does not
take outright, it hands to the careful reader, whose refusals say where and why.  On the event loop
read no more than ``QUICK_BYTES``; what is larger belongs on a worker thread.
"""

from __future__ import annotations

import json
import math
import re
from typing import NoReturn

from ninfer.http.json_text import read_slowly
from ninfer.settings import JsonBudget

QUICK_BYTES = 32_768  # read on the event loop in 20 ms at worst, wrong at the end of the densest JSON
HELD_BYTES = 131_072  # beyond these the quick way would hold the interpreter for more than 10 ms
_SURROGATE = re.compile(rb"\\u[dD][89A-Fa-f]")


def read_json(body: bytes, budget: JsonBudget) -> object:
    """Read one JSON body; raise ``Refused`` (INVALID ``invalid_json``, or TOO_LARGE)."""
    if len(body) <= HELD_BYTES:
        try:
            return _read_quickly(body, budget)
        except (ValueError, RecursionError):
            pass
    return read_slowly(body, budget)


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
    if _SURROGATE.search(body):
        json.dumps(value, ensure_ascii=False).encode("utf-8")  # fails on a surrogate without its half
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
