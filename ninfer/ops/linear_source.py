"""Rows on their way into a launch of ``linear.cu``, and what a product leaves for the norm behind it.

Owns the four ways in which a launch begins.  Promises that the ways of a normed row give the same bits:
its squares are summed in one order (see ``norm_rows`` in linear_rows.cuh), whoever sums them.

The one thing a reader would get wrong: what was left is of use to the very norm that it was left for.
"""

from __future__ import annotations

import enum
from collections.abc import Callable

import attrs

from ninfer.kernels_cu.arrays import DeviceArray


class Beginning(enum.IntEnum):
    """How a launch gets its rows."""

    BF16 = 0  # as they are
    SCALED = 1  # x (1 + norm) in bf16, and 1 / RMS of every row
    NORMED = 2  # x in float32, and the norm
    LEFT = 3  # x (1 + norm) in bf16, and sums of the squares of 16 columns of x each


@attrs.frozen(eq=False)
class Left:
    """What a norm needs of float32 rows, left by the product that made them.

    norm     (K,)         the norm that it was left for
    x        (T, K)       x * (1 + norm) in bf16
    squares  (T, K / 16)  float32, the squares of 16 columns of x summed
    """

    norm: DeviceArray
    x: DeviceArray
    squares: DeviceArray

    @classmethod
    def take(
        cls, take: Callable[[tuple[int, ...], str], DeviceArray], shape: tuple[int, ...], norm: DeviceArray
    ) -> Left | None:
        """Room for rows of this shape, if a launch can read their squares by fours."""
        rows, width = shape
        return None if width % 64 else cls(norm, take(shape, "bf16"), take((rows, width // 16), "f32"))


@attrs.frozen(eq=False)
class Source:
    """The rows of a launch; ``scale`` is (T,) of SCALED rows, the squares of those LEFT."""

    x: DeviceArray
    beginning: Beginning = Beginning.BF16
    eps: float = 0.0
    norm: DeviceArray | None = None
    scale: DeviceArray | None = None

    def rows(self, begin: int, end: int) -> Source:
        """Some of them."""
        scale = self.scale.rows(begin, end) if self.scale else None
        return attrs.evolve(self, x=self.x.rows(begin, end), scale=scale)
