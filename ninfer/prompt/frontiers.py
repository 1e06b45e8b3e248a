"""Sealed text to ids, and boundaries in the text to exact frontiers of the ids.

A boundary is exact when the ids before it are the ids of the text before it: then whatever other
prompt begins with that text and goes on from a token's edge begins with the very same ids.

The one thing a reader would get wrong: a boundary next to a control token is always exact; one inside
ordinary text is exact only if no token crosses it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from ninfer.prompt.seals import SEAL_RUNS
from ninfer.prompt.tokens import Vocabulary


def tokenise(
    vocabulary: Vocabulary, text: str, boundaries: Sequence[int] = ()
) -> tuple[list[int], list[int | None]]:
    """Return the ids of sealed text and, for each character offset, its token count or None."""
    parts = SEAL_RUNS.split(text)  # text, run, text, ..., text
    starts = [0, *accumulate(map(len, parts))]
    where = [bisect_right(starts, offset, hi=len(parts)) - 1 for offset in boundaries]
    heads = [parts[n][: offset - starts[n]] for n, offset in zip(where, boundaries, strict=True)]
    # One batch for everything: ordinary text first, then the beginnings that end at a boundary.
    inside = [k for k, n in enumerate(where) if n % 2 == 0]
    batch = vocabulary.encode_many(parts[::2] + [heads[k] for k in inside])
    pieces = batch[: len(parts[::2])]
    head_ids = dict(zip(inside, batch[len(pieces) :], strict=True))
    ids: list[int] = []
    firsts: list[int] = []
    for n, part in enumerate(parts):
        firsts.append(len(ids))
        ids += vocabulary.sealed_ids(part) if n % 2 else pieces[n // 2]
    counts: list[int | None] = []
    for k, n in enumerate(where):
        head = head_ids.get(k) if n % 2 == 0 else vocabulary.sealed_ids(heads[k])
        counts.append(_count(ids, firsts[n], head or []))
    return ids, counts


def _count(ids: list[int], first: int, head: list[int]) -> int | None:
    """Return the frontier after ``head``, if the ids from ``first`` on begin with it."""
    end = first + len(head)
    return end if ids[first:end] == head else None
