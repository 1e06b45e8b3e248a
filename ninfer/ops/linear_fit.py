"""How a launch of ``linear.cu`` shares out a block's shared memory: rings of stages, rows of x, teams.

Owns the layouts of formats and the number of column parts; pure arithmetic.  Promises that ``parts_of`` a
row follows from its columns alone.

The one thing a reader would get wrong: sizes here are those of the kernel's own structs (linear_ring.cuh),
and the tests ask the compiler for them.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import attrs

MAX_PART = 6144  # columns whose products are summed before parts are added up
JOINT_TILES = 132  # no more tiles than that: all teams of a block share each
MAX_ROWS = 8
LEAST_ROWS = 4  # that a launch of three teams must take, or there are two
SPANS = 8  # working warps of a team
STATIC_SHARED = 2048
MIN_STAGES, MAX_STAGES = 2, 8
MAX_CHUNKS = 32  # of bf16 rows, each with a barrier
CHUNK_SHIFT = 11  # of the least bytes of a row in a chunk
ROOMY_STAGES = 6  # more gain nothing
WINDOW = 3  # chunks that have room where they take turns


@attrs.frozen
class Layout:
    """What a format takes of a block.

    columns  of a unit
    stage    bytes of a stage
    pad      bytes after a row of x
    cost     measured time of a byte, that of bf16 being 1
    scales   bytes of the scales of 64 columns of x
    """

    columns: int
    stage: int
    pad: int
    cost: float
    scales: int = 0


LAYOUTS = {
    0: Layout(32, 8192, 32, 1.0),
    1: Layout(64, 8192, 64, 1.1, 32),
    2: Layout(64, 8832, 0, 1.2, 64),
    3: Layout(128, 8832, 0, 1.5, 64),
    4: Layout(128, 10880, 0, 1.6, 64),
    5: Layout(128, 12928, 0, 1.4, 64),
    6: Layout(128, 10240, 64, 1.7, 16),
}


def parts_of(columns: int) -> int:
    """How many parts a row's sum has."""
    return -(-columns // MAX_PART)


def part_columns(columns: int, form: int, split: bool) -> int:
    """Columns of a row of x that one block holds, padded to whole units: its widest part, or all."""
    unit, parts = LAYOUTS[form].columns, parts_of(columns)
    units = -(-columns // unit)
    if not split:
        return units * unit
    return max(units * (p + 1) // parts - units * p // parts for p in range(parts)) * unit


def columns_of_part(columns: int, part: int) -> int:
    """Columns of one part of bf16 rows, padded to whole units."""
    units, parts = -(-columns // LAYOUTS[0].columns), parts_of(columns)
    return (units * (part + 1) // parts - units * part // parts) * LAYOUTS[0].columns


def shared_bytes(rows: int, columns: int, form: int, stages: int, split: bool, teams: int) -> int:
    """Dynamic shared memory of one launch."""
    layout, width = LAYOUTS[form], part_columns(columns, form, split)
    meeting = teams * (2 * SPANS + 1) * 512
    x = rows * (width * 2 + layout.pad) + width // 64 * layout.scales
    return meeting + teams * stages * layout.stage + x


@attrs.frozen
class Fit:
    """How a launch uses shared memory.

    stages  of a ring
    split   whether parts are spread over blocks
    need    bytes
    window  chunks of bf16 rows that have room; 0 where rows come all at once
    shift   2 ** shift bytes of a row make a chunk
    streams whether chunks take turns
    """

    stages: int
    split: bool
    need: int
    window: int = 0
    shift: int = 0
    streams: bool = False


def fit(rows: int, columns: int, forms: Sequence[int], limit: int, teams: int) -> Fit | None:
    """The deepest rings; None if the rows do not fit.

    Parts are spread over blocks only when one block cannot hold whole rows of x.
    """
    for split, least in ((False, 3), (True, MIN_STAGES), (False, MIN_STAGES)):
        if split and parts_of(columns) == 1:
            continue
        for stages in range(MAX_STAGES, least - 1, -1):
            need = max(shared_bytes(rows, columns, form, stages, split, teams) for form in forms)
            if need + STATIC_SHARED <= limit:
                return Fit(stages, split, need)
    return None


def chunk_fit(rows: int, columns: int, limit: int, teams: int, once: bool) -> Fit | None:
    """The same for bf16 rows that come in chunks.

    once  no team has more than one tile, so chunks may take turns
    """
    meeting = teams * (SPANS + 1) * 512  # of one side
    widths = [columns_of_part(columns, part) * 2 for part in range(parts_of(columns))]
    shift = next(s for s in range(CHUNK_SHIFT, 32) if sum(-(-width >> s) for width in widths) <= MAX_CHUNKS)
    counts = [-(-width >> shift) for width in widths]
    chunk, stage = rows << shift, teams * LAYOUTS[0].stage

    def fitting(window: int, split: bool = False, streams: bool = False) -> Fit:
        used = meeting + window * chunk
        stages = min(MAX_STAGES, (limit - STATIC_SHARED - used) // stage)
        return Fit(stages, split, used + stages * stage, window, shift, streams)

    best = fitting(sum(counts))
    if once and sum(counts) > WINDOW and best.stages < ROOMY_STAGES:
        best = max(best, fitting(WINDOW, streams=True), key=lambda found: found.stages)
    if best.stages < ROOMY_STAGES // 2 and len(counts) > 1:
        best = fitting(max(counts), split=True)
    return best if best.stages >= MIN_STAGES else None


@functools.lru_cache(maxsize=1024)
def rows_that_fit(columns: int, forms: tuple[int, ...], limit: int, teams: int) -> int:
    """How many rows of x fit one launch where a block may have ``limit`` bytes of shared memory."""
    return next((rows for rows in range(MAX_ROWS, 0, -1) if fit(rows, columns, forms, limit, teams)), 0)


def joint(tiles: int) -> bool:
    """Whether the teams of a block work on one tile."""
    return tiles <= JOINT_TILES


def teams_of(tiles: int, blocks: int, columns: int, forms: tuple[int, ...], limit: int) -> int:
    """Two or three teams a block: three hide more latency, unless their last round is much emptier.

    Both sum in the same order, except where they share tiles; those get three.  Either way a card with
    little shared memory, where three leave room for few rows or none, has two.
    """
    if rows_that_fit(columns, forms, limit, 3) < min(LEAST_ROWS, rows_that_fit(columns, forms, limit, 2)):
        return 2
    if joint(tiles):
        return 3
    fill = {teams: tiles / (-(-tiles // (blocks * teams)) * blocks * teams) for teams in (2, 3)}
    return 2 if fill[2] > fill[3] + 0.05 else 3
