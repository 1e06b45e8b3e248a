"""Bytes that leave in a body or in one server-sent event, and the ids inside them.

Owns compact JSON, SSE framing and id spelling for every dialect.  Promises that a frame is one
event whatever its data holds: JSON escapes every line end that could split it, and event names
come from our own code.

The one thing a reader would get wrong: member order is meaning here (tool arguments are replayed
into prompts), so nothing is sorted, and non-ASCII text is not escaped.
"""

from __future__ import annotations

import json
from collections.abc import Callable

Mint = Callable[[], int]  # 64 random bits; injected so that tests know the ids
DONE = b"data: [DONE]\n\n"


def compact(value: object) -> str:
    """Write JSON without blanks, in the order of its members.  Non-finite numbers are a bug."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def encode(value: object) -> bytes:
    """Write one JSON body."""
    return compact(value).encode()


def frame(value: object, event: str | None = None) -> bytes:
    """Write one SSE event with JSON data."""
    name = f"event: {event}\n" if event else ""
    return f"{name}data: {compact(value)}\n\n".encode()


def identifier(prefix: str, mint: Mint) -> str:
    """Make an id: the prefix and 16 hexadecimal digits."""
    return f"{prefix}{mint():016x}"
