"""What a suite stands on: a library of kernels, memory, products and transfers; here the emulated one."""

from __future__ import annotations

from typing import Any, Protocol

import attrs
import numpy as np
import pytest

from ninfer.kernels_cu import source
from ninfer.kernels_cu.arrays import DeviceArray
from ninfer.ops.cuda_state import Take
from ninfer.ops.linear import COUNTERS, Linear
from ninfer.ops.products import Products
from ninfer.runtime.cuda_build import Machine
from tests.emulator import EmulatedLibrary
from tests.emulator.memory import gemm, on_device, seen, take, zeros
from tests.emulator.planes import multiply
from tests.emulator.transfers import HostTransfers


class Bed(Protocol):
    """A card, or the emulator.

    take   lends poisoned arrays (every byte 0xff)
    real   whether it is a card on which large cases are worth running
    """

    library: Any
    products: Products
    machine: Machine
    take: Take
    real: bool

    def can_run(self, file: str) -> bool:
        """Whether the kernels of ``file`` run here; the emulator turns into a card that runs them."""

    def to(self, values: Any) -> DeviceArray:
        """Copy a NumPy array in."""

    def back(self, array: DeviceArray) -> Any:
        """Copy an array out."""

    def zeros(self, shape: tuple[int, ...], kind: str) -> DeviceArray:
        """Lend a zeroed array."""


@attrs.define(eq=False)
class EmulatedBed:
    """Implements ``Bed`` in host memory; ``order`` is how fibers are scheduled (see cuda.h)."""

    order: int = 0
    real: bool = False
    take: Take = take
    library: Any = attrs.field(init=False)
    products: Products = attrs.field(init=False)
    machine: Machine = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.library = EmulatedLibrary(self.order)
        self.machine = Machine(self.library, 3, 227 << 10, gemm, HostTransfers(), planes=multiply)
        self.products = Products(Linear(self.library, 3, 227 << 10, take, zeros((COUNTERS,), "u32")), gemm)

    def can_run(self, file: str) -> bool:
        """Whether the kernels of ``file`` run here; the emulator turns into a card that runs them."""
        self.library.arch = source.load(file).architectures[-1]
        return True

    def to(self, values: Any) -> DeviceArray:
        """Copy a NumPy array in."""
        return on_device(values)

    def back(self, array: DeviceArray) -> Any:
        """Copy an array out."""
        return seen(array).copy()

    def zeros(self, shape: tuple[int, ...], kind: str) -> DeviceArray:
        """Lend a zeroed array."""
        return zeros(shape, kind)


def only_on_a_card(bed: Bed, large: bool) -> None:
    """Skip a large case on the emulator."""
    if large and not bed.real:
        pytest.skip("takes a card")


def run_in(bed: Bed, order: int | None) -> None:
    """Have the emulator take threads in one of three orders; a card, whatever its cases, has its own."""
    if order is not None and isinstance(bed.library, EmulatedLibrary):
        bed.library.order = order


def relative(got: Any, want: Any) -> float:
    """Relative L2 distance; infinite when something is not finite."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    if not np.isfinite(got).all():
        return float("inf")
    return float(np.linalg.norm(got - want) / max(np.linalg.norm(want), 1e-30))
