"""Device memory bookkeeping, with addresses and no device."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer.faults import Broken
from ninfer.runtime.arena import Region, Scratch


def test_region_places_arrays_one_after_another() -> None:
    region = Region(4096, 1024)
    first, second = region.take((3, 5), "bf16"), region.take((1,), "u8")
    assert (first.ptr, second.ptr) == (4096, 4096 + 256)
    part = region.split(100)
    assert (part.base, part.nbytes) == (4096 + 512, 256)
    with pytest.raises(Broken):
        region.take((257,), "u8")


def test_scratch_takes_back_what_no_one_refers_to() -> None:
    scratch = Scratch(0, 1024)
    first = scratch.take((256,), "u8")
    view = first.reshape(2, 128).rows(1, 2)
    del first
    assert scratch.lent == 256
    del view
    assert scratch.lent == 0 and scratch.take((1024,), "u8").ptr == 0


def test_scratch_refuses_what_does_not_fit() -> None:
    scratch = Scratch(0, 512)
    keep = scratch.take((300,), "u8")
    with pytest.raises(Broken):
        scratch.take((1,), "u8")
    assert keep.ptr == 0


@given(st.lists(st.tuples(st.integers(1, 3000), st.integers(0, 7)), max_size=60))
def test_loans_never_overlap_and_all_bytes_return(moves: list[tuple[int, int]]) -> None:
    scratch = Scratch(1 << 20, 16384)
    held: dict[int, object] = {}
    for nbytes, key in moves:
        held.pop(key, None)
        try:
            held[key] = scratch.take((nbytes,), "u8")
        except Broken:
            continue
        spans = sorted((a.ptr, a.ptr + a.nbytes) for a in held.values())  # type: ignore[attr-defined]
        assert all(left[1] <= right[0] for left, right in itertools.pairwise(spans))
        assert scratch.lent <= 16384 and scratch.peak <= 16384
    held.clear()
    assert scratch.lent == 0 and scratch.take((16384,), "u8").ptr == 1 << 20
