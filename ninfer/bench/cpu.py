"""Prefill and decode rates of a program on one lane, without a server around it.

The one thing a reader would get wrong: decode is timed from a prompt of ``prompt`` tokens on, so its
rate includes attention over that context; the first token belongs to prefill.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Protocol

import attrs

from ninfer.engine.device import Bind, Clear, Decode, Geometry, Prefill, Result, Row, Unit
from ninfer.engine.job import Sampling


class Program(Protocol):
    """What is measured."""

    @property
    def geometry(self) -> Geometry:
        """Its sizes."""

    def run(self, unit: Unit) -> Result:
        """Run one unit."""


@attrs.frozen
class Load:
    """One measurement: tokens of the prompt, tokens to generate, drafts a round, how often."""

    prompt: int = 512
    decode: int = 64
    draft: int = 0
    repeats: int = 3


@attrs.frozen
class Rates:
    """Medians over the repeats.  ``tokens_a_round`` is 1 without drafts."""

    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    tokens_a_round: float


def measure(program: Program, load: Load, clock: Callable[[], float] = time.perf_counter) -> Rates:
    """Measure after one unmeasured run."""
    runs = [_once(program, load, clock) for _ in range(load.repeats + 1)][1:]
    return Rates(*(statistics.median(column) for column in zip(*runs, strict=True)))


def _once(program: Program, load: Load, clock: Callable[[], float]) -> tuple[float, float, float]:
    geometry = program.geometry
    pages = tuple(range(-(-(load.prompt + load.decode + 2 * load.draft + 2) // geometry.page_tokens)))
    ids = [1 + 7 * i % (geometry.vocab - 1) for i in range(load.prompt)]
    program.run(Clear(0))
    program.run(Bind(0, Sampling()))
    began = clock()
    for start in range(0, load.prompt, geometry.prefill_chunk):
        piece = tuple(ids[start : start + geometry.prefill_chunk])
        last = start + len(piece) == load.prompt
        program.run(Prefill(0, 0, start, piece, pages, sample=last))
    prefilled = clock()
    made, rounds = _decode(program, load, pages)
    ended = clock()
    return load.prompt / (prefilled - began), made / (ended - prefilled), made / rounds


def _decode(program: Program, load: Load, pages: tuple[int, ...]) -> tuple[int, int]:
    """Generate; returns tokens and rounds."""
    made, rounds, keep = 0, 0, None
    while made < load.decode:
        row = Row(0, 0, load.prompt + made, pages, None, draft=load.draft, keep=keep)
        tokens = program.run(Decode((row,))).rows[0].tokens
        made, rounds = made + len(tokens), rounds + 1
        keep = len(tokens) if load.draft else None
    return made, rounds
