"""How long decode rounds take: plain steps submitted ahead of their results, and rounds with drafts.

Owns the two ways of driving a program.  A round with drafts begins by folding the one before, so it can
only be submitted once that one has been read; its time holds the host's share.  Random weights accept
nothing, so every round is told to keep all of its drafts: folding costs as if drafts were right.

The one thing a reader would get wrong: ``ratio`` compares with steps of a program without any drafter.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import attrs

from ninfer.engine.device import Bind, Decode, Result, Row
from ninfer.engine.job import Sampling
from ninfer.runtime.cuda_program import CudaProgram

ROUNDS, WARM = 48, 12
Tables = Sequence[tuple[int, ...]]


@attrs.frozen
class Pace:
    """One round: wall time, device time and time to submit, in seconds; kernels of its graph."""

    seconds: float
    device: float
    host: float
    kernels: int

    def figures(self) -> dict[str, Any]:
        """Figures by name."""
        return {
            "milliseconds": self.seconds * 1e3,
            "device_milliseconds": self.device * 1e3,
            "graph_kernels": self.kernels,
            "host_milliseconds": self.host * 1e3,
        }


def pace(program: CudaProgram, tables: Tables, context: int, width: int = 0) -> Pace:
    """Time rounds of one row a table, ``width`` drafts each, ending at ``context`` tokens."""
    for lane in range(len(tables)):
        program.run(Bind(lane, Sampling()))
    host: list[float] = []
    device: list[float] = []
    under_way: list[Callable[[], Result]] = []
    begun = 0.0
    for i in range(ROUNDS):
        if i == WARM:
            begun = time.perf_counter()
        if width and under_way:
            device.append(under_way.pop()().seconds)
            _accept_all(program)
        now = time.perf_counter()
        under_way.append(program.start(_round(tables, context - ROUNDS + i - width, width, first=not i)))
        host.append(time.perf_counter() - now)
        if len(under_way) > 1:
            device.append(under_way.pop(0)().seconds)
    device.append(under_way.pop()().seconds)
    seconds = (time.perf_counter() - begun) / (ROUNDS - WARM)
    kernels = getattr(program._graphs.get(_key(len(tables), width)), "launches", 0)
    return Pace(seconds, statistics.median(device[WARM:]), statistics.median(host[WARM:]), kernels)


def _key(batch: int, width: int) -> tuple[object, ...]:
    return ("verify", *[width] * batch) if width else ("decode", batch)


def _round(tables: Tables, at: int, width: int, *, first: bool) -> Decode:
    token, keep = (5, None) if first else (None, 1 + width if width else None)
    return Decode(
        tuple(
            Row(lane, lane, at, pages, token, draft=width, keep=keep) for lane, pages in enumerate(tables)
        )
    )


def _accept_all(program: CudaProgram) -> None:
    """Let the round just read have published every draft."""
    for opened in program._open.values():
        opened.published[:] = [0] * (1 + opened.row.draft)


def compare(
    program: CudaProgram, plain: CudaProgram, tables: Tables, context: int, widest: int
) -> dict[str, Any]:
    """Time steps without (``plain``) and with a drafter that follows them, and rounds of each width."""
    step = pace(plain, tables, context).seconds
    found = [pace(program, tables, context, width) for width in range(widest + 1)]
    return {
        "batch": len(tables),
        "context": context,
        "plain_milliseconds": step * 1e3,
        "rounds": [
            {"width": width, "ratio": one.seconds / step, **one.figures()}
            for width, one in enumerate(found)
        ],
    }


def without_drafter(program: CudaProgram) -> CudaProgram:
    """Return a program over the same memory whose steps feed no drafter."""
    return attrs.evolve(program, drafter=None, open={}, host={}, seen=set(), graphs={})
