"""SwiGLU in the ending of its product, for long pieces of a prompt, where the card has a kernel for that.

Owns the choice.  The kernel takes over for a pair of matrices when a trial, while a program warms up, has
seen it compute faster than what it stands for, a product and a kernel behind it, and with the same bits:
shorter pieces go on taking those, and a row's bits may not tell how it was cut.

The one thing a reader would get wrong: without a trial nothing is ever chosen.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import attrs

from ninfer.kernels_cu.arrays import DeviceArray
from ninfer.kernels_cu.driver import BOX_COLUMNS
from ninfer.ops.gemm import COMPARED, Clock, fastest

FILE = "swiglu_hopper.cu"
LEAST_ROWS = 1024
_WORTH = 0.99  # least gain at rest; under a power limit there is more in it
_BM, _HALF, _RING, _THREADS = 256, 88, 4, 384  # as in the file
_SHARED = _RING * (_BM + 2 * _HALF) * BOX_COLUMNS * 2 + _RING * 16


@attrs.define(eq=False)
class FusedSwiglu:
    """out (T, W) = silu(x @ gate.T) * (x @ up.T); ``pair`` (2 W, K) is gate's rows, then up's."""

    library: Any
    multiprocessors: int
    least_rows: int = LEAST_ROWS
    _chosen: dict[tuple[int, ...], bool] = attrs.field(factory=dict)

    def fits(self, x: DeviceArray, out: DeviceArray) -> bool:
        """Whether the card has the kernel, and these shapes are for it."""
        (rows, columns), width = x.shape, out.shape[1]
        even = columns % BOX_COLUMNS == 0 and width % 8 == 0
        return rows >= self.least_rows and even and bool(self.library.supports(FILE))

    def __call__(self, x: DeviceArray, pair: DeviceArray, out: DeviceArray) -> None:
        """Launch it."""
        (rows, columns), width = x.shape, out.shape[1]
        tiles = -(-rows // _BM) * -(-width // _HALF)
        boxes = self.library.box_map(x, _BM), self.library.box_map(pair, _HALF)
        self.library.get(FILE, "swiglu_hopper").launch(
            min(tiles, self.multiprocessors), _THREADS, out, *boxes, rows, width, columns, shared=_SHARED
        )

    def run(
        self,
        x: DeviceArray,
        pair: DeviceArray,
        out: DeviceArray,
        apart: Callable[[], None],
        clock: Clock | None,
    ) -> None:
        """Do it in one launch if that has been chosen for such matrices, else ``apart``.

        ``clock`` is there during a trial.
        """
        if not self.fits(x, out):
            apart()
            return

        def fused() -> None:
            self(x, pair, out)

        if pair.shape not in self._chosen and clock is not None:
            count = min(COMPARED, x.shape[0])
            ends = out.rows(0, count), out.rows(x.shape[0] - count, x.shape[0])
            way = fastest(clock, lambda way: way(), apart, [fused], ends, math.inf, _WORTH)
            self._chosen[pair.shape] = way is fused
        if self._chosen.get(pair.shape):
            fused()
        else:
            apart()
