"""Turn units of work into the arrays of a forward pass.

Pure array building, no device memory.  The one thing a reader would get wrong: the MTP step of the
same rows has each row's position shifted by one token (a cache entry pairs token i with the hidden
state of token i - 1, at that token's position), which is why a slot remembers its last position.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate

import attrs
import numpy as np

from ninfer.engine.device import Prefill, Row
from ninfer.ops.numpy_state import TILE, Ints
from ninfer.ops.verbs import Step
from ninfer.prompt.prepared import MediaSpan


def int32(values: object) -> Ints:
    """Make an int32 array."""
    return np.array(values, np.int32)


def prefill_step(unit: Prefill) -> Step:
    """The rows of a prompt piece."""
    count = len(unit.ids)
    if unit.positions is None:
        line = np.arange(unit.start, unit.start + count, dtype=np.int32) + np.int32(unit.rope_delta)
        positions = np.broadcast_to(line, (3, count))
    else:
        positions = int32(unit.positions)
    return Step(
        kind="prefill",
        rows=count,
        sequences=1,
        ids=int32(unit.ids),
        positions=positions,
        offsets=int32([0, count]),
        frontiers=int32([unit.start]),
        tables=int32([unit.pages]),
        slots=int32([unit.slot]),
        lanes=int32([unit.lane]),
    )


def ending(step: Step) -> Step:
    """The rows of a prompt piece behind the last multiple of ``TILE`` tokens, as a step of their own.

    Where no drafter follows, the last hidden state of a piece is all that anyone reads.  Others of its tile
    are kept because prompts are attended and multiplied by tiles: one row takes as long as all of them.
    """
    end = int(step.frontiers[0]) + step.rows
    rows = min(step.rows, (end - 1) % TILE + 1)
    return attrs.evolve(
        step,
        rows=rows,
        ids=step.ids[-rows:],
        positions=step.positions[:, -rows:],
        offsets=int32([0, rows]),
        frontiers=int32([end - rows]),
        embeds=None,
    )


def placeholders(span: MediaSpan, start: int, rows: int) -> tuple[Ints, Ints]:
    """Which rows of a unit an item fills, and with which of its feature rows."""
    index = np.concatenate([np.arange(begin, begin + count) for begin, count in span.runs])
    mine = np.flatnonzero((index >= start) & (index < start + rows))
    return (index[mine] - start).astype(np.int32), mine.astype(np.int32)


@lru_cache(maxsize=64)
def page_line(pages: tuple[int, ...]) -> Ints:
    """Make a page table an array, for reading; a sequence has the same one for 64 rounds and all drafts."""
    line = int32(pages)
    line.flags.writeable = False
    return line


def rows_step(kind: str, rows: Sequence[Row], ids: Sequence[Sequence[int]], ahead: int = 0) -> Step:
    """The rows of a decode batch: ``ids[s]`` are fed from index ``rows[s].frontier + ahead`` on."""
    counts = [len(part) for part in ids]
    flat = [token for part in ids for token in part]
    frontiers = [row.frontier + ahead for row in rows]
    line = [
        frontier + row.rope_delta + i
        for row, frontier, count in zip(rows, frontiers, counts, strict=True)
        for i in range(count)
    ]
    width = max(len(row.pages) for row in rows)
    tables = np.zeros((len(rows), width), np.int32)
    for table, row in zip(tables, rows, strict=True):
        table[: len(row.pages)] = page_line(row.pages)
    return Step(
        kind=kind,
        rows=len(flat),
        sequences=len(rows),
        ids=int32(flat),
        positions=np.broadcast_to(int32(line), (3, len(line))),
        offsets=int32([0, *accumulate(counts)]),
        frontiers=int32(frontiers),
        tables=tables,
        slots=int32([row.slot for row in rows]),
        lanes=int32([row.lane for row in rows]),
    )


def shifted(step: Step, edges: Ints) -> Step:
    """The same rows for the MTP layer; ``edges`` (S, 3) are the positions before each first row."""
    positions = np.empty_like(step.positions)
    positions[:, 1:] = step.positions[:, :-1]
    positions[:, step.offsets[:-1]] = edges.T
    return attrs.evolve(step, positions=positions, first=1)
