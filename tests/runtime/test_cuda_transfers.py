"""The staging ring: no place is given out again before the copies that use it have run."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as some

from ninfer.runtime.cuda_transfers import Ring


@attrs.define(eq=False)
class Copy:
    """A copy out of ``begin`` .. ``end``, and the mark behind it: waiting there passes all before it."""

    begin: int
    end: int
    earlier: list[Copy]
    passed: bool = False

    def wait(self) -> None:
        """Let the stream run up to here."""
        for copy in [*self.earlier, self]:
            copy.passed = True


def send(ring: Ring, nbytes: int, copies: list[Copy]) -> int:
    """Copy through the ring; fails where a copy that has not run would find other bytes."""
    begin = ring.place(nbytes)
    assert begin % 256 == 0 and begin + nbytes <= ring.nbytes
    spoilt = [one for one in copies if not one.passed and one.begin < begin + nbytes and begin < one.end]
    assert not spoilt
    copies.append(Copy(begin, begin + nbytes, list(copies)))
    ring.use(begin, nbytes, copies[-1])
    return begin


def test_a_second_turn_waits_for_what_the_first_left() -> None:
    copies: list[Copy] = []
    ring = Ring(16 << 20)
    begins = [send(ring, megabytes << 20, copies) >> 20 for megabytes in (10, 5, 9, 8)]
    assert begins == [0, 10, 0, 0]
    assert [copy.passed for copy in copies] == [True, True, True, False]


@given(some.lists(some.integers(1, 4096), max_size=60))
def test_no_copy_is_overtaken(sizes: list[int]) -> None:
    ring, copies = Ring(4096), list[Copy]()
    for size in sizes:
        send(ring, size, copies)


def test_copies_under_way_are_bounded() -> None:
    ring, copies = Ring(1 << 20), list[Copy]()
    for _ in range(200):
        send(ring, 256, copies)
    assert sum(not copy.passed for copy in copies) == 64


def test_what_never_fits_is_refused() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        Ring(4096).place(4097)
