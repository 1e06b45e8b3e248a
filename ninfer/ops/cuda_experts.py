"""Launches of the expert kernels, and how stacked experts lie in memory.

Rows of decode and verification meet their experts one by one; prompts are grouped by expert.  The one
thing a reader would get wrong: ``add`` runs gate and up too, since only there are the shared expert's
weights known; ``Pending`` is all that ``experts_swiglu`` returns.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import attrs

from ninfer.kernels_cu.arrays import DeviceArray
from ninfer.kernels_cu.pack import Kernel, Library
from ninfer.ops.cuda_state import Shape, Take
from ninfer.ops.linear import Ending, Rows
from ninfer.ops.products import Products, joined, matrix_bytes
from ninfer.ops.stored import CODES, StoredMatrix
from ninfer.ops.verbs import Routing

MOST = 16  # experts of a row, at most
UP_WARPS, PARTS, AHEAD = 8, 4, 4
# format -> columns of a stage, bytes of a stage; Layout of experts_stage.cuh
_STAGES = {
    0: (32, 1024),
    1: (64, 1024),
    2: (64, 1088),
    3: (128, 1088),
    4: (128, 1344),
    5: (128, 1600),
    6: (128, 1152),
}


@attrs.frozen(eq=False)
class Bank:
    """Experts of one stacked weight: row r of expert e is row ``e * step + r`` of ``rows``.

    width  rows of one expert
    """

    rows: StoredMatrix
    step: int
    width: int

    @property
    def experts(self) -> int:
        """How many there are."""
        return (self.rows.rows - self.width) // self.step + 1

    def pack(self) -> bytes:
        """The ``Bank`` struct of experts.cu."""
        return matrix_bytes(self.rows) + struct.pack("ii", CODES[self.rows.format], self.step)


def bank_of(experts: Sequence[StoredMatrix]) -> Bank:
    """Join matrices of equal shape that lie at equal distances in one object.  Raises ValueError."""
    first, width = experts[0], experts[0].rows
    step = experts[1].first - first.first if len(experts) > 1 else width
    for number, matrix in enumerate(experts):
        wanted = attrs.evolve(first, rows=first.rows + step * number).take(
            step * number, step * number + width
        )
        places = [
            (m.codes, m.high, m.scales, m.first, m.format, m.rows, m.columns) for m in (matrix, wanted)
        ]
        if places[0] != places[1]:
            raise ValueError(f"expert {number} does not follow the others at {step} rows")
    rows = step * (len(experts) - 1) + width
    return Bank(attrs.evolve(first, rows=rows, nbytes=first.nbytes * len(experts)), step, width)


def single(matrix: StoredMatrix) -> Bank:
    """A bank of one expert."""
    return Bank(matrix, matrix.rows, matrix.rows)


def tile_rows(pairs: int, experts: int, least: int) -> int:
    """Rows of a tile: as many as an expert has on average, in whole variants."""
    return next((tile for tile in (32, 64) if tile >= least and pairs <= tile * experts), 128)


@attrs.frozen(eq=False)
class Groups:
    """(row, choice) pairs by expert, padded to ``tiles`` tiles of ``tile`` places.

    sources  (places,) the pair of each place, -1 for padding
    places   (pairs,)  the place of each pair
    owners   (tiles,)  the expert of each tile, -1 behind the last
    """

    tile: int
    tiles: int
    sources: DeviceArray
    places: DeviceArray
    owners: DeviceArray

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a product block."""
        return (3 * self.tile + 2 * 128) * 64 * 2


@attrs.frozen(eq=False)
class Pending:
    """Gate and up of the routed experts, not yet multiplied."""

    gate: Bank
    up: Bank


def _room(columns: int, matrix: StoredMatrix, parts: int) -> tuple[int, int]:
    """Bytes of a staged row of ``columns``, and of the ring of a warp that takes one of ``parts``."""
    unit, stage = _STAGES[CODES[matrix.format]]
    units = -(-columns // unit)
    most = -(-units // parts)
    return units * unit * 2 + 64, stage * (most if most <= AHEAD else AHEAD + 1)


@attrs.define(eq=False)
class Experts:
    """Runs mixtures of experts.

    counters  (rows,) u32, zero
    hopper    whether prompts may use experts_hopper.cu where the card can run it
    """

    library: Library
    take: Take
    shape: Shape
    products: Products
    counters: DeviceArray
    dependent: bool = True
    hopper: bool = True

    def route(
        self,
        x: DeviceArray,
        norm: DeviceArray,
        router: StoredMatrix,
        score: StoredMatrix,
        per_token: int,
        wide: bool,
    ) -> Routing:
        """Choose experts for each row of x (T, H) float32."""
        rows, columns = x.shape
        if not per_token <= min(MOST, router.rows) or router.rows > 1024:
            raise ValueError(f"route: {per_token} of {router.rows} experts")
        normed, shared = self.take((rows, columns), "bf16"), self.take((rows,), "f32")
        experts, weights = self.take((rows, per_token), "i32"), self.take((rows, per_token), "f32")
        parts = (experts, weights, shared)
        choice = struct.pack("3Q2i", *(part.ptr for part in parts), router.rows, per_token)
        if not wide and router.format == score.format == "bf16" and router.aligned and score.aligned:
            self._score(normed, choice, x, norm, router, score)
        else:
            self._route(normed, choice, x, norm, router, score, wide)
        return Routing(normed, experts, weights, shared)

    def _score(
        self,
        normed: DeviceArray,
        choice: bytes,
        x: DeviceArray,
        norm: DeviceArray,
        router: StoredMatrix,
        score: StoredMatrix,
    ) -> None:
        rows, columns = x.shape
        if rows > self.counters.size:
            raise ValueError(f"route: {rows} rows, counters for {self.counters.size}")
        logits = self.take((rows, router.rows + 1), "f32")
        rule, gate = (DeviceArray(m.codes, (m.rows, m.columns), "bf16", m.owner) for m in (router, score))
        self.library.get("experts.cu", "experts_score").launch(
            (router.rows // 8 + 1, rows),
            256,
            *(normed, choice, x, norm, rule, gate, logits, self.counters, columns, self.shape.eps),
            shared=columns * 4,
            dependent=self.dependent,
        )

    def _route(
        self,
        normed: DeviceArray,
        choice: bytes,
        x: DeviceArray,
        norm: DeviceArray,
        router: StoredMatrix,
        score: StoredMatrix,
        wide: bool,
    ) -> None:
        logits, chance, strides = self._scores(Rows(x, norm, self.shape.eps), router, score, wide)
        self.library.get("experts.cu", "experts_route").launch(
            x.shape[0],
            256,
            *(normed, choice, x, norm, logits, strides[0], chance, strides[1]),
            *(x.shape[1], self.shape.eps),
            dependent=self.dependent,
        )

    def _scores(
        self, x: Rows, router: StoredMatrix, score: StoredMatrix, wide: bool
    ) -> tuple[DeviceArray, DeviceArray, tuple[int, int]]:
        """Products of router and shared gate, and how far their rows are apart."""
        rows, both = x.x.shape[0], joined(router, score)
        if wide and both is not None:
            out = self.take((rows, both.rows), "f32")
            self.products(x, [both], [out], Ending.STORE_F32, wide=True)
            chance = DeviceArray(out.ptr + 4 * router.rows, (rows, 1), "f32", out.owner)
            return out, chance, (both.rows, both.rows)
        logits, chance = self.take((rows, router.rows), "f32"), self.take((rows, 1), "f32")
        self.products(x, [router, score], [logits, chance], Ending.STORE_F32, wide=wide)
        return logits, chance, (router.rows, 1)

    def add(
        self,
        y: Pending,
        route: Routing,
        down: Bank,
        shared: tuple[StoredMatrix, StoredMatrix, StoredMatrix],
        x: DeviceArray,
        wide: bool,
    ) -> DeviceArray:
        """x + the routed experts + the shared expert.  -> (T, H) float32."""
        if wide:
            return self._wide(y, route, down, shared, x)
        gate, up, last = (single(matrix) for matrix in shared)
        products = self._up(y, gate, up, route)
        return self._down(products, down, last, route, x)

    # Prompts

    def _hopper(self) -> bool:
        """Whether Hopper's products run: the card alone decides, since they may round otherwise."""
        return self.hopper and self.library.supports("experts_hopper.cu")

    def _product(self, name: str, tile: int) -> Kernel:
        """The product ``name`` of tiles of ``tile`` rows."""
        way = "hopper" if self._hopper() else "wide"
        return self.library.get(f"experts_{way}.cu", f"experts_{name}_{way}", BM=tile)

    def _wide(
        self,
        y: Pending,
        route: Routing,
        down: Bank,
        shared: tuple[StoredMatrix, StoredMatrix, StoredMatrix],
        x: DeviceArray,
    ) -> DeviceArray:
        groups = self._group(route, y.gate.experts)
        act = self._up_wide(groups, route, y)
        parts = self._down_wide(groups, route, act, down)
        del act
        rows, hidden = x.shape
        inner = self.take((rows, shared[0].rows), "bf16")
        self.products(Rows(route.normed), shared[:2], [inner], Ending.SWIGLU, wide=True)
        common, out = self.take(x.shape, "f32"), self.take(x.shape, "f32")
        self.products(Rows(inner), shared[2:], [common], Ending.STORE_F32, wide=True)
        per_token = route.experts.shape[1]
        self.library.get("experts_wide.cu", "experts_sum", BM=groups.tile).launch(
            rows, 256, out, x, parts, groups.places, common, route.shared, hidden, per_token
        )
        return out

    def _group(self, route: Routing, experts: int) -> Groups:
        """List the (row, choice) pairs by expert."""
        count, hopper = route.experts.size, self._hopper()
        tile = tile_rows(count, experts, 64 if hopper else 32)
        tiles = count // tile + experts
        counts, places = self.take((experts,), "i32"), self.take((count,), "i32")
        sources, owners = self.take((tiles * tile,), "i32"), self.take((tiles,), "i32")
        get = self.library.get
        get("experts_wide.cu", "experts_count", BM=tile).launch(experts, 256, counts, route.experts, count)
        get("experts_wide.cu", "experts_place", BM=tile).launch(
            experts, 256, sources, places, owners, counts, route.experts, count, tiles
        )
        return Groups(tile, tiles, sources, places, owners)

    def _up_wide(self, groups: Groups, route: Routing, y: Pending) -> DeviceArray:
        width, columns = y.gate.width, y.gate.rows.columns
        act = self.take((groups.tiles * groups.tile, width), "bf16")
        (gate, one), (up, two) = self._fit(y.gate, y.up.rows.format), self._fit(y.up, y.gate.rows.format)
        self._product("up", groups.tile).launch(
            (-(-width // 64), groups.tiles),
            256,
            *(act, route.normed, gate.pack(), up.pack(), groups.sources, groups.owners),
            *(columns, width, route.experts.shape[1]),
            shared=groups.shared_bytes,
        )
        del one, two  # the launch above read them
        return act

    def _fit(self, bank: Bank, partner: str) -> tuple[Bank, DeviceArray | None]:
        """The bank as the kernels take it: widened unless its rows come in whole runs of one format."""
        if bank.rows.columns % 32 == 0 and bank.rows.aligned and partner == bank.rows.format:
            return bank, None
        wide = self.products.widen(bank.rows)
        rows = StoredMatrix("bf16", bank.rows.rows, bank.rows.columns, wide.ptr)
        return attrs.evolve(bank, rows=rows), wide

    def _down_wide(self, groups: Groups, route: Routing, act: DeviceArray, down: Bank) -> DeviceArray:
        width, hidden = down.rows.columns, down.width
        parts = self.take((groups.tiles * groups.tile, hidden), "bf16")
        bank, wide = self._fit(down, down.rows.format)
        self._product("down", groups.tile).launch(
            (-(-hidden // 128), groups.tiles),
            256,
            *(parts, act, bank.pack(), groups.sources, groups.owners, route.weights, width, hidden),
            shared=groups.shared_bytes,
        )
        del wide  # the launch above read it
        return parts

    # Rows

    def _up(self, y: Pending, gate: Bank, up: Bank, route: Routing) -> DeviceArray:
        rows, columns = route.normed.shape
        per_token, width, common = route.experts.shape[1], y.gate.width, gate.width
        if width % 8 or common % 8 or columns % 8:
            raise ValueError(f"experts: widths {width} and {common} of {columns} columns")
        stride = per_token * width + common
        out = self.take((rows, stride), "bf16")
        tiles = UP_WARPS // PARTS
        blocks = -(-per_token * width // 8 // tiles)
        sizes = [_room(columns, bank.rows, PARTS) for bank in (y.gate, gate)]
        room = -(-max(ring for _, ring in sizes) // 128) * 128
        shared = UP_WARPS * (512 + room) + max(row for row, _ in sizes)
        call = b"".join(bank.pack() for bank in (y.gate, y.up, gate, up)) + struct.pack(
            "QQQ8i", route.normed.ptr, route.experts.ptr, out.ptr,
            columns, per_token, width, common, stride, blocks, room, 0,
        )  # fmt: skip
        self.library.get("experts.cu", "experts_up").launch(
            (blocks + -(-common // 8 // tiles), rows), 256, call, shared=shared, dependent=self.dependent
        )
        return out

    def _down(
        self, products: DeviceArray, down: Bank, last: Bank, route: Routing, x: DeviceArray
    ) -> DeviceArray:
        rows, hidden = x.shape
        per_token = route.experts.shape[1]
        width, common = down.rows.columns, last.rows.columns
        if hidden % 16 or width % 8 or common % 8:
            raise ValueError(f"experts: {hidden} rows of {width} and {common} columns")
        out = self.take(x.shape, "f32")
        room = max(sum(_room(bank.rows.columns, bank.rows, 1)) for bank in (down, last))
        room = -(-room // 128) * 128
        pointers = (products, route.experts, route.weights, route.shared, x, out)
        call = b"".join(bank.pack() for bank in (down, last)) + struct.pack(
            "6Q6i",
            *(part.ptr for part in pointers),
            hidden,
            per_token,
            width,
            common,
            products.shape[1],
            room,
        )
        self.library.get("experts.cu", "experts_down").launch(
            (hidden // 16, rows),
            32 * (per_token + 1),
            call,
            shared=room * (per_token + 1),
            dependent=self.dependent,
        )
        return out
