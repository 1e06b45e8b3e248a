"""Choosing an algorithm by trial: faster, and the same bits, or not at all."""

from __future__ import annotations

import attrs
import pytest

from ninfer.kernels_cu.arrays import DeviceArray
from ninfer.ops.gemm import fastest, trying

OUT = (DeviceArray(0, (1, 1), "f32"),)


@attrs.define
class Stream:
    """Runs named ways: ``ways`` says how many seconds each takes and which bits it leaves."""

    ways: dict[str, tuple[float, bytes]]
    now: float = 0.0
    left: bytes = b""
    ran: list[str] = attrs.field(factory=list)

    def run(self, way: str) -> None:
        seconds, self.left = self.ways[way]
        self.now += seconds
        self.ran.append(way)

    def mark(self) -> Mark:
        return Mark(self.now)

    def seconds(self, begin: Mark, end: Mark) -> float:
        return end.now - begin.now

    def read(self, arrays: object) -> bytes:
        assert arrays == OUT
        return self.left


@attrs.frozen
class Mark:
    now: float

    def wait(self) -> None:
        """Nothing to wait for."""


def chosen(ways: dict[str, tuple[float, bytes]]) -> str:
    stream = Stream(ways)
    found = fastest(stream, stream.run, "pinned", [way for way in ways if way != "pinned"], OUT)
    assert isinstance(found, str)
    return found


@pytest.mark.parametrize(
    "other, want",
    [
        ((50e-6, b"x"), "other"),
        ((50e-6, b"y"), "pinned"),
        ((97e-6, b"x"), "pinned"),
        ((1.0, b"x"), "pinned"),
    ],
    ids=["faster", "other bits", "hardly faster", "slower"],
)
def test_another_way_must_be_faster_and_leave_the_same_bits(other: tuple[float, bytes], want: str) -> None:
    assert chosen({"pinned": (100e-6, b"x"), "other": other}) == want


def test_the_next_fastest_is_taken_where_the_fastest_has_other_bits() -> None:
    ways = {"pinned": (9e-5, b"x"), "c": (4e-5, b"x"), "a": (2e-5, b"y"), "b": (3e-5, b"x")}
    assert chosen(ways) == "b"


def test_a_long_product_is_left_alone() -> None:
    stream = Stream({"pinned": (2e-3, b"x"), "other": (1e-3, b"x")})
    assert fastest(stream, stream.run, "pinned", ["other"], OUT) == "pinned"
    assert "other" not in stream.ran


def test_only_cublas_takes_part_in_a_trial() -> None:
    def gemm(x: object, w: object, out: object, add: object = None) -> None:
        raise AssertionError

    with trying(gemm, Stream({})) as choices:
        assert not choices
