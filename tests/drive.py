"""Drive a program as the engine does, one lane at a time or several together."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np

from ninfer.engine.device import Bind, Clear, Decode, Prefill, Row
from ninfer.engine.job import Sampling
from ninfer.runtime.program import NumpyProgram


@attrs.define(eq=False)
class Request:
    """One generation: what was asked and what came out."""

    ids: Sequence[int]
    lane: int = 0
    slot: int = 0
    pages: tuple[int, ...] = tuple(range(32))
    sampling: Sampling = attrs.field(factory=Sampling)
    out: list[int] = attrs.field(factory=list)
    frontier: int = 0
    keep: int | None = None


def start(program: NumpyProgram, request: Request, chunk: int = 2048) -> None:
    """Run the prompt in pieces of ``chunk`` and take the first token."""
    program.run(Clear(request.slot))
    program.run(Bind(request.lane, request.sampling))
    prompt = len(request.ids)
    for begin in range(0, prompt, chunk):
        end = min(begin + chunk, prompt)
        piece = tuple(request.ids[begin:end])
        unit = Prefill(request.lane, request.slot, begin, piece, request.pages, sample=end == prompt)
        result = program.run(unit)
    request.frontier = prompt
    request.out += result.rows[0].tokens


def step(program: NumpyProgram, requests: Sequence[Request], draft: int = 0) -> None:
    """Run one decode round of all requests together."""
    rows = tuple(Row(r.lane, r.slot, r.frontier, r.pages, None, draft=draft, keep=r.keep) for r in requests)
    for request, result in zip(requests, program.run(Decode(rows)).rows, strict=True):
        request.out += result.tokens
        request.frontier += len(result.tokens)
        request.keep = len(result.tokens) if draft else None


def generate(
    program: NumpyProgram, request: Request, count: int, chunk: int = 2048, draft: int = 0
) -> tuple[int, ...]:
    """Produce ``count`` tokens."""
    start(program, request, chunk)
    while len(request.out) < count:
        step(program, [request], draft)
    return tuple(request.out[:count])


def logits_of(program: NumpyProgram, slot: int = 0) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """The logits that follow a slot's saved hidden state."""
    hidden = program.verbs.slots.hidden[slot][None, None]
    row: np.ndarray[tuple[int], np.dtype[np.float32]] = program.verbs.logits(hidden, program.decoder.head)[
        0
    ]
    return row


def relative(found: object, wanted: object) -> float:
    """Relative L2 distance."""
    found, wanted = np.asarray(found, np.float64), np.asarray(wanted, np.float64)
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))
