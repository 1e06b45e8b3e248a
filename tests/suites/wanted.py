"""Prompts whose last layer leaves out what nobody reads, beside those of a program that reads every row."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import pytest

from ninfer.engine.device import Bind, Clear, Prefill
from ninfer.engine.job import Sampling
from ninfer.kernels_cu.arrays import DeviceArray
from ninfer.model.weights import Attention
from ninfer.prompt.prepared import MediaSpan
from ninfer.runtime.cuda_program import CudaProgram
from tests.suites.attention import BF16, WAYS
from tests.suites.bed import Bed, only_on_a_card
from tests.suites.program import image, models, program_of, prompt

PAGES = (3, 0, 2, 1, 5, 4)


class Reader:
    """A drafter that asks for all rows of a pass and drafts nothing."""

    def follow(self, verbs: Any, hidden: DeviceArray, step: Any) -> None:
        """Insist on all rows."""
        assert hidden.shape[0] == step.rows


@attrs.frozen(eq=False)
class Eyes:
    """Gives the rows of an item features that were made before."""

    features: DeviceArray

    def embeds(self, unit: Prefill) -> Any:
        """Rows of a unit, and what fills them."""
        (begin, count), end = unit.media[0].runs[0], unit.start + len(unit.ids)
        first, stop = max(begin, unit.start), min(begin + count, end)
        rows = np.arange(first - unit.start, stop - unit.start, dtype=np.int32)
        return rows, self.features.rows(first - begin, stop - begin)

    def forget(self, lane: int) -> None:
        """Nothing is kept."""


def ends_with(program: CudaProgram, mixer: str) -> CudaProgram:
    """Leave two layers, one of each kind, the mixer of the last as said."""
    layers = program.decoder.layers[2:4]
    assert isinstance(layers[1].mixer, Attention) and not isinstance(layers[0].mixer, Attention)
    layers = layers if mixer == "attention" else layers[::-1]
    program.decoder = attrs.evolve(program.decoder, layers=layers)
    return program


def pieces(
    bed: Bed, program: CudaProgram, ids: tuple[int, ...], cuts: tuple[int, ...], media: Any = ()
) -> list[Any]:
    """The image behind each piece; then the token and the cache."""
    at, found = 0, []
    program.transfers.fill(program.pages.data, 0xFF)
    program.run(Clear(0))
    program.run(Bind(0, Sampling()))
    for count in cuts:
        here = tuple(span for span in media if span.start < at + count and span.stop > at)
        last = at + count == len(ids)
        result = program.run(Prefill(0, 0, at, ids[at : at + count], PAGES, sample=last, media=here))
        found.append(image(bed, program).tobytes())
        at += count
    return [*found, result.rows, bed.back(program.pages.data).tobytes()]


def both(bed: Bed, name: str, mixer: str, **options: Any) -> tuple[CudaProgram, CudaProgram]:
    """A program that reads every row, and one that leaves out what nobody reads."""
    full, short = (ends_with(program_of(bed, name, **options), mixer) for _ in range(2))
    full.drafter = Reader()  # type: ignore[assignment]
    return full, short


@models
@pytest.mark.parametrize("mixer", ["attention", "delta"])
@pytest.mark.slow
def test_what_is_left_out_changes_no_bit_wherever_prompts_are_cut(bed: Bed, name: str, mixer: str) -> None:
    full, short = both(bed, name, mixer)
    ids = prompt(300 if bed.real else 86, 6)
    cuts = [(86,), (1, 63, 22)]
    if bed.real:
        cuts = [(300,), (1, 63, 64, 172), (37, 100, 163), (256, 44), (299, 1)]
    for cut in cuts:
        assert pieces(bed, short, ids, cut) == pieces(bed, full, ids, cut)


@pytest.mark.parametrize("kind", ["bf16", "nvfp4"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.slow
def test_every_kernel_attends_the_last_rows_as_it_attends_all(bed: Bed, kind: str, way: str) -> None:
    if not bed.can_run(way):
        pytest.skip(f"{way} takes another card")
    full, short = both(bed, "tiny-qwen3_5", "attention", kv_dtype=kind)
    for program in (full, short):
        program.verbs.attention.hopper = way == "attend_hopper.cu"
    assert pieces(bed, short, prompt(90, 7), (20, 70)) == pieces(bed, full, prompt(90, 7), (20, 70))


@pytest.mark.slow
def test_media_rows_may_be_the_last(bed: Bed) -> None:
    full, short = both(bed, "tiny-qwen3_5", "attention")
    width = short.decoder.config.hidden
    features = np.random.default_rng(3).standard_normal((40, width))
    eyes = Eyes(bed.to(features.astype(BF16)))
    item = MediaSpan(b"item", (1, 8, 20), ((50, 40),))
    for program in (full, short):
        program.eyes = eyes  # type: ignore[assignment]
    ids = prompt(90, 9)
    assert pieces(bed, short, ids, (70, 20), (item,)) == pieces(bed, full, ids, (70, 20), (item,))


@models
@pytest.mark.slow
def test_long_prompts_leave_out_most_of_the_last_layer(bed: Bed, name: str) -> None:
    only_on_a_card(bed, True)
    full, short = both(bed, name, "attention", max_context=4096, prefill_chunk=4096)
    table, ids = tuple(range(64)), prompt(4000, 5)
    found = []
    for program in (full, short):
        program.run(Clear(0))
        program.run(Bind(0, Sampling()))
        unit = Prefill(0, 0, 0, ids, table, sample=True)
        found.append((program.run(unit).rows, image(bed, program).tobytes()))
    assert found[0] == found[1]
