"""What a prompt leaves out of the last layer changes no bit: of what is read, cached or remembered."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ninfer.engine.device import Bind, Clear, Prefill
from ninfer.engine.job import Sampling
from ninfer.prompt.prepared import MediaSpan
from ninfer.runtime.program import NumpyProgram
from ninfer.runtime.steps import ending, prefill_step
from tests.toy import DENSE, SPARSE, toy_program

PROMPT = tuple(np.random.default_rng(8).integers(1, 90, 150).tolist())
PAGES = tuple(range(16))
ATTENTION = ["linear_attention", "linear_attention", "full_attention"]
DELTA = ["linear_attention", "full_attention", "linear_attention"]
CUTS = [(150,), (1, 63, 64, 22), (37, 27, 86), (64, 1, 85), (130, 20), (149, 1)]
FEATURES = np.random.default_rng(9).standard_normal((70, 64)).astype(np.float32)


class Reader:
    """A drafter that asks for all rows of a pass and drafts nothing."""

    def follow(self, verbs: Any, hidden: Any, step: Any) -> None:
        """Insist on all rows."""
        assert hidden.shape[:2] == verbs.spread(np.zeros((step.rows, 1)), step).shape[:2]


class Eyes:
    """Gives an item the same features whenever it is asked."""

    def features(self, lane: int, span: MediaSpan, until: int) -> Any:
        """Its rows."""
        return FEATURES

    def forget(self, lane: int) -> None:
        """Nothing is kept."""


def program_of(family: dict[str, Any], kinds: list[str], reads_all: bool) -> NumpyProgram:
    program = toy_program({**family, "layer_types": kinds})
    program.pages.values[:] = np.nan
    program.drafter = Reader() if reads_all else None  # type: ignore[assignment]
    program.eyes = Eyes()  # type: ignore[assignment]
    return program


def ended(program: NumpyProgram, cuts: tuple[int, ...], media: tuple[MediaSpan, ...] = ()) -> list[Any]:
    """What is there behind each piece: a token, the image, the cache."""
    at, found = 0, []
    program.run(Clear(0))
    program.run(Bind(0, Sampling()))
    for count in cuts:
        here = tuple(span for span in media if span.start < at + count and span.stop > at)
        ids, last = PROMPT[at : at + count], at + count == len(PROMPT)
        unit = Prefill(0, 0, at, ids, PAGES, sample=last, media=here)
        rows = program.run(unit).rows
        found.append((rows, program.images.block[0].tobytes(), program.pages.values.tobytes()))
        at += count
    return found


@pytest.mark.parametrize("cuts", CUTS, ids=str)
@pytest.mark.parametrize("kinds", [ATTENTION, DELTA], ids=["attention", "delta"])
@pytest.mark.parametrize("family", [DENSE, SPARSE], ids=["dense", "sparse"])
def test_last_rows_alone_have_the_bits_of_a_full_pass(
    family: dict[str, Any], kinds: list[str], cuts: tuple[int, ...]
) -> None:
    full, short = (program_of(family, kinds, reads_all) for reads_all in (True, False))
    assert ended(short, cuts) == ended(full, cuts)


@pytest.mark.parametrize("kinds", [ATTENTION, DELTA], ids=["attention", "delta"])
def test_media_rows_may_be_the_last(kinds: list[str]) -> None:
    item = MediaSpan(b"item", (1, 14, 20), ((80, 70),))
    full, short = (program_of(DENSE, kinds, reads_all) for reads_all in (True, False))
    assert ended(short, (100, 50), (item,)) == ended(full, (100, 50), (item,))
    assert ended(short, (100, 50), (item,))[-1][1] != ended(short, (100, 50))[-1][1]


@pytest.mark.parametrize(
    ("start", "count", "rows"),
    [(0, 1, 1), (0, 64, 64), (0, 65, 1), (63, 2, 1), (70, 30, 30), (70, 100, 42), (64, 128, 64)],
)
def test_the_last_rows_are_those_of_one_tile(start: int, count: int, rows: int) -> None:
    step = prefill_step(Prefill(0, 0, start, (7,) * count, PAGES, rope_delta=5))
    last = ending(step)
    assert last.rows == last.ids.size == last.offsets[-1] == rows
    assert last.frontiers.tolist() == [start + count - rows]
    assert np.array_equal(last.positions, step.positions[:, -rows:])
    assert last.tables is step.tables and last.slots is step.slots and last.lanes is step.lanes
