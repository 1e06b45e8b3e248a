"""Device memory: two raw blocks taken at start-up and divided by us for ever after.

``Region`` hands out what lives as long as the process (weights, state, KV), first come first placed.
``Scratch`` hands out the outputs of one pass; an array's bytes return when its last reference dies.
All work runs on one stream in submission order, so bytes may be handed out again at once, eagerly and
inside graph capture alike.  ``refuse_allocations`` then makes any other device allocation fail.

The one thing a reader would get wrong: two graphs share the same scratch.  That is sound because
they replay on one stream, and it is why nothing in scratch may outlive a pass.
"""

from __future__ import annotations

import bisect
import math
from typing import Any

import attrs

from ninfer.faults import Broken, StartupError
from ninfer.kernels_cu.arrays import KIND_BYTES, DeviceArray

ALIGNMENT = 256


def aligned(nbytes: int) -> int:
    """Round a size up to the alignment of every allocation."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _bytes(shape: tuple[int, ...], kind: str) -> int:
    return aligned(math.prod(shape) * KIND_BYTES[kind])


@attrs.define(eq=False)
class Region:
    """A span of device memory that is only ever filled.

    base    device address, a multiple of 256
    nbytes  its size
    """

    base: int
    nbytes: int
    used: int = 0

    def take(self, shape: tuple[int, ...], kind: str) -> DeviceArray:
        """Place an array for good; raises Broken when the plan was too small."""
        need = _bytes(shape, kind)
        if self.used + need > self.nbytes:
            raise Broken(f"the memory plan lacks {self.used + need - self.nbytes} bytes for {shape} {kind}")
        self.used += need
        return DeviceArray(self.base + self.used - need, shape, kind)

    def split(self, nbytes: int) -> Region:
        """Cut a region of its own off the front of what is left."""
        return Region(self.take((nbytes,), "u8").ptr, aligned(nbytes))


class _Loan:
    """Gives its bytes back when the last array that refers to it dies."""

    __slots__ = ("_begin", "_bytes", "_scratch")

    def __init__(self, scratch: Scratch, begin: int, nbytes: int) -> None:
        self._scratch, self._begin, self._bytes = scratch, begin, nbytes

    def __del__(self) -> None:
        self._scratch.give_back(self._begin, self._bytes)


class Scratch:
    """First fit by address over one span, coalescing on return.

    ``peak`` is the highest byte ever in use, ``lent`` the bytes now in use.
    """

    def __init__(self, base: int, nbytes: int) -> None:
        self.base, self.nbytes = base, nbytes
        self.lent = self.peak = 0
        self._free: list[tuple[int, int]] = [(0, nbytes)]  # (begin, bytes), by address

    def take(self, shape: tuple[int, ...], kind: str) -> DeviceArray:
        """Lend an array; its contents are arbitrary.  Raises Broken when nothing fits."""
        need = max(ALIGNMENT, _bytes(shape, kind))
        for index, (begin, size) in enumerate(self._free):
            if size >= need:
                self._free[index : index + 1] = [(begin + need, size - need)] if size > need else []
                self.lent += need
                self.peak = max(self.peak, begin + need)
                return DeviceArray(self.base + begin, shape, kind, _Loan(self, begin, need))
        raise Broken(f"scratch of {self.nbytes} bytes ({self.lent} lent) has no room for {shape} {kind}")

    def give_back(self, begin: int, nbytes: int) -> None:
        """Take bytes back and join them to their free neighbours."""
        free = self._free
        at = bisect.bisect(free, (begin, nbytes))
        if at < len(free) and begin + nbytes == free[at][0]:
            nbytes += free.pop(at)[1]
        if at and free[at - 1][0] + free[at - 1][1] == begin:
            begin, nbytes = free[at - 1][0], free[at - 1][1] + nbytes
            at -= 1
            free.pop(at)
        free.insert(at, (begin, nbytes))
        self.lent = self.nbytes - sum(size for _, size in free)


@attrs.frozen(eq=False)
class RawBlock:
    """One allocation of the driver.  Keeps CuPy's handle, so the bytes live as long as this does."""

    ptr: int
    nbytes: int
    memory: Any

    @classmethod
    def allocate(cls, nbytes: int, what: str) -> RawBlock:
        """Ask the driver for ``nbytes``; raises StartupError naming ``what`` did not fit."""
        import cupy

        try:
            memory = cupy.cuda.Memory(nbytes)
        except cupy.cuda.runtime.CUDARuntimeError as error:
            free, total = cupy.cuda.runtime.memGetInfo()
            raise StartupError(
                f"the GPU has no {nbytes / 2**30:.2f} GiB for {what} "
                f"({free / 2**30:.2f} of {total / 2**30:.2f} GiB are free): {error}"
            ) from None
        return cls(memory.ptr, nbytes, memory)


def refuse_allocations() -> None:
    """From now on let every CuPy device allocation of this process fail."""
    import cupy

    cupy.cuda.set_allocator(_refuse)


def _refuse(nbytes: int) -> Any:
    raise Broken(f"an allocation of {nbytes} bytes after start-up")
