"""How close the products of a decode step come to the read bandwidth, without anything between them.

Builds the linear chain of a few decoder layers (projections, output, gate/up, down) with random weights,
captures it, and reports bytes over time, whole and by product.  The one thing a reader would get wrong:
mixers are left out on purpose; this is the ceiling that a whole step can reach.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import attrs

from ninfer.bench.random_weights import RandomWeights
from ninfer.bench.timing import read_rate, seconds_of
from ninfer.kernels_cu.arrays import DeviceArray
from ninfer.ops.linear import COUNTERS, Ending, Linear, Rows
from ninfer.ops.linear_source import Left
from ninfer.ops.stored import StoredMatrix
from ninfer.runtime.arena import RawBlock, Region, Scratch
from ninfer.runtime.cuda_card import Card, open_card
from ninfer.runtime.graphs import capture


@attrs.frozen(eq=False)
class ChainLayer:
    """One Gated DeltaNet layer's matrices; ``norm`` serves both norms."""

    norm: DeviceArray
    project: tuple[StoredMatrix, ...]
    output: StoredMatrix
    gate: StoredMatrix
    up: StoredMatrix
    down: StoredMatrix

    @property
    def nbytes(self) -> int:
        """Bytes that one pass reads."""
        all_of = (*self.project, self.output, self.gate, self.up, self.down)
        return sum(matrix.nbytes for matrix in all_of)


def chain_layer(
    weights: RandomWeights, forms: tuple[str, str], hidden: int, inner: int, keys: int, wide: int
) -> ChainLayer:
    """A layer whose q, k, gate and up are in ``forms[0]``, the rest in ``forms[1]``."""
    low, high = forms
    heads = inner // 128
    return ChainLayer(
        norm=weights.values((hidden,), "bf16", 0.1),
        project=(
            weights.matrix(low, 2 * keys, hidden),
            weights.matrix(high, 2 * inner, hidden),
            weights.matrix("bf16", 2 * heads, hidden),
        ),
        output=weights.matrix(high, hidden, inner),
        gate=weights.matrix(low, wide, hidden),
        up=weights.matrix(low, wide, hidden),
        down=weights.matrix(high, hidden, wide),
    )


@attrs.define(eq=False)
class Chain:
    """The chain over ``layers`` for ``rows`` tokens; each product can also be run by itself.

    Products that make the residual stream leave what the norm behind them needs, where they can.
    """

    linear: Linear
    layers: list[ChainLayer]
    rows: int
    scratch: Scratch
    _left: Left | None = None

    def _normed(self, layer: ChainLayer, at: dict[str, DeviceArray]) -> Rows:
        return Rows(at["x"], layer.norm, 1e-6, self._left)

    def _add(self, layer: ChainLayer, y: DeviceArray, matrix: StoredMatrix, x: DeviceArray) -> None:
        out = self.scratch.take(x.shape, "f32")
        self._left = self.linear(Rows(y), [matrix], [out], Ending.ADD_RESIDUAL, x, layer.norm)

    def _buffers(self, layer: ChainLayer) -> dict[str, DeviceArray]:
        take, rows = self.scratch.take, self.rows
        hidden, inner = layer.output.rows, layer.output.columns
        return {
            "x": take((rows, hidden), "f32"),
            "y": take((rows, inner), "bf16"),
            "wide": take((rows, layer.gate.rows), "bf16"),
        }

    def project(self, layer: ChainLayer, at: dict[str, DeviceArray]) -> None:
        """Norm and the mixer's projections."""
        outs = [self.scratch.take((self.rows, matrix.rows), "bf16") for matrix in layer.project]
        self.linear(self._normed(layer, at), layer.project, outs, Ending.STORE_BF16)

    def output(self, layer: ChainLayer, at: dict[str, DeviceArray]) -> None:
        """Output projection with residual."""
        self._add(layer, at["y"], layer.output, at["x"])

    def swiglu(self, layer: ChainLayer, at: dict[str, DeviceArray]) -> None:
        """Norm, gate and up, SiLU product."""
        out = self.scratch.take((self.rows, layer.gate.rows), "bf16")
        self.linear(self._normed(layer, at), [layer.gate, layer.up], [out], Ending.SWIGLU)

    def down(self, layer: ChainLayer, at: dict[str, DeviceArray]) -> None:
        """Down projection with residual."""
        self._add(layer, at["wide"], layer.down, at["x"])

    def figures(self, card: Card) -> Iterator[tuple[str, float, float, int]]:
        """(what, seconds a layer, bytes a second, launches) of the whole chain and of each product."""
        first = self.layers[0]
        at = self._buffers(first)
        parts: dict[str, tuple[Callable[..., None], ...]] = {
            "chain": (self.project, self.output, self.swiglu, self.down),
            "project": (self.project,),
            "output": (self.output,),
            "swiglu": (self.swiglu,),
            "down": (self.down,),
        }
        sizes = {
            "chain": first.nbytes,
            "project": sum(matrix.nbytes for matrix in first.project),
            "output": first.output.nbytes,
            "swiglu": first.gate.nbytes + first.up.nbytes,
            "down": first.down.nbytes,
        }
        for name, calls in parts.items():
            seconds, launches = self._time(card, calls, at)
            yield name, seconds, sizes[name] / seconds, launches

    def _time(
        self, card: Card, calls: tuple[Callable[..., None], ...], at: dict[str, DeviceArray]
    ) -> tuple[float, int]:
        def body() -> None:
            for layer in self.layers:
                for call in calls:
                    call(layer, at)

        body()
        card.wait()
        graph = capture(card.library, card.stream, body)
        return seconds_of(card, graph.replay) / len(self.layers), graph.launches


def report(
    formats: tuple[tuple[str, str], ...],
    batches: tuple[int, ...],
    modes: tuple[str, ...] = ("pdl",),
    budget: int = 8 << 30,
) -> None:
    """Print the chain's figures at 27B shapes for each pair of formats and batch size."""
    card = open_card()
    block = RawBlock.allocate(budget + (4 << 30), "the benchmark")
    region = Region(block.ptr, block.nbytes)
    counters = region.take((COUNTERS,), "u32")
    card.fill(counters)
    scratch_region = region.split(2 << 30)
    scratch = Scratch(scratch_region.base, scratch_region.nbytes)
    rate = read_rate(card, DeviceArray(region.base + region.used, (budget,), "u8"))
    print(f"{card.name}: read {rate / 1e9:.0f} GB/s")
    linear = Linear(card.library, card.multiprocessors, card.shared_bytes, scratch.take, counters)
    start = region.used
    for forms in formats:
        region.used = start
        weights = RandomWeights(card.library, region.take)
        layers = [chain_layer(weights, forms, 5120, 6144, 2048, 17408)]
        while region.used + 2 * layers[0].nbytes < start + budget and len(layers) < 16:
            layers.append(chain_layer(weights, forms, 5120, 6144, 2048, 17408))
        for rows in batches:
            for mode in modes:
                linear.dependent = mode == "pdl"
                line = f"{forms[0][:6]:>7} {forms[1][:6]:>7} rows {rows:2} {mode}"
                for name, seconds, got, _ in Chain(linear, layers, rows, scratch).figures(card):
                    line += f" | {name} {seconds * 1e6:6.1f} us {got / rate:5.3f}"
                print(line)
