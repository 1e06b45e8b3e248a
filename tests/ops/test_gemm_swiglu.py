"""Which way a SwiGLU of many rows takes: one launch only after a trial that it has passed."""

from __future__ import annotations

import attrs
import pytest

from ninfer.kernels_cu.arrays import DeviceArray
from ninfer.ops.gemm_swiglu import LEAST_ROWS, FusedSwiglu

PAIR = DeviceArray(0, (16, 128), "bf16")


@attrs.define
class Card:
    """A library and a clock of paper: apart takes 1 ms and leaves b"x"."""

    seconds_of_one: float
    bits: bytes
    now: float = 0.0
    left: bytes = b""
    ran: list[str] = attrs.field(factory=list)

    def supports(self, file: str) -> bool:
        return True

    def box_map(self, array: DeviceArray, rows: int) -> bytes:
        return bytes(128)

    def get(self, file: str, name: str) -> Card:
        return self

    def launch(self, *arguments: object, shared: int) -> None:
        self._ran("fused", self.seconds_of_one, self.bits)

    def apart(self) -> None:
        self._ran("apart", 1e-3, b"x")

    def _ran(self, way: str, seconds: float, bits: bytes) -> None:
        self.now, self.left = self.now + seconds, bits
        self.ran.append(way)

    def mark(self) -> Mark:
        return Mark(self.now)

    def seconds(self, begin: Mark, end: Mark) -> float:
        return end.now - begin.now

    def read(self, arrays: object) -> bytes:
        return self.left


@attrs.frozen
class Mark:
    now: float

    def wait(self) -> None:
        """Nothing to wait for."""


def last(fused: FusedSwiglu, card: Card, rows: int, trial: bool = False) -> str:
    x, out = DeviceArray(0, (rows, 128), "bf16"), DeviceArray(0, (rows, 8), "bf16")
    fused.run(x, PAIR, out, card.apart, card if trial else None)
    return card.ran[-1]


@pytest.mark.parametrize(
    "seconds, bits, want",
    [(9e-4, b"x", "fused"), (9e-4, b"y", "apart"), (995e-6, b"x", "apart")],
    ids=["faster", "other bits", "hardly faster"],
)
def test_one_launch_must_be_faster_and_leave_the_same_bits(seconds: float, bits: bytes, want: str) -> None:
    card = Card(seconds, bits)
    fused = FusedSwiglu(card, 132)
    assert last(fused, card, LEAST_ROWS) == "apart"
    assert last(fused, card, 2 * LEAST_ROWS, trial=True) == want
    assert last(fused, card, LEAST_ROWS) == want
    assert last(fused, card, LEAST_ROWS - 1) == "apart"
    before = len(card.ran)
    assert last(fused, card, LEAST_ROWS, trial=True) == want
    assert len(card.ran) == before + 1  # tried once


def test_what_a_trial_has_not_seen_stays_apart() -> None:
    card = Card(1e-6, b"x")
    fused = FusedSwiglu(card, 132)
    assert last(fused, card, LEAST_ROWS - 1, trial=True) == "apart"
    assert last(fused, card, LEAST_ROWS) == "apart"
