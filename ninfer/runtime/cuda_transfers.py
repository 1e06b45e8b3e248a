"""Copies between host and device that never stop the device: pinned staging, results, saved memory.

Owns the pinned memory of the CUDA backend.  Everything goes to the one stream, so copies and kernels run
in the order of submission.  ``Transfers`` is what the program asks for; tests give it host memory.

The one thing a reader would get wrong: staging is a ring, and a copy reads it later; ``send`` therefore
waits when it would overtake copies that have not run yet.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import attrs
import numpy as np
from numpy.typing import NDArray

from ninfer.faults import Broken
from ninfer.kernels_cu.arrays import DeviceArray
from ninfer.runtime.arena import Scratch, aligned

Bytes = NDArray[np.uint8]
SLAB_BYTES = 256 << 20  # pinned at a time
MOST_OPEN = 64  # copies through the ring that are under way at once


class Mark(Protocol):
    """A point in the stream."""

    def wait(self) -> None:
        """Wait until the device has passed it; raises what the device raised."""


class Transfers(Protocol):
    """Memory traffic of one stream, in submission order."""

    def send(self, target: DeviceArray, values: NDArray[Any]) -> None:
        """Copy host values into the first bytes of an array; they may change as soon as this returns."""

    def fetch(self, source: DeviceArray) -> tuple[NDArray[Any], Mark]:
        """Begin copying int32 results out; the array is valid after the mark, until seven fetches later."""

    def copy(self, target: DeviceArray, source: DeviceArray) -> None:
        """Copy between arrays of equal size."""

    def fill(self, array: DeviceArray, byte: int = 0) -> None:
        """Set every byte."""

    def save(self, arrays: Sequence[DeviceArray]) -> Bytes:
        """Begin copying arrays, end to end, into host memory that is the caller's until ``drop``."""

    def load(self, array: DeviceArray, saved: Bytes, at: int) -> None:
        """Copy the saved bytes from ``at`` on back into an array."""

    def room(self, nbytes: int) -> Bytes:
        """Lend host memory for the host to fill at once; it is the caller's until ``drop``."""

    def drop(self, saved: Bytes) -> None:
        """Give host memory back, once the copies that read it have run."""

    def read(self, arrays: Sequence[DeviceArray]) -> Bytes:
        """Copy arrays, end to end, into fresh host memory; waits for them."""

    def mark(self) -> Mark:
        """Mark this point of the stream."""

    def seconds(self, begin: Mark, end: Mark) -> float:
        """Device time between two marks that have been passed."""


@attrs.frozen(eq=False)
class CupyMark:
    """An event."""

    event: Any

    def wait(self) -> None:
        """Wait for it; the GIL is released."""
        self.event.synchronize()


@attrs.define(eq=False)
class Ring:
    """Gives out places of ``nbytes`` bytes in turn, each again once the copies that use it have run."""

    nbytes: int
    _at: int = 0
    _open: deque[tuple[int, int, Mark]] = attrs.field(factory=deque)  # begin, end, passed; oldest first

    def place(self, nbytes: int) -> int:
        """Find room; waits for every copy that still uses a part of it.  Raises ValueError."""
        need = -(-nbytes // 256) * 256
        if need > self.nbytes:
            raise ValueError(f"{nbytes} bytes do not fit the staging ring")
        begin = self._at if self._at + need <= self.nbytes else 0
        # The oldest alone would not do: after two turns in a row it may lie behind what newer ones use.
        while any(start < begin + need and begin < end for start, end, _ in self._open):
            self._open.popleft()[2].wait()
        self._at = begin + need
        return begin

    def use(self, begin: int, nbytes: int, passed: Mark) -> None:
        """Note a copy that uses a place until ``passed``."""
        self._open.append((begin, begin + nbytes, passed))
        while len(self._open) > MOST_OPEN:
            self._open.popleft()[2].wait()


@attrs.define(eq=False)
class CupyTransfers:
    """Transfers through CuPy on ``stream``.  Make it on the device's thread."""

    stream: Any
    staging_bytes: int = 16 << 20
    result_numbers: int = 4096
    _staging: Any = None
    _ring: Ring = attrs.field(init=False)
    _results: list[Any] = attrs.field(factory=list)
    _turn: int = 0
    _slabs: list[tuple[Any, Scratch]] = attrs.field(factory=list)
    _lent: dict[int, DeviceArray] = attrs.field(factory=dict)
    _dropped: CupyMark | None = None  # when memory was last given back

    def __attrs_post_init__(self) -> None:
        self._staging, self._ring = self._pinned(self.staging_bytes), Ring(self.staging_bytes)
        self._results = [self._pinned(self.result_numbers * 4) for _ in range(8)]

    def _pinned(self, nbytes: int) -> Any:
        import cupy

        return cupy.cuda.PinnedMemory(nbytes)

    def mark(self) -> CupyMark:
        """Mark this point of the stream."""
        import cupy

        event = cupy.cuda.Event()
        event.record(self.stream)
        return CupyMark(event)

    def seconds(self, begin: Mark, end: Mark) -> float:
        """Device time between two marks that have been passed."""
        import cupy

        assert isinstance(begin, CupyMark) and isinstance(end, CupyMark)
        return float(cupy.cuda.get_elapsed_time(begin.event, end.event)) / 1e3

    def send(self, target: DeviceArray, values: NDArray[Any]) -> None:
        """Copy host values into the first bytes of an array."""
        from cupy.cuda import runtime

        raw = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        if not raw.nbytes:
            return
        if raw.nbytes > target.nbytes:
            raise ValueError(f"{raw.nbytes} bytes into {target.nbytes}")
        begin = self._ring.place(raw.nbytes)
        host_view(self._staging.ptr + begin, raw.nbytes)[:] = raw
        runtime.memcpyAsync(target.ptr, self._staging.ptr + begin, raw.nbytes, 1, self.stream.ptr)
        self._ring.use(begin, raw.nbytes, self.mark())

    def fetch(self, source: DeviceArray) -> tuple[NDArray[Any], Mark]:
        """Begin copying int32 results out."""
        from cupy.cuda import runtime

        if source.size > self.result_numbers or source.kind != "i32":
            raise ValueError(f"results of {source.shape} {source.kind}")
        place = self._results[self._turn]
        self._turn = (self._turn + 1) % len(self._results)
        runtime.memcpyAsync(place.ptr, source.ptr, source.nbytes, 2, self.stream.ptr)
        return host_view(place.ptr, source.nbytes).view(np.int32).reshape(source.shape), self.mark()

    def copy(self, target: DeviceArray, source: DeviceArray) -> None:
        """Copy between arrays of equal size."""
        from cupy.cuda import runtime

        if target.nbytes != source.nbytes:
            raise ValueError(f"{source.nbytes} bytes into {target.nbytes}")
        runtime.memcpyAsync(target.ptr, source.ptr, source.nbytes, 3, self.stream.ptr)

    def fill(self, array: DeviceArray, byte: int = 0) -> None:
        """Set every byte."""
        from cupy.cuda import runtime

        if array.nbytes:
            runtime.memsetAsync(array.ptr, byte, array.nbytes, self.stream.ptr)

    def save(self, arrays: Sequence[DeviceArray]) -> Bytes:
        """Begin copying arrays, end to end, into pinned memory."""
        from cupy.cuda import runtime

        saved = self._lend(sum(array.nbytes for array in arrays))
        at = saved.ctypes.data
        for array in arrays:
            runtime.memcpyAsync(at, array.ptr, array.nbytes, 2, self.stream.ptr)
            at += array.nbytes
        return saved

    def room(self, nbytes: int) -> Bytes:
        """Lend pinned memory once no copy reads what was there before: the host fills it, out of order.

        Waits for what had been submitted when memory was last given back.  Raises ``MemoryError``.
        """
        from cupy.cuda import runtime

        if self._dropped is not None:
            self._dropped.wait()
            self._dropped = None
        try:
            return self._lend(nbytes)
        except runtime.CUDARuntimeError as error:
            raise MemoryError(f"no {nbytes} bytes of pinned memory: {error}") from None

    def _lend(self, nbytes: int) -> Bytes:
        place = self._host_room(nbytes)
        self._lent[place.ptr] = place
        return host_view(place.ptr, nbytes)

    def _host_room(self, nbytes: int) -> DeviceArray:
        """Take pinned memory from the first slab with room; slabs are never given back."""
        for _, slab in self._slabs:
            if slab.nbytes - slab.lent >= nbytes:
                try:
                    return slab.take((nbytes,), "u8")
                except Broken:
                    continue  # enough in all, but not in one piece
        memory = self._pinned(max(SLAB_BYTES, aligned(nbytes)))
        self._slabs.append((memory, Scratch(memory.ptr, max(SLAB_BYTES, aligned(nbytes)))))
        return self._slabs[-1][1].take((nbytes,), "u8")

    def load(self, array: DeviceArray, saved: Bytes, at: int) -> None:
        """Copy the saved bytes from ``at`` on back into an array."""
        from cupy.cuda import runtime

        if at + array.nbytes > saved.nbytes:
            raise ValueError(f"{array.nbytes} bytes at {at} of {saved.nbytes} saved")
        runtime.memcpyAsync(array.ptr, saved.ctypes.data + at, array.nbytes, 1, self.stream.ptr)

    def drop(self, saved: Bytes) -> None:
        """Give the memory back; the order of the stream protects copies that are still to run."""
        del self._lent[saved.ctypes.data]
        self._dropped = self.mark()

    def read(self, arrays: Sequence[DeviceArray]) -> Bytes:
        """Copy arrays out through the ring: while one piece is taken off it, the next is on its way."""
        from cupy.cuda import runtime

        found, at = np.empty(sum(array.nbytes for array in arrays), np.uint8), 0
        coming: deque[tuple[int, int, int, CupyMark]] = deque()  # in the ring, in ``found``, bytes, arrived
        for ptr, count in _pieces(arrays, self.staging_bytes // 4):
            place = self._ring.place(count)
            runtime.memcpyAsync(self._staging.ptr + place, ptr, count, 2, self.stream.ptr)
            coming.append((place, at, count, self.mark()))
            self._ring.use(place, count, coming[-1][3])
            at += count
            if len(coming) == 2:
                self._take_off(coming.popleft(), found)
        for piece in coming:
            self._take_off(piece, found)
        return found

    def _take_off(self, piece: tuple[int, int, int, CupyMark], found: Bytes) -> None:
        place, at, count, arrived = piece
        arrived.wait()
        found[at : at + count] = host_view(self._staging.ptr + place, count)


def _pieces(arrays: Sequence[DeviceArray], most: int) -> Iterator[tuple[int, int]]:
    """Cut arrays into (address, bytes) of at most ``most`` bytes."""
    for array in arrays:
        for begin in range(0, array.nbytes, most):
            yield array.ptr + begin, min(most, array.nbytes - begin)


def host_view(ptr: int, nbytes: int) -> Bytes:
    """See pinned memory as bytes; whoever owns it must keep it alive."""
    raw: Any = (ctypes.c_uint8 * nbytes).from_address(ptr)
    return np.frombuffer(raw, np.uint8)
