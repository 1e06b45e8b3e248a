"""Seeded mutants of valid HTTP requests: grammar-aware edits at byte, line and chunk boundaries.

A mutant is a short conversation of one to three requests with a few edits.  The same seed gives the
same mutants on every machine.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

SEEDS = (
    b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET /things/x%2Fy?q=1&r[]=2 HTTP/1.1\r\nHost: a:80\r\nAccept: */*\r\n\r\n",
    b"GET /echo HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: [::1]:8080\r\n\r\n",
    b"HEAD /echo HTTP/1.1\r\nHost: a\r\nX-Api-Key: k\r\n\r\n",
    b'POST /echo HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 7\r\n\r\n{"a":1}',
    b"POST /stream?2,0 HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}",
    b"POST /echo HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\nabc",
    b"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2;x=y\r\nab\r\n0\r\n\r\n",
    b'POST /nope HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1;a="b"\r\nx\r\n0\r\n\r\n',
    b"POST /crash?late HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n",
)
TOKENS = (
    b"\r\n", b"\n", b"\r", b" ", b"\t", b":", b";", b",", b"\x00", b"\x0b", b"\x85", b"\xa0", b"\xff",
    b"\r\n ", b"\r\n\r\n", b"0\r\n\r\n", b"GET ", b'"', b"\\", b"#", b"?", b"0x5", b"-1", b"FFFFFFFF",
    b"Content-Length: 5\r\n", b"Content-Length: +5\r\n", b"Content-Length: 5, 5\r\n", b"Host: b\r\n",
    b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: xchunked\r\n", b"Expect: x\r\n",
    b"Connection: close\r\n", b"Upgrade: h2c\r\n", b"HTTP/1.0", b"HTTP/2.0", b"http://a/", b"/../", b"%00",
    b"%", b"a" * 300, b"X: y\r\n" * 120, b";e" * 400,
)  # fmt: skip

Edit = Callable[[bytearray, random.Random], None]


def _flip(raw: bytearray, rng: random.Random) -> None:
    raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)


def _set(raw: bytearray, rng: random.Random) -> None:
    raw[rng.randrange(len(raw))] = rng.randrange(256)


def _insert(raw: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(raw) + 1)
    raw[at:at] = rng.choice(TOKENS)


def _replace(raw: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(raw))
    raw[at : at + rng.randrange(6)] = rng.choice(TOKENS)


def _delete(raw: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(raw))
    del raw[at : at + rng.randrange(1, 9)]


def _cut_off(raw: bytearray, rng: random.Random) -> None:
    del raw[rng.randrange(1, len(raw) + 1) :]


def _edge(raw: bytearray, rng: random.Random) -> None:
    """Put a token where a line begins or ends."""
    edges = [at + 2 for at in range(len(raw) - 1) if raw[at : at + 2] == b"\r\n"] or [0]
    at = rng.choice(edges) - rng.choice((0, 0, 1, 2))
    raw[max(0, at) : max(0, at)] = rng.choice(TOKENS)


def _swap_lines(raw: bytearray, rng: random.Random) -> None:
    lines = bytes(raw).split(b"\r\n")
    one, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    lines[one], lines[other] = lines[other], lines[one]
    raw[:] = b"\r\n".join(lines)


def _repeat_line(raw: bytearray, rng: random.Random) -> None:
    lines = bytes(raw).split(b"\r\n")
    lines.insert(rng.randrange(len(lines)), rng.choice(lines))
    raw[:] = b"\r\n".join(lines)


def _digits(raw: bytearray, rng: random.Random) -> None:
    places = [at for at, byte in enumerate(raw) if byte in b"0123456789"]
    if places:
        raw[rng.choice(places)] = rng.choice(b"0123456789af-+ ")


EDITS: tuple[Edit, ...] = (
    _flip, _set, _insert, _replace, _delete, _cut_off, _edge, _edge, _swap_lines, _repeat_line, _digits,
)  # fmt: skip


def mutant(rng: random.Random) -> bytes:
    """One conversation with one to four edits."""
    raw = bytearray(b"".join(rng.choice(SEEDS) for _ in range(rng.choice((1, 1, 2, 3)))))
    for _ in range(rng.choice((1, 1, 2, 2, 3, 4))):
        if raw:
            rng.choice(EDITS)(raw, rng)
    return bytes(raw)


def mutants(seed: int, count: int) -> Iterator[bytes]:
    """``count`` mutants of one seed."""
    rng = random.Random(seed)
    return (mutant(rng) for _ in range(count))


def cuts(raw: bytes, rng: random.Random) -> list[bytes]:
    """The same bytes in pieces, as a network might deliver them."""
    pieces, at = [], 0
    while at < len(raw):
        size = rng.choice((1, 2, 7, 40, len(raw)))
        pieces.append(raw[at : at + size])
        at += size
    return pieces
