"""What a retained prefix costs to go on from: on the card, out of host memory and into it.

Owns the comparison with what it should cost: a first token in little more than a decode step, and copies
that run at the speed of one large copy between the same two memories, measured beside them.

The one thing a reader would get wrong: pages are taken in no order, as a pool that has been in use for a
while gives them out; the large copy it is compared with is in one piece.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import attrs
import numpy as np

from ninfer.engine.device import (
    Bind,
    CopyImage,
    CopyPage,
    Decode,
    HostDrop,
    HostLoad,
    HostSave,
    Prefill,
    Row,
    Unit,
)
from ninfer.engine.job import Sampling
from ninfer.runtime.cuda_program import CudaProgram

TURNS = 7
STEPS, WARM = 24, 8
KEY = 1  # of host memory
PROLOGUE = 5  # tokens that are not known: as many as open an answer behind the input mark


def measure(program: CudaProgram, pages: tuple[int, ...], tokens: int) -> dict[str, Any]:
    """Time going on from ``tokens`` tokens, held by lane 0 in ``pages``; figures by name.

    The last slot keeps the image; one page more than the tokens need is overwritten.
    """
    table = _shuffled(pages)
    spare = program.geometry.slots - 1
    ids = _prompt(program, tokens, table)
    program.run(CopyImage(0, spare))
    image = _median(lambda: program.run(CopyImage(spare, 0)).seconds)
    whole = Prefill(0, 0, tokens, (), table, sample=True)
    full = _median(lambda: _first_token(program, (CopyImage(spare, 0), whole)))
    known = tokens - PROLOGUE
    _prompt(program, known, table)
    program.run(CopyImage(0, spare))
    page = CopyPage(table[known // program.geometry.page_tokens], table[-1])
    rest = Prefill(0, 0, known, ids[known:], table, sample=True)
    go_on = partial(_first_token, program)
    few = _median(partial(go_on, (CopyImage(spare, 0), page, rest)))
    tail = _median(partial(go_on, (CopyImage(spare, 0), page, attrs.evolve(rest, tail=True))))
    program.run(CopyImage(spare, 0))
    step = _step(program, table, known)
    return {
        "tokens": tokens,
        "step_milliseconds": step * 1e3,
        "image_copy_milliseconds": image * 1e3,
        "full_hit_milliseconds": full * 1e3,
        "full_hit_steps": (full - image) / step,
        "tail_milliseconds": tail * 1e3,
        "tail_steps": (tail - image) / step,
        "few_milliseconds": few * 1e3,
        "few_steps": (few - image) / step,
        **_host(program, table[: -(-tokens // program.geometry.page_tokens)]),
    }


def _shuffled(pages: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(np.random.default_rng(7).permutation(pages).tolist())


def _median(act: Callable[[], float]) -> float:
    act()
    return statistics.median(act() for _ in range(TURNS))


def _prompt(program: CudaProgram, tokens: int, table: tuple[int, ...]) -> tuple[int, ...]:
    """Compute a prompt from its beginning."""
    ids = tuple(np.random.default_rng(1).integers(0, program.geometry.vocab - 1000, tokens).tolist())
    program.transfers.fill(program.images.image(0))
    program.run(Bind(0, Sampling()))
    chunk = program.geometry.prefill_chunk
    for begin in range(0, tokens, chunk):
        program.run(Prefill(0, 0, begin, ids[begin : begin + chunk], table))
    return ids


def _first_token(program: CudaProgram, units: Sequence[Unit]) -> float:
    """Seconds from the submission of a hit's first unit to its first token, read by the host."""
    begun = time.perf_counter()
    results = [program.start(unit) for unit in (Bind(0, Sampling()), *units)]
    results[-1]()
    return time.perf_counter() - begun


def _step(program: CudaProgram, table: tuple[int, ...], context: int) -> float:
    """Seconds of a plain decode step, submitted ahead as the engine does."""
    program.run(Bind(0, Sampling()))
    last, begun = None, 0.0
    for i in range(STEPS):
        if i == WARM:
            begun = time.perf_counter()
        pending = program.start(Decode((Row(0, 0, context + i, table, None if i else 5),)))
        if last is not None:
            last()
        last = pending
    assert last is not None
    last()
    return (time.perf_counter() - begun) / (STEPS - WARM)


def _host(program: CudaProgram, table: tuple[int, ...]) -> dict[str, Any]:
    """Rates of saving an image and pages and of bringing them back, beside copies in one piece."""
    size = program.geometry.image_bytes + len(table) * program.geometry.page_bytes

    def save() -> float:
        program.run(HostDrop(KEY))
        return program.run(HostSave(KEY, 0, table)).seconds

    program.run(HostSave(KEY, 0, table))
    saved = size / _median(save)
    loaded = size / _median(lambda: program.run(HostLoad(KEY, 0, table)).seconds)
    into, out_of = _in_one_piece(program, len(table))
    return {
        "host_megabytes": size / 1e6,
        "save_gb_per_second": saved / 1e9,
        "save_fraction": saved / out_of,
        "load_gb_per_second": loaded / 1e9,
        "load_fraction": loaded / into,
        "h2d_gb_per_second": into / 1e9,
        "d2h_gb_per_second": out_of / 1e9,
    }


def _in_one_piece(program: CudaProgram, pages: int) -> tuple[float, float]:
    """Bytes a second of one copy to the card, and from it; ``pages`` pages are overwritten."""
    transfers, whole = program.transfers, program.pages.data.rows(0, pages)
    room = transfers.save([whole])

    def timed(act: Callable[[], object]) -> float:
        begin = transfers.mark()
        act()
        end = transfers.mark()
        end.wait()
        return transfers.seconds(begin, end)

    def out() -> None:
        transfers.drop(transfers.save([whole]))

    into, out_of = (
        _median(lambda: timed(lambda: transfers.load(whole, room, 0))),
        _median(lambda: timed(out)),
    )
    transfers.drop(room)
    return whole.nbytes / into, whole.nbytes / out_of
