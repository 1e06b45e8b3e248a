"""Device arrays: an address, a shape and a kind, nothing else.

Owns the names of element kinds.  An array never owns its memory unless an ``owner`` is attached, whose
end of life gives the bytes back.  The one thing a reader would get wrong: kinds are bits, not NumPy
dtypes; bf16, fp8 and packed codes have no arithmetic on this side.
"""

from __future__ import annotations

import math
from typing import Any

import attrs

KIND_BYTES = {
    "bf16": 2,
    "f16": 2,
    "f32": 4,
    "f64": 8,
    "u8": 1,
    "i8": 1,
    "i32": 4,
    "u32": 4,
    "i64": 8,
    "u64": 8,
}


@attrs.frozen(eq=False)
class DeviceArray:
    """A row-major array on the device, dense unless ``pitch`` says otherwise.

    ptr     device address in bytes
    shape   logical elements
    kind    a key of ``KIND_BYTES``
    owner   kept alive as long as any view of the memory is
    pitch   elements from row to row of two axes, where others lie between; 0: none do
    """

    ptr: int
    shape: tuple[int, ...]
    kind: str
    owner: Any = attrs.field(default=None, repr=False)
    pitch: int = 0

    @property
    def size(self) -> int:
        """How many elements there are."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """How many bytes they take, not what lies between rows."""
        return self.size * KIND_BYTES[self.kind]

    @property
    def stride(self) -> int:
        """Elements from one row to the next."""
        return self.pitch or self.shape[-1]

    def columns(self, begin: int, end: int) -> DeviceArray:
        """View columns ``begin`` .. ``end`` - 1 of every row of a dense array of two axes."""
        rows, width = self.shape
        if self.pitch or not 0 <= begin <= end <= width:
            raise ValueError(f"columns {begin}..{end} of {self.shape}")
        at = self.ptr + begin * KIND_BYTES[self.kind]
        return DeviceArray(at, (rows, end - begin), self.kind, self.owner, width)

    def reshape(self, *shape: int) -> DeviceArray:
        """View the same elements in another shape; raises ValueError unless the sizes agree."""
        if math.prod(shape) != self.size or self.pitch:
            raise ValueError(f"{self.shape} does not reshape to {shape}")
        return DeviceArray(self.ptr, shape, self.kind, self.owner)

    def rows(self, begin: int, end: int) -> DeviceArray:
        """View rows ``begin`` .. ``end`` - 1 of the first axis."""
        if not 0 <= begin <= end <= self.shape[0]:
            raise ValueError(f"rows {begin}..{end} of {self.shape}")
        step = (self.pitch or math.prod(self.shape[1:])) * KIND_BYTES[self.kind]
        shape = (end - begin, *self.shape[1:])
        return DeviceArray(self.ptr + begin * step, shape, self.kind, self.owner, self.pitch)

    def view(self, kind: str) -> DeviceArray:
        """See the same bytes as another kind of the same width."""
        if KIND_BYTES[kind] != KIND_BYTES[self.kind]:
            raise ValueError(f"{self.kind} is not as wide as {kind}")
        return DeviceArray(self.ptr, self.shape, kind, self.owner, self.pitch)
