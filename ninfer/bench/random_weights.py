"""Random weights of any stored format, made on the device; nothing crosses the bus.

Promises legal bits: positive scales, no NaN codes, values with a deviation near 0.02.  The one thing a
reader would get wrong: the values mean nothing, so a model made of them may sample any id.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import attrs

from ninfer.artifact import layouts
from ninfer.artifact.formats import FP8_ROW, GROUPED, NVFP4
from ninfer.kernels_cu.arrays import DeviceArray
from ninfer.kernels_cu.pack import Library
from ninfer.ops.stored import StoredMatrix, stored_matrix

ANY_BITS, ODD_BYTES, E4M3_CODES, F16_SCALES, E4M3_SCALES = range(5)
BF16_SCALES, BF16_VALUES, F32_VALUES, ONE_F32 = range(5, 9)
_GRID = 2048


@attrs.define(eq=False)
class RandomWeights:
    """Places random arrays with ``take`` (a Region's, so that they live as long as the process)."""

    library: Library
    take: Callable[[tuple[int, ...], str], DeviceArray]
    seed: int = 1

    def _fill(self, ptr: int, nbytes: int, kind: int, deviation: float = 0.0) -> None:
        self.seed += 1 << 40
        words = -(-nbytes // 4)
        target = DeviceArray(ptr, (words,), "u32")
        fill = self.library.get("bench.cu", "fill_random")
        fill.launch(_GRID, 256, target, words, kind, self.seed, deviation)

    def values(self, shape: tuple[int, ...], kind: str, deviation: float) -> DeviceArray:
        """A dense bf16 or float32 array of roughly normal values."""
        made = self.take(shape, kind)
        filling = BF16_VALUES if kind == "bf16" else F32_VALUES
        self._fill(made.ptr, made.nbytes, filling, deviation)
        return made

    def matrix(self, form: str, rows: int, columns: int) -> StoredMatrix:
        """A stored matrix."""
        if form == "bf16":
            return stored_matrix(self.values((rows, columns), "bf16", 0.02), form, (rows, columns))
        place = layouts.planes(form, (rows, columns))
        made = self.take((place.total,), "u8")
        size_of = 64.0 if form == NVFP4 else 2.0 ** -(GROUPED[form].bits + 3) if form in GROUPED else 0.0
        for offset, size, kind in zip(place.offsets, place.sizes, _fillings(form, place), strict=True):
            self._fill(made.ptr + offset, size, kind, size_of)
        return stored_matrix(made, form, (rows, columns))

    def nbytes(self, form: str, shape: tuple[int, ...]) -> int:
        """Bytes that an array of this format takes, rounded as an arena rounds."""
        if form in ("bf16", "fp32"):
            return -(-math.prod(shape) * (2 if form == "bf16" else 4) // 256) * 256
        return -(-layouts.planes(form, shape).total // 256) * 256


def _fillings(form: str, place: layouts.Planes) -> tuple[int, ...]:
    if form == NVFP4:
        return ANY_BITS, E4M3_SCALES, ONE_F32
    if form == FP8_ROW:
        return E4M3_CODES, BF16_SCALES
    if form == "q8_g32_fp16":
        return ODD_BYTES, F16_SCALES
    return (*[ANY_BITS] * (len(place.offsets) - 1), F16_SCALES)
