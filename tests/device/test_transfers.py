"""Copies between card and host: whole, in order, and bounded by the staging ring."""

from __future__ import annotations

import numpy as np
import pytest

from ninfer.runtime.cuda_transfers import CupyTransfers
from tests.device.card import bench

pytestmark = pytest.mark.cuda


def test_arrays_larger_than_the_ring_come_out_whole_between_copies_in() -> None:
    card = bench()
    transfers = CupyTransfers(card.card.stream, staging_bytes=1 << 20)
    random = np.random.default_rng(5)
    values = [random.integers(0, 256, size, np.uint8) for size in (3_000_000, 1, 256 << 10, 999)]
    arrays = [card.to(value) for value in values]
    target = card.empty((100_000,), "u8")
    for turn in range(3):
        transfers.send(target, np.full(100_000, turn, np.uint8))
        assert (transfers.read(arrays) == np.concatenate(values)).all()
        transfers.send(target, np.full(70_000, 100 + turn, np.uint8))
        seen = card.back(target)
        assert (seen[:70_000] == 100 + turn).all() and (seen[70_000:] == turn).all()


def test_room_filled_by_the_host_is_loaded_and_given_back() -> None:
    card = bench()
    transfers = CupyTransfers(card.card.stream)
    values = np.random.default_rng(6).integers(0, 256, 1 << 20, np.uint8)
    target = card.empty((1 << 19,), "u8")
    for _ in range(3):
        room = transfers.room(1 << 20)
        room[:] = values
        transfers.load(target, room, 1 << 19)
        assert (card.back(target) == values[1 << 19 :]).all()
        transfers.drop(room)
    assert len(transfers._slabs) == 1
