"""Launches of the streaming linear kernel: which blocks work on which matrices, and with what epilogue.

Owns the host's share of ``linear.cu``: grouping matrices by format, dividing blocks in proportion to bytes,
and which kernel takes a launch; how it fits a block is for ``linear_fit``.  Promises that the part of a
row's sum which each warp takes depends on the matrix alone, so a row's bits are the same in any batch and
on any grid.

The one thing a reader would get wrong: ``parts`` follows from the number of columns and never from the
number of rows; changing that would break batch invariance without failing any tolerance.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable, Sequence

import attrs

from ninfer.artifact.formats import NVFP4
from ninfer.kernels_cu.arrays import DeviceArray
from ninfer.kernels_cu.pack import Library
from ninfer.ops.linear_fit import (
    LAYOUTS,
    MAX_PART,
    SPANS,
    Fit,
    chunk_fit,
    fit,
    joint,
    parts_of,
    rows_that_fit,
    teams_of,
)
from ninfer.ops.linear_source import Beginning, Left, Source
from ninfer.ops.stored import CODES, StoredMatrix

Take = Callable[[tuple[int, ...], str], DeviceArray]
FUSED_NORM_ROWS = 4  # more rows, if none were left, are normed once by a kernel of their own
MAX_GROUPS, MAX_MATRICES, MAX_PARTS = 4, 8, 8
CLAIMS = MAX_GROUPS * MAX_PARTS * 2  # words of one launch
LAUNCHES = 64  # launches whose claims are kept apart: more than can be under way at once
COUNTERS = LAUNCHES * CLAIMS + (1 << 15)  # words that ``Linear`` needs, all zero at first
CHUNKED_ROWS = 2  # one row of bf16 is there sooner all at once
# Kernels by the formats that they have code for; the first that has all of a launch's.
KERNELS = {
    "linear_bf16": {0},
    "linear_fp8": {1},
    "linear_q8": {2},
    "linear_q4": {3},
    "linear_q5": {4},
    "linear_q6": {5},
    "linear_nvfp4": {6},
    "linear_fp8_bf16": {0, 1},
    "linear_q8_bf16": {0, 2},
    "linear_q4_q5_bf16": {0, 3, 4},
    "linear_nvfp4_bf16": {0, 6},
    "linear": set(LAYOUTS),
}
CHUNKED = "linear_bf16_chunks"  # for bf16 alone, with one more warp a block, which fetches rows of x
LEAVING = "linear_bf16_leaving"  # likewise, and leaves what the norm behind it needs
FEW_BITS = {3, 4, 5}  # whose products need the registers of a finishing warp
_GROUP = struct.Struct("7i")
_MATRIX = struct.Struct("5Q4i")
_TAIL = struct.Struct("7Q5if6i3Q")


class Ending(enum.IntEnum):
    """What happens to a finished sum."""

    STORE_BF16 = 0
    STORE_F32 = 1
    ADD_RESIDUAL = 2  # float32 residual + sum, stored as float32
    SWIGLU = 3  # silu(first matrix) * second matrix, stored as bf16


@attrs.frozen(eq=False)
class Rows:
    """The left operand: (T, K) bf16, or float32 with a (1 + w) RMSNorm to apply first.

    left  what the product that made x has left for this norm, if anything
    """

    x: DeviceArray
    norm: DeviceArray | None = None
    eps: float = 0.0
    left: Left | None = None


@attrs.frozen
class Group:
    """Matrices of one format and the blocks that work on them."""

    format: int
    matrices: tuple[int, ...]  # their indices in the call
    tiles: int
    first_block: int = 0
    blocks: int = 0


def kernel_for(forms: Sequence[int]) -> str:
    """The kernel with the least code for these formats."""
    return next(name for name, has in KERNELS.items() if has.issuperset(forms))


def warps_of(kernel: str) -> int:
    """Warps of a team: workers, the one that copies and, where registers allow, one that finishes tiles."""
    return SPANS + (1 if KERNELS[kernel] & FEW_BITS else 2)


def _offset(matrix: StoredMatrix) -> int:
    """How many rows of the first block that the tiles divide come before the matrix."""
    return matrix.first % 128 if matrix.format == NVFP4 else 0


def are_pair(matrices: Sequence[StoredMatrix]) -> bool:
    """Whether one launch can make SwiGLU of them: a tile has the same rows of both."""
    return len({(m.rows, m.format, _offset(m)) for m in matrices}) == 1


def tiles_of(matrix: StoredMatrix, ending: Ending) -> int:
    """Tiles of 16 weight rows; a SwiGLU tile is 8 rows of each matrix.

    Those of nvfp4 divide blocks of 128 rows of the whole matrix, whose scales lie together.
    """
    rows = 8 if ending is Ending.SWIGLU else 16
    if matrix.format != NVFP4:
        return -(-matrix.rows // rows)
    return -(-(_offset(matrix) + matrix.rows) // 128) * (128 // rows)


def group_by_format(matrices: Sequence[StoredMatrix], ending: Ending) -> list[Group]:
    """Order matrices by format."""
    found: dict[int, list[int]] = {}
    for index, matrix in enumerate(matrices):
        found.setdefault(CODES[matrix.format], []).append(index)
    counted = matrices[:1] if ending is Ending.SWIGLU else matrices
    return [
        Group(form, tuple(at), sum(tiles_of(matrices[i], ending) for i in at if i < len(counted)))
        for form, at in found.items()
    ]


def share_blocks(groups: Sequence[Group], weight: Sequence[float], blocks: int, parts: int) -> list[Group]:
    """Give each group blocks in proportion to its weight, in whole multiples of ``parts``."""
    total, teams = sum(weight), max(len(groups), blocks // parts)
    counts = [
        max(1, min(group.tiles, int(teams * w / total))) for group, w in zip(groups, weight, strict=True)
    ]
    while sum(counts) < teams:
        hungry = [i for i, group in enumerate(groups) if counts[i] < group.tiles]
        if not hungry:
            break
        counts[max(hungry, key=lambda i: weight[i] / counts[i])] += 1
    while sum(counts) > teams:
        counts[max(range(len(counts)), key=lambda i: counts[i])] -= 1
    shared, first = [], 0
    for group, count in zip(groups, counts, strict=True):
        shared.append(attrs.evolve(group, first_block=first, blocks=count * parts))
        first += count * parts
    return shared


@attrs.define(eq=False)
class Linear:
    """Runs ``linear.cu``.

    blocks        multiprocessors of the card
    shared_limit  bytes of shared memory that a block may have
    take          lends scratch of the pass
    counters      ``COUNTERS`` words u32, zero: claims of the launches, arrivals of split tiles
    """

    library: Library
    blocks: int
    shared_limit: int
    take: Take
    counters: DeviceArray
    dependent: bool = True
    _launched: int = 0

    def __call__(
        self,
        rows: Rows,
        matrices: Sequence[StoredMatrix],
        outs: Sequence[DeviceArray],
        ending: Ending,
        residual: DeviceArray | None = None,
        next_norm: DeviceArray | None = None,
    ) -> Left | None:
        """Multiply: outs[i] = ending(rows @ matrices[i].T).

        x          (T, K)    bf16, or float32 when ``rows.norm`` is given
        outs[i]    (T, N_i)  bf16 or float32 as ``ending`` says; SWIGLU has one, for two matrices
        residual   (T, N)    float32, for ADD_RESIDUAL
        next_norm  (N,)      the norm that follows ADD_RESIDUAL, if known: what it needs may come back

        Any T; K a multiple of 8, rows of codes on 16 bytes.  Raises ValueError.
        """
        self._check(rows, matrices, outs, ending, residual)
        groups, (total, columns) = group_by_format(matrices, ending), rows.x.shape
        tiles, forms = sum(group.tiles for group in groups), tuple(group.format for group in groups)
        teams = teams_of(tiles, self.blocks, columns, forms, self.shared_limit)
        step = rows_that_fit(columns, forms, self.shared_limit, teams)
        if not step:
            raise ValueError(f"{columns} columns do not fit {self.shared_limit} bytes of shared memory")
        chunks = total <= step and self._chunks(total, columns, forms, tiles, teams) is not None
        scaling = "scale_rows_by_tiles" if set(forms) == {0} else "scale_rows"
        source = self._source(rows, chunks, teams, scaling)
        adds = chunks and ending is Ending.ADD_RESIDUAL and rows.norm is None
        left = Left.take(self.take, outs[0].shape, next_norm) if adds and next_norm else None
        for begin in range(0, total, step):
            end = min(total, begin + step)
            self._launch(
                source.rows(begin, end),
                matrices,
                [out.rows(begin, end) for out in outs],
                ending,
                residual.rows(begin, end) if residual else None,
                left,
                teams,
            )
        return left

    def _check(
        self,
        rows: Rows,
        matrices: Sequence[StoredMatrix],
        outs: Sequence[DeviceArray],
        ending: Ending,
        residual: DeviceArray | None,
    ) -> None:
        total, columns = rows.x.shape
        kind = "bf16" if ending in (Ending.STORE_BF16, Ending.SWIGLU) else "f32"
        widths = [matrix.rows for matrix in (matrices[:1] if ending is Ending.SWIGLU else matrices)]
        shapes = [(total, width) for width in widths]
        if [out.shape for out in outs] != shapes or any(out.kind != kind for out in outs):
            raise ValueError(f"linear: {rows.x.shape} wants {kind} outputs {shapes}")
        if any(matrix.columns != columns or not matrix.aligned for matrix in matrices) or rows.x.ptr % 16:
            raise ValueError(f"linear: matrices do not have {columns} aligned columns")
        if parts_of(columns) > MAX_PARTS:
            raise ValueError(f"linear: {columns} columns are more than {MAX_PART * MAX_PARTS}")
        if ending is Ending.SWIGLU and not are_pair(matrices):
            raise ValueError("linear: gate and up differ in rows, format or place")
        if ending is Ending.ADD_RESIDUAL and (
            residual is None or residual.shape != shapes[0] or len(outs) > 1
        ):
            raise ValueError("linear: the residual has another shape")
        if rows.x.kind != ("bf16" if rows.norm is None else "f32"):
            raise ValueError(f"linear: x is {rows.x.kind}")

    def _source(self, rows: Rows, chunks: bool, teams: int, scaling: str) -> Source:
        total, columns = rows.x.shape
        if rows.norm is None:
            return Source(rows.x)
        if rows.left and chunks:
            return Source(rows.left.x, Beginning.LEFT, rows.eps, scale=rows.left.squares)
        if total <= FUSED_NORM_ROWS:
            return Source(rows.x, Beginning.NORMED, rows.eps, rows.norm)
        x, scale = self.take((total, columns), "bf16"), self.take((total,), "f32")
        self.library.get("linear.cu", scaling, TEAMS=teams).launch(
            *(total, teams * SPANS * 32, rows.x, rows.norm, x, scale, columns, rows.eps),
            dependent=self.dependent,
        )
        return Source(x, Beginning.SCALED, scale=scale)

    def _launch(
        self,
        source: Source,
        matrices: Sequence[StoredMatrix],
        outs: Sequence[DeviceArray],
        ending: Ending,
        residual: DeviceArray | None,
        left: Left | None,
        teams: int,
    ) -> None:
        total, columns = source.x.shape
        self._launched += 1
        groups = group_by_format(matrices, ending)
        forms = [group.format for group in groups]
        plan = self._plan(
            total, columns, forms, sum(group.tiles for group in groups), teams, source.norm is None
        )
        split = parts_of(columns) if plan.split else 1
        weight = [
            sum(matrices[i].nbytes for i in group.matrices) * LAYOUTS[group.format].cost for group in groups
        ]
        groups = share_blocks(groups, weight, self.blocks, split)
        tiles = sum(group.tiles for group in groups)
        partial = self._partial(tiles, split)
        call = _pack_matrices(groups, matrices, outs, ending) + _TAIL.pack(
            source.x.ptr,
            source.norm.ptr if source.norm else 0,
            source.scale.ptr if source.scale else 0,
            residual.ptr if residual else 0,
            partial.ptr if partial else 0,
            self.counters.ptr + 4 * LAUNCHES * CLAIMS,
            self.counters.ptr + 4 * CLAIMS * (self._launched % LAUNCHES),
            total,
            columns,
            parts_of(columns),
            source.beginning,
            ending,
            source.eps,
            plan.stages,
            split,
            joint(tiles),
            plan.window,
            plan.shift,
            plan.streams,
            *((left.norm.ptr, left.x.ptr, left.squares.ptr) if left else (0, 0, 0)),
        )
        name = LEAVING if left else CHUNKED if plan.window else kernel_for(forms)
        self.library.get("linear.cu", name, TEAMS=teams).launch(
            sum(group.blocks for group in groups),
            (teams * warps_of(kernel_for(forms)) + (name in (CHUNKED, LEAVING))) * 32,
            call,
            shared=plan.need,
            dependent=self.dependent,
        )

    def _chunks(self, rows: int, columns: int, forms: Sequence[int], tiles: int, teams: int) -> Fit | None:
        if set(forms) != {0} or rows < CHUNKED_ROWS:
            return None
        once = not joint(tiles) and tiles <= self.blocks * teams
        return chunk_fit(rows, columns, self.shared_limit, teams, once)

    def _plan(
        self, rows: int, columns: int, forms: Sequence[int], tiles: int, teams: int, plain: bool
    ) -> Fit:
        found = self._chunks(rows, columns, forms, tiles, teams) if plain else None
        found = found or fit(rows, columns, forms, self.shared_limit, teams)
        assert found is not None
        return found

    def _partial(self, tiles: int, parts: int) -> DeviceArray | None:
        if parts == 1:
            return None
        if tiles > self.counters.size - LAUNCHES * CLAIMS or parts > MAX_PARTS:
            raise ValueError(f"linear: {tiles} split tiles, counters for {self.counters.size}")
        return self.take((tiles * parts * 128,), "f32")


def _pack_matrices(
    groups: Sequence[Group], matrices: Sequence[StoredMatrix], outs: Sequence[DeviceArray], ending: Ending
) -> bytes:
    order = [index for group in groups for index in group.matrices]
    if len(groups) > MAX_GROUPS or len(order) > MAX_MATRICES:
        raise ValueError(
            f"linear: {len(order)} matrices in {len(groups)} formats are too many for one launch"
        )
    packed, first, base = b"", 0, 0
    for group in groups:
        packed += _GROUP.pack(
            group.format, group.first_block, group.blocks, first, len(group.matrices), group.tiles, base
        )
        first, base = first + len(group.matrices), base + group.tiles
    packed += bytes(_GROUP.size * (MAX_GROUPS - len(groups)))
    for index in order:
        m, out = matrices[index], outs[min(index, len(outs) - 1)]
        tiles = tiles_of(m, ending)
        packed += _MATRIX.pack(
            m.codes, m.high, m.scales, m.divisor, out.ptr, m.rows, m.first, out.shape[1], tiles
        )
    return packed + bytes(_MATRIX.size * (MAX_MATRICES - len(order)))
