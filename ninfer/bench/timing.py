"""Timing on the device, and the two ceilings that every figure is a fraction of.

The one thing a reader would get wrong: a repeat that fits the cache measures the cache; callers rotate
over more bytes than L2 holds.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

from ninfer.kernels_cu.arrays import DeviceArray
from ninfer.ops.gemm import CublasLt
from ninfer.runtime.cuda_card import Card


def seconds_of(card: Card, body: Callable[[], object], repeats: int = 9, warm: int = 2) -> float:
    """Median device seconds of one run of ``body``."""
    import cupy

    for _ in range(warm):
        body()
    times: list[float] = []
    for _ in range(repeats):
        begin, end = cupy.cuda.Event(), cupy.cuda.Event()
        begin.record(card.stream)
        body()
        end.record(card.stream)
        end.synchronize()
        times.append(float(cupy.cuda.get_elapsed_time(begin, end)) / 1e3)
    return statistics.median(times)


def read_rate(card: Card, data: DeviceArray) -> float:
    """Bytes a second of streaming reads over ``data`` (gigabytes of it)."""
    kernel = card.library.get("bench.cu", "read_all")
    pieces = data.nbytes // 16
    grid = 4 * card.multiprocessors
    seconds = seconds_of(card, lambda: kernel.launch(grid, 512, data, pieces, data))
    return pieces * 16 / seconds


def gemm_rate(card: Card, gemm: CublasLt, x: DeviceArray, w: DeviceArray, out: DeviceArray) -> float:
    """Floating-point operations a second of one bf16 product."""
    seconds = seconds_of(card, lambda: gemm(x, w, out))
    return 2 * x.shape[0] * x.shape[1] * w.shape[0] / seconds


def sustained_gemm_rate(
    card: Card, gemm: CublasLt, x: DeviceArray, w: DeviceArray, out: DeviceArray, seconds: float = 1.0
) -> float:
    """The same over ``seconds`` of products without a pause: what the card's power limit leaves of it."""
    import cupy

    flops = 2 * x.shape[0] * x.shape[1] * w.shape[0]
    times = max(1, round(seconds * gemm_rate(card, gemm, x, w, out) / flops))
    begin, end = cupy.cuda.Event(), cupy.cuda.Event()
    begin.record(card.stream)
    for _ in range(times):
        gemm(x, w, out)
    end.record(card.stream)
    end.synchronize()
    return float(times * flops / (cupy.cuda.get_elapsed_time(begin, end) / 1e3))
