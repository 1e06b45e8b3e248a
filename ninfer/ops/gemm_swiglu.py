"""SwiGLU in the ending of its product, for long pieces of a prompt, where the card has a kernel for that.

Owns the choice.  The kernel takes over for a pair of matrices when a trial, while a program warms up, has
seen that it leaves the bits of what it stands for, a product and a kernel behind it: shorter pieces go on
taking those, and a row's bits may not tell how it was cut.

The one thing a reader would get wrong: without a trial nothing is ever chosen.  A trial does not ask for
the time: while a program warms up rows are all alike, and what decides in a prompt is the power they take.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from ninfer.kernels_cu.arrays import DeviceArray
from ninfer.kernels_cu.driver import BOX_COLUMNS
from ninfer.ops.gemm import COMPARED, Clock

FILE = "swiglu_hopper.cu"
LEAST_ROWS = 1024
_FULL = 0.8  # of the turns that its tiles take, so that many multiprocessors have work
_BM, _BOX, _HALF, _RING, _THREADS = 256, 128, 88, 4, 384  # as in the file
_SHARED = _RING * (_BM + 2 * _HALF) * BOX_COLUMNS * 2 + _RING * 16


@attrs.define(eq=False)
class FusedSwiglu:
    """out (T, W) = silu(x @ gate.T) * (x @ up.T); ``pair`` (2 W, K) is gate's rows, then up's."""

    library: Any
    multiprocessors: int
    _chosen: dict[tuple[int, ...], bool] = attrs.field(factory=dict)

    def fits(self, x: DeviceArray, out: DeviceArray) -> bool:
        """Whether the card has the kernel, and these shapes are for it."""
        (rows, columns), width = x.shape, out.shape[1]
        if rows < LEAST_ROWS or columns % BOX_COLUMNS or width % 8 or not self.library.supports(FILE):
            return False
        tiles, pairs = self._tiles(out), self.multiprocessors // 2
        return tiles >= _FULL * pairs * -(-tiles // pairs)

    def _tiles(self, out: DeviceArray) -> int:
        """Those of a pair of blocks."""
        rows, width = out.shape
        return -(-rows // _BM) * -(-width // (2 * _HALF))

    def __call__(self, x: DeviceArray, pair: DeviceArray, out: DeviceArray) -> None:
        """Launch it."""
        (rows, columns), width = x.shape, out.shape[1]
        blocks = 2 * min(self._tiles(out), self.multiprocessors // 2)
        boxes = self.library.box_map(x, _BOX), self.library.box_map(pair, _HALF)
        self.library.get(FILE, "swiglu_hopper").launch(
            blocks, _THREADS, out, *boxes, rows, width, columns, shared=_SHARED
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
        if pair.shape not in self._chosen and clock is not None:
            apart()
            want = self._ends(out, clock)
            self(x, pair, out)
            self._chosen[pair.shape] = self._ends(out, clock) == want
        if self._chosen.get(pair.shape):
            self(x, pair, out)
        else:
            apart()

    def _ends(self, out: DeviceArray, clock: Clock) -> bytes:
        rows, count = out.shape[0], min(COMPARED, out.shape[0])
        return bytes(clock.read((out.rows(0, count), out.rows(rows - count, rows))))
