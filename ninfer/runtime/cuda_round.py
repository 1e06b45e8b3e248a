"""The numbers of a round with drafts: what folds the round before, drafting steps, one verification.

Owns their order in the packer's block.  The drafting steps and the verification are about the same
sequences, so page tables, slots and lanes are laid once and shared.

The one thing a reader would get wrong: rows must be sorted, those that draft most first; a drafting step of
some depth is then about the first few sequences.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np

from ninfer.engine.device import Row
from ninfer.kernels_cu.arrays import DeviceArray
from ninfer.ops.numpy_state import Ints
from ninfer.ops.verbs import Step
from ninfer.runtime.cuda_steps import Packer
from ninfer.runtime.steps import int32, rows_step, shifted


@attrs.frozen
class Fold:
    """Which records go into which slots, all (S,) i32: ``keeps`` rows of ``totals`` that were published."""

    lanes: DeviceArray
    slots: DeviceArray
    keeps: DeviceArray
    totals: DeviceArray


@attrs.frozen
class Round:
    """Arrays of one round on the device; ``fed`` and the ids of ``step`` are found there.

    forced  (S,) i32 the token each sequence feeds, -1 where it is the lane's pending one
    ahead   drafting steps by depth
    follow  the rows of ``step`` for the drafter
    """

    fed: DeviceArray
    forced: DeviceArray
    fold: Fold
    ahead: tuple[Step, ...]
    step: Step
    follow: Step


def lay_fold(packer: Packer, parts: Sequence[tuple[int, int, int, int]]) -> Fold:
    """Lay (lane, slot, keep, total) of each part."""
    lanes, slots, keeps, totals = (packer.put(int32(column)) for column in zip(*parts, strict=True))
    return Fold(lanes, slots, keeps, totals)


def forced_tokens(rows: Sequence[Row]) -> Ints:
    """The token each row feeds, -1 where the lane's pending one."""
    return int32([-1 if row.token is None else row.token for row in rows])


def lay_round(packer: Packer, rows: Sequence[Row], totals: Sequence[int], edges: Ints) -> Round:
    """Lay a round; ``totals`` are the tokens that each row's last verification published.

    ``edges`` (S, 3) are the positions of each sequence's last token once the fold has run.
    """
    packer.begin()
    count, host = len(rows), rows_step("verify", rows, [(0,) * (1 + row.draft) for row in rows])
    fed, forced, ids = packer.room(count), packer.put(forced_tokens(rows)), packer.room(host.rows)
    step = packer.step(host, ids)
    keeps = packer.put(int32([row.keep or 0 for row in rows]))
    fold = Fold(step.lanes, step.slots, keeps, packer.put(int32(totals)))
    follow = packer.moved(step, shifted(host, edges))
    single = packer.put(np.arange(count + 1, dtype=np.int32))
    lines = attrs.evolve(step, kind="decode", ids=fed, offsets=single, first=1)
    ahead = tuple(_ahead(packer, lines, rows, depth) for depth in range(rows[0].draft))
    return Round(fed, forced, fold, ahead, step, follow)


def _ahead(packer: Packer, lines: Step, rows: Sequence[Row], depth: int) -> Step:
    """The rows that draft deeper, each at the position before its fed token's."""
    able = [row for row in rows if row.draft > depth]
    count, frontiers = len(able), int32([row.frontier + depth for row in able])
    positions = frontiers + int32([row.rope_delta - 1 for row in able])
    return attrs.evolve(
        lines,
        rows=count,
        sequences=count,
        ids=lines.ids.rows(0, count),
        positions=packer.put(np.broadcast_to(positions, (3, count))),
        offsets=lines.offsets.rows(0, count + 1),
        frontiers=packer.put(frontiers),
        tables=lines.tables.rows(0, count),
        slots=lines.slots.rows(0, count),
        lanes=lines.lanes.rows(0, count),
    )
