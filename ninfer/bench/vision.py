"""`ninfer bench gpu --vision`: the published vision tower on this card, with random weights and no file.

Owns the count of operations of a picture and the division of its time into parts.  The one thing a reader
would get wrong: time of a whole picture begins with its bytes in host memory, so it includes the copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from ninfer.artifact import inventory
from ninfer.bench.gpu import SIDE, RandomLoader
from ninfer.bench.random_weights import RandomWeights
from ninfer.bench.shapes import Q4, Q5, Q6, Q8
from ninfer.bench.timing import gemm_rate, seconds_of
from ninfer.kernels_cu.arrays import DeviceArray
from ninfer.model.config import VisionConfig
from ninfer.model.vision import Block, Tower, encode, load_tower
from ninfer.ops.cuda_vision import CudaVision, wide_biases
from ninfer.ops.gemm import WORKSPACE_BYTES, CublasLt
from ninfer.ops.gemm_bias import Plane, PlanesLt
from ninfer.ops.linear import COUNTERS, Linear
from ninfer.ops.products import Products
from ninfer.ops.verbs import Weight
from ninfer.ops.vision_verbs import Patches
from ninfer.prompt.prepared import MediaSpan
from ninfer.runtime.arena import RawBlock, Region, Scratch
from ninfer.runtime.cuda_card import Card, open_card
from ninfer.runtime.cuda_eyes import MOST_TOKENS, CudaEyes
from ninfer.runtime.cuda_transfers import CupyTransfers
from ninfer.runtime.graphs import capture

TOWER = VisionConfig(27, 1_152, 4_304, 16, 16, 2, 2, 2_304, 5_120)
SCRATCH_BYTES, TOTAL_BYTES = 4 << 30, 8 << 30
REPEATS = 8


def published(name: str) -> str:
    """The format in which official artifacts store a matrix of the tower."""
    if name.startswith("vision/merger/"):
        return Q8
    if name == "vision/patch_embedding":
        return Q6
    return Q5 if name.endswith(("/output", "/fc2")) else Q4


def operations(c: VisionConfig, shape: Patches) -> float:
    """Floating-point operations of one item: every product, attention within slices, nothing else."""
    rows, size, wide = shape.count, shape.height * shape.width, c.hidden * c.merge**2
    block = 2 * rows * (4 * c.hidden**2 + 2 * c.hidden * c.intermediate) + 4 * rows * size * c.hidden
    pixels = 3 * c.temporal_patch * c.patch**2
    merger = 2 * shape.tokens * wide * (wide + c.out_hidden)
    return float(c.depth * block + 2 * rows * pixels * c.hidden + merger)


@attrs.define(eq=False)
class TowerLoader:
    """Random weights, with the biases of queries, keys and values side by side as in an artifact."""

    inner: RandomLoader
    _bias: DeviceArray | None = None

    def has(self, name: str) -> bool:
        """Whether the parameter exists."""
        return self.inner.has(name)

    def weights(self, *names: str) -> tuple[Weight, ...]:
        """Make matrices."""
        return self.inner.weights(*names)

    def table(self, name: str) -> Weight:
        """Make an embedding."""
        return self.inner.table(name)

    def stack(self, names: tuple[str, ...]) -> Weight:
        """Make experts."""
        return self.inner.stack(names)

    def indices(self, name: str) -> DeviceArray:
        """Make indices."""
        return self.inner.indices(name)

    def vector(self, name: str) -> DeviceArray:
        """Make a vector."""
        places = ("query_bias", "key_bias", "value_bias")
        last = name.rsplit("/", 1)[1]
        if last not in places:
            return self.inner.vector(name)
        (count,) = self.inner.shapes.shape(name) or (0,)
        if last == places[0] or self._bias is None:
            self._bias = self.inner.made.values((3, count), "bf16", 0.02)
        return self._bias.rows(places.index(last), places.index(last) + 1).reshape(count)


@attrs.frozen(eq=False)
class Easel:
    """A tower ready to run, and the rate of one bf16 product of ``SIDE``."""

    card: Card
    eyes: CudaEyes
    scratch: Scratch
    rate: float
    memory: RawBlock

    @property
    def verbs(self) -> CudaVision:
        """The tower's verbs."""
        return self.eyes.verbs

    @property
    def tower(self) -> Tower:
        """Its weights."""
        return self.eyes.tower


def measure(sides: tuple[int, ...], recipe: str, pack: Path | None = None) -> dict[str, Any]:
    """Time pictures of so many pixels a side; figures by name.  Raises StartupError."""
    easel = _easel(recipe, pack)
    found: dict[str, Any] = {"card": easel.card.name, "recipe": recipe, "gemm_tflops": easel.rate / 1e12}
    found["pictures"] = [_picture(easel, side) for side in sides]
    return found


def _easel(recipe: str, pack: Path | None) -> Easel:
    card = open_card(pack=pack)
    block = RawBlock.allocate(TOTAL_BYTES, "the benchmark")
    region = Region(block.ptr, block.nbytes)
    counters = region.take((COUNTERS,), "u32")
    gemm = CublasLt(region.take((WORKSPACE_BYTES,), "u8"), card.stream.ptr)
    card.fill(counters)
    scratch = Scratch(region.take((SCRATCH_BYTES,), "u8").ptr, SCRATCH_BYTES)
    made = RandomWeights(card.library, region.take)
    rate = _rate(card, gemm, RandomWeights(card.library, scratch.take))
    form: Callable[[str], str] = published if recipe != "bf16" else lambda name: "bf16"
    tower = load_tower(TowerLoader(RandomLoader(made, inventory.vision(TOWER), form)), TOWER)
    linear = Linear(card.library, card.multiprocessors, card.shared_bytes, scratch.take, counters)
    transfers = CupyTransfers(card.stream)
    endings = [each for b in tower.blocks for each in (b.output, b.fc2)]
    verbs = CudaVision(
        card.library, scratch.take, Products(linear, gemm), PlanesLt(gemm), transfers.send,
        wide_biases(card.library, endings, region.take),
    )  # fmt: skip
    rows = region.take((MOST_TOKENS, TOWER.out_hidden), "bf16")
    record = partial(capture, card.library, card.stream)
    eyes = CudaEyes(verbs, tower, transfers, rows, MOST_TOKENS * 4, record)
    return Easel(card, eyes, scratch, rate, block)


def _rate(card: Card, gemm: CublasLt, made: RandomWeights) -> float:
    x, w = (made.values((SIDE, SIDE), "bf16", 1.0) for _ in range(2))
    return gemm_rate(card, gemm, x, w, made.take((SIDE, SIDE), "bf16"))


def _picture(easel: Easel, side: int) -> dict[str, Any]:
    c = TOWER
    shape = Patches(1, side // c.patch, side // c.patch, c.merge)
    columns = 3 * c.temporal_patch * c.patch**2
    pixels = np.random.default_rng(side).integers(0, 256, (shape.count, columns), np.uint8)
    span = MediaSpan(b"", (1, shape.height, shape.width), ((0, shape.tokens),), pixels)
    eager = seconds_of(easel.card, lambda: encode(easel.verbs, easel.tower, pixels, shape))
    seconds = seconds_of(easel.card, lambda: easel.eyes.encode(span))
    count = operations(c, shape)
    parts = [
        {"part": name, "milliseconds": took * 1e3, "tflops": work / took / 1e12}
        for name, work, body in _parts(easel, shape)
        for took in [_seconds(easel, body)]
    ]
    return {
        "side": side,
        "patches": shape.count,
        "milliseconds": seconds * 1e3,
        "first_milliseconds": eager * 1e3,
        "tflops": count / seconds / 1e12,
        "gemm_fraction": count / seconds / easel.rate,
        "scratch_mib": easel.scratch.peak / 2**20,
        "parts": parts,
    }


def _seconds(easel: Easel, body: Callable[[], object]) -> float:
    """Time a part from a graph, so that the device never waits for the host."""
    body()
    graph = capture(easel.card.library, easel.card.stream, lambda: [body() for _ in range(REPEATS)])
    return seconds_of(easel.card, graph.replay) / REPEATS


def _parts(easel: Easel, shape: Patches) -> Iterator[tuple[str, float, Callable[[], object]]]:
    """Name, operations and body of the parts of one block."""
    c, verbs, block = TOWER, easel.verbs, easel.tower.blocks[0]
    rows, h, inner = shape.count, c.hidden, c.intermediate
    made = RandomWeights(verbs.library, easel.scratch.take)
    x = made.values((rows, h), "f32", 1.0)
    three = (block.query, block.key, block.value)
    q, k, v = verbs.normed(x, block.norm1, three)
    narrow, seen = 2.0 * rows * h * h, 4.0 * rows * shape.height * shape.width * h
    yield "norm, query, key, value", 3 * narrow, lambda: verbs.normed(x, block.norm1, three)
    yield "rotate and attend", seen, lambda: verbs.see(q, k, v, c.heads, shape)
    yield "norm", 0.0, lambda: verbs._norm(x, block.norm1)
    widened = (block.query, block.key, block.value, block.output, block.fc1, block.fc2)
    yield "widen", 0.0, lambda: [verbs._wide(each.weight.data) for each in widened]
    yield "output", narrow, lambda: verbs.linear_add(q, block.output, x)
    mlp = 4.0 * rows * h * inner
    yield (
        "norm, fc1, fc2",
        mlp,
        lambda: verbs.linear_add(verbs.normed_gelu(x, block.norm2, block.fc1), block.fc2, x),
    )
    yield from _products(easel, block, made, rows)


def _products(
    easel: Easel, block: Block, made: RandomWeights, rows: int
) -> Iterator[tuple[str, float, Callable[[], object]]]:
    """Products alone, from bf16, with and without what they end in."""
    gemm, h, inner = easel.verbs.gemm, TOWER.hidden, TOWER.intermediate
    n, wide = made.values((rows, h), "bf16", 1.0), made.values((rows, inner), "bf16", 1.0)
    x, out = made.values((rows, h), "f32", 1.0), made.values((rows, 3 * h), "bf16", 1.0)
    bias = easel.verbs.biases[block.fc2.bias.ptr]
    square, up = made.values((h, h), "bf16", 0.02), made.values((inner, h), "bf16", 0.02)
    down, three = made.values((h, inner), "bf16", 0.02), made.values((3 * h, h), "bf16", 0.02)
    long = made.values((3 * h,), "bf16", 0.02)
    P, narrow, half = Plane.of, 2.0 * rows * h * h, 2.0 * rows * h * inner
    yield "  qkv, bias", 3 * narrow, lambda: gemm(P(n), three, P(out), long)
    yield "  output, bias, added", narrow, lambda: gemm(P(n), square, P(x), bias, add=True)
    yield "  output, added", narrow, lambda: gemm(P(n), square, P(x), add=True)
    yield "  fc1, bias, gelu", half, lambda: gemm(P(n), up, P(wide), block.fc1.bias, gelu=True)
    yield "  fc1, bias", half, lambda: gemm(P(n), up, P(wide), block.fc1.bias)
    yield "  fc2, bias, added", half, lambda: gemm(P(wide), down, P(x), bias, add=True)
    yield "  fc2, added", half, lambda: gemm(P(wide), down, P(x), add=True)


def as_text(found: dict[str, Any]) -> str:
    """A few lines for people."""
    lines = [
        f"{found['card']}: vision tower, {found['recipe']}, product {found['gemm_tflops']:.0f} TFLOP/s"
    ]
    for row in found["pictures"]:
        lines.append(
            f"  {row['side']} x {row['side']}, {row['patches']} patches: {row['milliseconds']:.2f} ms "
            f"({row['first_milliseconds']:.2f} at first sight), "
            f"{row['tflops']:.0f} TFLOP/s, {row['gemm_fraction']:.3f} of the product rate, "
            f"scratch {row['scratch_mib']:.0f} MiB"
        )
        lines += [
            f"      {part['part']:26} {part['milliseconds'] * 1e3:9.1f} us {part['tflops']:6.0f} TFLOP/s"
            for part in row["parts"]
        ]
    return "\n".join(lines)
