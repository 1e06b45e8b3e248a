"""The vision tower: every verb and whole towers against the NumPy twin, and prompts with media."""

from __future__ import annotations

import math
from typing import Any

import attrs
import ml_dtypes
import numpy as np
import pytest

from ninfer.artifact import layouts
from ninfer.engine.device import Prefill
from ninfer.faults import StartupError
from ninfer.kernels_cu.arrays import DeviceArray
from ninfer.model.config import VisionConfig
from ninfer.model.vision import Block, Tower, encode, load_tower
from ninfer.model.weights import load_decoder
from ninfer.ops.cuda_vision import CudaVision, check_vision, wide_biases
from ninfer.ops.gemm_bias import Plane
from ninfer.ops.numpy_vision import NumpyVision, resample
from ninfer.ops.numpy_weights import Columns, NumpyLoader
from ninfer.ops.stored import stored_matrix
from ninfer.ops.verbs import Weight
from ninfer.ops.vision_verbs import Affine, Linear, Patches
from ninfer.prompt.prepared import MediaSpan
from ninfer.runtime.arena import Region, Scratch
from ninfer.runtime.cuda_build import Sizes, assemble, rehearse, reset
from tests.device.tolerance import BF16_ELEMENTWISE, LINEAR_TC, Tolerance
from tests.model.conftest import media_goldens
from tests.model.test_vision import answer, span_of
from tests.suites.bed import Bed, only_on_a_card, relative
from tests.suites.loader import StoredLoader
from tests.suites.program import FIXTURES, open_model, sizes_of

BF16 = np.dtype(ml_dtypes.bfloat16)
SHAPES = [(1, 2, 2), (1, 4, 6), (2, 2, 2), (3, 6, 4), (1, 2, 70), (1, 10, 14)]  # time, height, width
LARGE = [(1, 64, 64), (5, 18, 22), (1, 2, 2000), (16, 16, 16), (1, 34, 30), (2, 2, 66)]
ATTENTION = Tolerance(2e-3, 1.6e-2, 5e-2, 8, 8e-3)  # weights and values are rounded to bf16 before products
TOWER = 2e-2  # relative, after all layers in bf16
shapes = pytest.mark.parametrize("shape", SHAPES + LARGE, ids=str)
models = pytest.mark.parametrize("name", ["tiny-qwen3_5", "tiny-qwen3_5_moe"])


def patches_of(bed: Bed, shape: tuple[int, int, int]) -> Patches:
    only_on_a_card(bed, shape in LARGE)
    return Patches(*shape, merge=2)


def rng_of(*seed: int) -> np.random.Generator:
    return np.random.default_rng([77, *seed])


def rounded(values: Any) -> Any:
    """Values that bf16 holds, in float32."""
    return np.asarray(values, np.float32).astype(BF16).astype(np.float32)


@attrs.frozen(eq=False)
class Both:
    """A parameter on either side."""

    host: Any
    device: Any


def vector(bed: Bed, rng: np.random.Generator, count: int, mean: float = 0.0) -> Both:
    values = rounded(mean + rng.standard_normal(count) / 8)
    return Both(values, bed.to(values.astype(BF16)))


def affine(bed: Bed, rng: np.random.Generator, width: int) -> Both:
    weight, bias = vector(bed, rng, width, 1.0), vector(bed, rng, width)
    return Both(Affine(weight.host, bias.host), Affine(weight.device, bias.device))


def linear(bed: Bed, rng: np.random.Generator, rows: int, columns: int, form: str = "bf16") -> Both:
    values = (rng.standard_normal((rows, columns)) / columns**0.5).astype(np.float32)
    data, bias = layouts.encode(values, form), vector(bed, rng, rows)
    decoded = values if form == "bf16" else layouts.decode_rows(data.data, form, values.shape, 0, rows)
    exact = rounded(decoded)
    matrix = stored_matrix(bed.to(data.view(np.uint8).reshape(-1)), form, values.shape)
    return Both(Linear(held(exact), bias.host), Linear(Weight(rows, columns, form, matrix), bias.device))


def held(values: Any) -> Weight:
    """A matrix as the NumPy verbs take it."""
    return Weight(*values.shape, "fp32", Columns(np.ascontiguousarray(values.T), 0, len(values)))


def verbs_of(bed: Bed, tower: Tower | None = None, *biases: Linear) -> CudaVision:
    endings = [] if tower is None else [each for b in tower.blocks for each in (b.output, b.fc2)]
    wide = wide_biases(bed.library, [*endings, *biases], bed.take)
    planes = bed.machine.planes
    assert planes is not None
    return CudaVision(bed.library, bed.take, bed.products, planes, bed.machine.transfers.send, wide)


def test_a_patch_gets_its_place_from_a_square_table(bed: Bed) -> None:
    for shape in SHAPES:
        rng, patches = rng_of(1, *shape), patches_of(bed, shape)
        project, table = linear(bed, rng, 72, 24), rounded(rng.standard_normal((49, 72)))
        pixels = rng.uniform(-1, 1, (patches.count, 24)).astype(np.float32)
        raw = rng.integers(0, 256, (patches.count, 24)).astype(np.uint8)
        device = bed.to(table.astype(BF16))
        for values in (pixels, rounded(pixels).astype(BF16), raw):
            seen = values if values is raw else rounded(values)
            want = NumpyVision().embed_patches(seen, project.host, table, patches)
            got = verbs_of(bed).embed_patches(values, project.device, device, patches)
            LINEAR_TC.check(bed.back(got), want)
        assert not np.allclose(resample(table, patches), 0)


@shapes
def test_every_patch_sees_its_slice_and_nothing_else(bed: Bed, shape: tuple[int, int, int]) -> None:
    patches, heads = patches_of(bed, shape), 2 if not bed.real else 4
    rng, width = rng_of(2, *shape), 72 * heads
    norm = affine(bed, rng, width)
    whole = linear(bed, rng, 3 * width, width, "q8_g32_fp16")
    parts = [split(whole, i * width, (i + 1) * width) for i in range(3)]
    x = rng.standard_normal((patches.count, width)).astype(np.float32) * 3
    twin, verbs = NumpyVision(), verbs_of(bed)
    wants = twin.normed(x, norm.host, tuple(part.host for part in parts))
    got = verbs.normed(bed.to(x), norm.device, tuple(part.device for part in parts))
    qkv = bed.back(whole_of(got))
    for found, want in zip(np.split(qkv, 3, axis=1), wants, strict=True):
        LINEAR_TC.check(found, want)
    q, k, v = (rounded(part) for part in np.split(qkv, 3, axis=1))
    out = verbs.see(*got, heads, patches)
    ATTENTION.check(bed.back(whole_of(got))[:, :width], twin.see(q, k, v, heads, patches))
    assert out.columns == width and np.isfinite(bed.back(whole_of(got)).astype(np.float32)).all()


def whole_of(bands: Any) -> Any:
    first = bands[0]
    return DeviceArray(first.ptr, (first.rows, first.stride), "bf16", first.owner)


def split(whole: Both, begin: int, end: int) -> Both:
    matrix, bias = whole.device.weight.data.take(begin, end), whole.device.bias
    view = DeviceArray(bias.ptr + 2 * begin, (end - begin,), "bf16", bias)
    host = Linear(held(whole.host.weight.data.matrix.T[begin:end]), whole.host.bias[begin:end])
    return Both(host, Linear(Weight(end - begin, matrix.columns, matrix.format, matrix), view))


def test_sharp_and_flat_scores_keep_their_weights(bed: Bed) -> None:
    """Queries that grow along the keys make sums be rescaled many times."""
    patches, heads = Patches(1, 16, 10 if not bed.real else 90, 2), 1
    rng = rng_of(3)
    rows = patches.count
    for scale in (0.0, 1.0, 60.0):
        q, k, v = (rounded(rng.standard_normal((rows, 72))) for _ in range(3))
        k = rounded(k + np.linspace(0, scale, rows)[:, None] * q.mean(axis=0))
        q = rounded(q * (1 + scale / 8))
        packed = np.concatenate([q, k, v], axis=1).astype(BF16)
        device = bed.to(packed)
        whole = Plane.of(device)
        verbs_of(bed).see(*(whole.band(72 * i, 72) for i in range(3)), heads, patches)
        want = NumpyVision().see(q, k, v, heads, patches)
        assert relative(bed.back(device)[:, :72].astype(np.float32), want) < 2e-2


def test_matrices_that_are_not_neighbours_are_multiplied_one_by_one(bed: Bed) -> None:
    rng, width = rng_of(4), 144
    norm, x = affine(bed, rng, width), rng.standard_normal((20, width)).astype(np.float32)
    parts = [linear(bed, rng, width, width, form) for form in ("bf16", "q8_g32_fp16", "bf16")]
    wants = NumpyVision().normed(x, norm.host, tuple(part.host for part in parts))
    got = verbs_of(bed).normed(bed.to(x), norm.device, tuple(part.device for part in parts))
    for found, want in zip(np.split(bed.back(whole_of(got)), 3, axis=1), wants, strict=True):
        LINEAR_TC.check(found, want)


@pytest.mark.parametrize("rows", [1, 12, 20_000])
def test_the_wide_half_of_a_block_adds_in_place(bed: Bed, rows: int) -> None:
    only_on_a_card(bed, rows > 100)
    rng, width, inner = rng_of(5, rows), 144, 304
    norm, fc1 = affine(bed, rng, width), linear(bed, rng, inner, width, "q4_g64_fp16")
    fc2 = linear(bed, rng, width, inner, "q5_g64_fp16")
    x = rng.standard_normal((rows, width)).astype(np.float32) * 2
    twin, verbs, device = NumpyVision(), verbs_of(bed, None, fc2.device), bed.to(x)
    want = twin.linear_add(twin.normed_gelu(x, norm.host, fc1.host), fc2.host, x)
    got = verbs.linear_add(verbs.normed_gelu(device, norm.device, fc1.device), fc2.device, device)
    assert got is device
    LINEAR_TC.check(bed.back(got) - x, want - x)


def test_the_merger_joins_blocks_and_bends_exactly(bed: Bed) -> None:
    rng, shape, width = rng_of(6), Patches(2, 4, 6, 2), 72
    norm, fc1 = affine(bed, rng, width), linear(bed, rng, 4 * width, 4 * width)
    x = rng.standard_normal((shape.count, width)).astype(np.float32)
    twin, verbs = NumpyVision(), verbs_of(bed)
    joined = verbs.merge(bed.to(x), norm.device, shape)
    BF16_ELEMENTWISE.check(bed.back(joined), twin.merge(x, norm.host, shape))
    rows = rounded(bed.back(joined))
    LINEAR_TC.check(bed.back(verbs.linear_gelu(joined, fc1.device)), twin.linear_gelu(rows, fc1.host))
    LINEAR_TC.check(bed.back(verbs.linear(joined, fc1.device)), twin.linear(rows, fc1.host))


def random_tower(bed: Bed, rng: np.random.Generator, config: VisionConfig, pixels: int) -> Both:
    """A tower of random weights on either side."""
    wide, inner = config.hidden, config.intermediate

    def block() -> tuple[Block, Block]:
        qkv = linear(bed, rng, 3 * wide, wide, "q4_g64_fp16")
        three = [split(qkv, i * wide, (i + 1) * wide) for i in range(3)]
        output = linear(bed, rng, wide, wide, "q5_g64_fp16")
        first, last = (
            linear(bed, rng, inner, wide, "q4_g64_fp16"),
            linear(bed, rng, wide, inner, "q5_g64_fp16"),
        )
        made = (affine(bed, rng, wide), *three, output, affine(bed, rng, wide), first, last)
        return Block(*(each.host for each in made)), Block(*(each.device for each in made))

    blocks = [block() for _ in range(config.depth)]
    patch = linear(bed, rng, wide, pixels, "q6_g64_fp16")
    table, norm = rounded(rng.standard_normal((config.positions, wide))), affine(bed, rng, wide)
    fc1 = linear(bed, rng, 4 * wide, 4 * wide, "q8_g32_fp16")
    fc2 = linear(bed, rng, config.out_hidden, 4 * wide, "q8_g32_fp16")
    tail = (norm, fc1, fc2)
    return Both(
        Tower(config, patch.host, table, tuple(b for b, _ in blocks), *(each.host for each in tail)),
        Tower(
            config, patch.device, bed.to(table.astype(BF16)), tuple(b for _, b in blocks),
            *(each.device for each in tail),
        ),
    )  # fmt: skip


@pytest.mark.parametrize("shape", [(1, 2, 2), (2, 4, 6), (1, 64, 64), (4, 24, 40)], ids=str)
def test_whole_towers_agree(bed: Bed, shape: tuple[int, int, int]) -> None:
    patches = patches_of(bed, shape)
    only_on_a_card(bed, patches.count > 100)
    heads, depth = (16, 4) if bed.real else (1, 2)
    inner = 4_304 if bed.real else 144
    config = VisionConfig(depth, 72 * heads, inner, heads, 4, 2, 2, 49, 2_048 if bed.real else 64)
    rng = rng_of(8, *shape)
    tower = random_tower(bed, rng, config, 96)
    pixels = rng.integers(0, 256, (patches.count, 96)).astype(np.uint8)
    want = encode(NumpyVision(), tower.host, pixels, patches)
    verbs = verbs_of(bed, tower.device)
    got = [bed.back(encode(verbs, tower.device, pixels, patches)).astype(np.float32) for _ in range(2)]
    assert relative(got[0], want) < TOWER and (got[0] == got[1]).all()


def test_towers_without_a_kernel_are_refused() -> None:
    fine = VisionConfig(1, 1_152, 4_304, 16, 16, 2, 2, 49, 64)
    check_vision(fine)
    for change in ({"heads": 18}, {"hidden": 3_600, "heads": 50}, {"hidden": 1_156}):
        with pytest.raises(StartupError, match="vision tower"):
            check_vision(attrs.evolve(fine, **change))


def program_with_eyes(bed: Bed, name: str, lend: Any = None, **changes: Any) -> Any:
    from ninfer.settings import EngineOptions
    from ninfer.spec.drafter import DRAFTERS

    options = attrs.evolve(EngineOptions(), **{"max_context": 2_048, "prefill_chunk": 2_048, **changes})
    artifact = open_model(name)
    loader, config = StoredLoader(artifact, bed.to), artifact.text_config
    decoder, tower = load_decoder(loader, config), load_tower(loader, artifact.vision_config)
    drafter = DRAFTERS[options.spec](loader, decoder) if options.spec else None
    sizes = sizes_of(options, config.vocab)
    program = assemble(bed.machine, config, decoder, drafter, sizes, bed.take, lend or bed.take, tower)
    reset(program)
    program.transfers.fill(program.pages.data, 0xFF)
    return program


@models
@pytest.mark.slow
def test_recorded_features_are_found(bed: Bed, name: str) -> None:
    only_on_a_card(bed, name.endswith("moe"))
    program = program_with_eyes(bed, name, max_context=512, prefill_chunk=64)
    artifact = open_model(name)
    twin = load_tower(NumpyLoader(artifact), artifact.vision_config)
    for golden in list(media_goldens(FIXTURES / f"{name}.ninfer").values())[: 9 if bed.real else 1]:
        span = span_of(golden)
        shape = Patches(*span.grid, merge=2)
        want = encode(NumpyVision(), twin, golden.pixels, shape)
        assert relative(bed.back(program.eyes.encode(span)), want) < TOWER, golden.name


@models
@pytest.mark.slow
@pytest.mark.parametrize("chunk", [2_048, 64, 7])
def test_recorded_answers_to_pictures_and_clips_are_given(bed: Bed, name: str, chunk: int) -> None:
    only_on_a_card(bed, True)
    program = program_with_eyes(bed, name, spec="mtp", draft_tokens=3)
    for golden in media_goldens(FIXTURES / f"{name}.ninfer").values():
        for draft in (0, 3):
            assert answer(program, golden, chunk, draft) == golden.greedy, (golden.name, draft)


@pytest.mark.slow
def test_an_item_that_was_dropped_is_encoded_again(bed: Bed) -> None:
    """Two lanes fill their prompts in turn, and the pool has room for one of their pictures."""
    program = program_with_eyes(bed, "tiny-qwen3_5", max_context=64, prefill_chunk=16, max_concurrency=2)
    pixels = rng_of(9).integers(0, 256, (160, 1_536)).astype(np.uint8)
    span = MediaSpan(b"", (1, 8, 20), ((2, 40),), pixels)

    def unit(lane: int, start: int) -> Prefill:
        return Prefill(lane, lane, start, (7,) * 16, (lane,), media=(span,))

    first = [bed.back(array) for array in program.eyes.embeds(unit(0, 0))[1:]]
    assert list(program.eyes._kept) == [(0, 2)]
    again = [bed.back(array) for array in program.eyes.embeds(unit(1, 0))[1:]]
    assert list(program.eyes._kept) == [(1, 2)]
    assert (first[0] == again[0]).all()
    back = bed.back(program.eyes.embeds(unit(0, 16))[1])
    whole = bed.back(program.eyes.encode(span))
    assert (back == whole[14:30]).all() and (first[0] == whole[:14]).all()
    program.eyes.forget(0)
    assert not program.eyes._kept


@attrs.define(eq=False)
class Again:
    """Stands in for a graph: runs its body again, whose arrays must then lie where they lay.

    The body runs while it is recorded, too, which counts as the first replay.
    """

    body: Any
    fresh: bool = True

    def __attrs_post_init__(self) -> None:
        self.body()

    def replay(self) -> None:
        """Run the body, but for the first time."""
        if not self.fresh:
            self.body()
        self.fresh = False


@pytest.mark.slow
def test_a_shape_that_comes_again_is_replayed_to_the_same_bits(bed: Bed) -> None:
    room = bed.take((32 << 20,), "u8")
    scratch = Scratch(-(-room.ptr // 256) * 256, room.nbytes - 256)
    program = program_with_eyes(bed, "tiny-qwen3_5", scratch.take, max_context=64, prefill_chunk=16)
    eyes, rng = program.eyes, rng_of(12)
    shapes = ((1, 2, 4), (1, 4, 2), (2, 2, 2)) if not bed.real else ((1, 8, 16), (1, 12, 4), (3, 4, 4))
    spans = [
        MediaSpan(b"", grid, ((0, len(pixels) // 4),), pixels)
        for grid in shapes
        for pixels in rng.integers(0, 256, (2, math.prod(grid), 1_536), np.uint8)
    ]
    record = Again if eyes.capture is None else eyes.capture
    eyes.capture = None
    wants = [bed.back(eyes.encode(span)) for span in (spans if bed.real else spans[:3])]
    eyes.capture = record
    order = (0, 1, 0, 1, 2, 0, 3, 2, 3, 2, 4, 5, 4) if bed.real else (0, 1, 0, 2, 1)
    for index in order:
        assert (bed.back(eyes.encode(spans[index])) == wants[index]).all(), index
        assert scratch.lent == 0
    assert len(eyes._graphs) == (3 if bed.real else 1)


@pytest.mark.slow
def test_rehearsed_scratch_is_enough_for_the_largest_item(bed: Bed) -> None:
    artifact = open_model("tiny-qwen3_5")
    loader, config = StoredLoader(artifact, bed.to), artifact.text_config
    decoder, tower = load_decoder(loader, config), load_tower(loader, artifact.vision_config)
    sizes = Sizes(1, 2, 2, 128, 64, 0, config.vocab, patches=96)
    kept, lent = rehearse(bed.machine, config, decoder, None, sizes, tower)
    bare = rehearse(bed.machine, config, decoder, None, sizes)
    assert kept > bare[0] and lent > bare[1] // 2
    room = bed.take((kept + lent + 512,), "u8")
    region, scratch = Region(room.ptr, kept), Scratch(-(-(room.ptr + kept) // 256) * 256, lent)
    program = assemble(bed.machine, config, decoder, None, sizes, region.take, scratch.take, tower)
    assert region.used == kept
    reset(program)
    for grid in ((1, 8, 12), (1, 2, 48), (3, 4, 8))[: 3 if bed.real else 1]:
        tokens = 24
        pixels = rng_of(10).integers(0, 256, (tokens * 4, 1_536)).astype(np.uint8)
        media = (MediaSpan(b"", grid, ((1, tokens),), pixels),)
        program.run(Prefill(0, 0, 0, (5,) * 9, (0, 1), media=media))
        assert scratch.lent == 0 and scratch.peak <= lent
