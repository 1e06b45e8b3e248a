"""Matrices on the device, in the layout of the file: plane addresses and slices of rows.

Promises that a slice of rows is a view: nothing is copied, repacked or decoded.  The one thing a reader
would get wrong: nvfp4 scales are swizzled over 128 rows, so a slice keeps the whole plane and remembers
``first``.
"""

from __future__ import annotations

from typing import Any

import attrs

from ninfer.artifact import layouts
from ninfer.artifact.formats import DIRECT, FP8_ROW, GROUPED, NVFP4
from ninfer.kernels_cu.arrays import DeviceArray

# Numbers of the formats in formats.cuh.
CODES = {
    "bf16": 0,
    FP8_ROW: 1,
    "q8_g32_fp16": 2,
    "q4_g64_fp16": 3,
    "q5_g64_fp16": 4,
    "q6_g64_fp16": 5,
    NVFP4: 6,
}


@attrs.frozen(eq=False)
class StoredMatrix:
    """Rows of one stored matrix.

    format   artifact format name
    codes    address of the first row's codes; ``high`` and ``scales`` likewise (0: no such plane)
    scales   for nvfp4, address of the whole scale plane
    divisor  address of the nvfp4 matrix divisor, else 0
    first    row number of the first row in its object (nvfp4 scales need it)
    nbytes   bytes that one pass over these rows reads
    """

    format: str
    rows: int
    columns: int
    codes: int
    high: int = 0
    scales: int = 0
    divisor: int = 0
    first: int = 0
    nbytes: int = 0
    owner: Any = attrs.field(default=None, repr=False)

    @property
    def aligned(self) -> bool:
        """Whether every row of codes begins on 16 bytes, as the streaming kernels need."""
        wide = self.columns * 2 if self.format == "bf16" else self.columns
        odd = self.format in ("bf16", FP8_ROW) and wide % 16 != 0
        return not odd and self.columns % 8 == 0 and self.codes % 16 == 0

    def take(self, begin: int, end: int) -> StoredMatrix:
        """View rows ``begin`` .. ``end`` - 1."""
        if not 0 <= begin <= end <= self.rows:
            raise ValueError(f"rows {begin}..{end} of {self.rows}")
        steps = plane_steps(self.format, self.columns)
        return attrs.evolve(
            self,
            rows=end - begin,
            codes=self.codes + begin * steps[0],
            high=self.high + begin * steps[1] if self.high else 0,
            scales=self.scales + begin * steps[2],
            first=self.first + begin,
            nbytes=self.nbytes * (end - begin) // max(1, self.rows),
        )


def plane_steps(form: str, columns: int) -> tuple[int, int, int]:
    """Bytes from one row to the next in the code, high-bit and scale planes (0: not row-major)."""
    if form == "bf16":
        return columns * 2, 0, 0
    steps = layouts.planes(form, (128, columns)).row_bytes
    if form == NVFP4:
        return steps[0], 0, 0
    return steps[0], steps[1] if len(steps) == 3 else 0, steps[-1]


def stored_matrix(data: DeviceArray, form: str, shape: tuple[int, ...]) -> StoredMatrix:
    """Describe the object whose bytes ``data`` holds.  Raises layouts.Unsupported, ValueError."""
    rows, columns = layouts.matrix_shape(shape)
    if form in DIRECT:
        if form != "bf16":
            raise layouts.Unsupported(f"a matrix in {form} has no kernel")
        return StoredMatrix(form, rows, columns, data.ptr, nbytes=rows * columns * 2, owner=data.owner)
    place = layouts.planes(form, shape)
    if data.nbytes != place.total:
        raise ValueError(f"{form} {shape} takes {place.total} bytes, got {data.nbytes}")
    at = [data.ptr + offset for offset in place.offsets]
    spots = {"codes": at[0], "scales": at[1]}
    if form == NVFP4:
        spots["divisor"] = at[2]
    elif form in GROUPED and len(at) == 3:
        spots = {"codes": at[0], "high": at[1], "scales": at[2]}
    return StoredMatrix(form, rows, columns, nbytes=place.total, owner=data.owner, **spots)
