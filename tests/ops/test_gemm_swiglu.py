"""Which way a SwiGLU of many rows takes: one launch only after a trial that it has passed."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from ninfer.kernels_cu.arrays import DeviceArray
from ninfer.ops.gemm_swiglu import LEAST_ROWS, FusedSwiglu

PAIR = DeviceArray(0, (16, 128), "bf16")


@attrs.define
class Card:
    """A library and a clock of paper: one launch leaves ``bits``, two leave b"x"."""

    bits: bytes
    left: bytes = b""
    ran: list[str] = attrs.field(factory=list)

    def supports(self, file: str) -> bool:
        return True

    def box_map(self, array: DeviceArray, rows: int) -> bytes:
        return bytes(128)

    def get(self, file: str, name: str) -> Card:
        return self

    def launch(self, *arguments: object, shared: int) -> None:
        self._ran("fused", self.bits)

    def apart(self) -> None:
        self._ran("apart", b"x")

    def _ran(self, way: str, bits: bytes) -> None:
        self.left = bits
        self.ran.append(way)

    def mark(self) -> Any:
        raise AssertionError

    def seconds(self, begin: object, end: object) -> float:
        raise AssertionError

    def read(self, arrays: object) -> bytes:
        return self.left


def last(fused: FusedSwiglu, card: Card, rows: int, trial: bool = False) -> str:
    x, out = DeviceArray(0, (rows, 128), "bf16"), DeviceArray(0, (rows, 8), "bf16")
    fused.run(x, PAIR, out, card.apart, card if trial else None)
    return card.ran[-1]


@pytest.mark.parametrize("bits, want", [(b"x", "fused"), (b"y", "apart")], ids=["same bits", "others"])
def test_one_launch_must_leave_the_same_bits(bits: bytes, want: str) -> None:
    card = Card(bits)
    fused = FusedSwiglu(card, 8)
    assert last(fused, card, LEAST_ROWS) == "apart"
    assert last(fused, card, 2 * LEAST_ROWS, trial=True) == want
    assert last(fused, card, LEAST_ROWS) == want
    assert last(fused, card, LEAST_ROWS - 1) == "apart"
    before = len(card.ran)
    assert last(fused, card, LEAST_ROWS, trial=True) == want
    assert len(card.ran) == before + 1  # tried once


def test_what_a_trial_has_not_seen_stays_apart() -> None:
    card = Card(b"x")
    fused = FusedSwiglu(card, 8)
    assert last(fused, card, LEAST_ROWS - 1, trial=True) == "apart"
    assert last(fused, card, LEAST_ROWS) == "apart"
