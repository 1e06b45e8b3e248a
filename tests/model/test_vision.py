"""Pictures and clips: tower features, prompts with media, drafts behind them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ninfer.engine.device import Bind, Clear, Decode, Prefill, Row
from ninfer.engine.job import Sampling
from ninfer.prompt.prepared import MediaSpan
from ninfer.runtime.program import NumpyProgram
from tests.drive import logits_of, relative
from tests.model.checkpoint import Golden
from tests.model.conftest import media_goldens

Build = Callable[..., NumpyProgram]
PAGES = tuple(range(32))
PADS = (4088, 4089)  # image and video placeholders


def span_of(golden: Golden) -> MediaSpan:
    """The item of a prompt; runs of placeholders are its time slices."""
    assert golden.grid is not None
    pads = np.flatnonzero(np.isin(golden.ids, PADS))
    runs = np.split(pads, np.flatnonzero(np.diff(pads) > 1) + 1)
    places = tuple((int(run[0]), len(run)) for run in runs)
    return MediaSpan(golden.name.encode(), golden.grid, places, golden.pixels)


def fill(program: NumpyProgram, golden: Golden, chunk: int = 2048) -> tuple[int, int]:
    """Run the prompt; returns the first token and rope_delta."""
    span, count = span_of(golden), len(golden.ids)
    delta = int(golden.positions.max()) + 1 - count
    program.run(Clear(0))
    program.run(Bind(0, Sampling()))
    for start in range(0, count, chunk):
        stop = min(start + chunk, count)
        lines = golden.positions[:, start:stop].tolist()
        unit = Prefill(
            lane=0,
            slot=0,
            start=start,
            ids=golden.ids[start:stop],
            pages=PAGES,
            positions=(tuple(lines[0]), tuple(lines[1]), tuple(lines[2])),
            rope_delta=delta,
            sample=stop == count,
            media=(span,) if span.start < stop and span.stop > start else (),
        )
        rows = program.run(unit).rows
    return rows[0].tokens[0], delta


def answer(program: NumpyProgram, golden: Golden, chunk: int = 2048, draft: int = 0) -> tuple[int, ...]:
    """The greedy answer to a prompt with media."""
    token, delta = fill(program, golden, chunk)
    out, frontier, keep = [token], len(golden.ids), None
    while len(out) < len(golden.greedy):
        row = Row(0, 0, frontier, PAGES, None, rope_delta=delta, draft=draft, keep=keep)
        tokens = program.run(Decode((row,))).rows[0].tokens
        out, frontier = out + list(tokens), frontier + len(tokens)
        keep = len(tokens) if draft else None
    return tuple(out[: len(golden.greedy)])


def test_features_are_the_recorded_ones(reference: Path, build: Build) -> None:
    program = build(vision=True)
    assert program.eyes is not None
    for golden in media_goldens(reference).values():
        if "features" in golden.extra:
            found = program.eyes.features(0, span_of(golden), 10_000)
            assert relative(found, golden.extra["features"]) < 1e-5, golden.name


def test_raw_bytes_and_scaled_floats_are_the_same_picture(reference: Path, build: Build) -> None:
    golden, program = media_goldens(reference)["image"], build(vision=True)
    assert program.eyes is not None and golden.pixels is not None
    span = span_of(golden)
    raw = np.rint((golden.pixels + 1) * 127.5).astype(np.uint8)
    other = MediaSpan(span.digest, span.grid, span.runs, raw)
    found = [program.eyes.features(0, each, 10_000) for each in (span, other)]
    assert relative(found[0], found[1]) < 1e-5


@pytest.mark.slow
def test_answers_to_pictures_and_clips_are_the_recorded_ones(reference: Path, build: Build) -> None:
    program = build(vision=True, spec="mtp", draft_tokens=3)
    for golden in media_goldens(reference).values():
        fill(program, golden)
        assert relative(logits_of(program), golden.last_logits) < 1e-5, golden.name
        assert answer(program, golden) == golden.greedy, golden.name
        assert answer(program, golden, draft=3) == golden.greedy, golden.name


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_an_item_may_be_cut_by_chunks(reference: Path, build: Build, chunk: int) -> None:
    golden, program = media_goldens(reference)["video"], build(vision=True)
    assert answer(program, golden, chunk) == golden.greedy


@pytest.mark.slow
def test_drafts_behind_media_are_the_recorded_ones(reference: Path, build: Build) -> None:
    """Placeholders feed the drafter their features too, at the three-axis positions."""
    program = build(vision=True, spec="mtp", draft_tokens=3)
    for golden in media_goldens(reference).values():
        for chunk in (2048, 5):
            _, delta = fill(program, golden, chunk)
            row = Row(0, 0, len(golden.ids), PAGES, None, rope_delta=delta, draft=3)
            assert program._propose([row])[0] == golden.drafts[0].tolist(), golden.name
