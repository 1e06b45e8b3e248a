"""A card as the bed of the suites."""

from __future__ import annotations

import os
from typing import Any

import attrs

from ninfer.kernels_cu.arrays import DeviceArray
from ninfer.ops.gemm_bias import PlanesLt
from ninfer.ops.products import Products
from ninfer.runtime.cuda_build import Machine
from ninfer.runtime.cuda_transfers import CupyTransfers
from ninfer.runtime.graphs import capture
from tests.device.card import Bench, apart


@attrs.define(eq=False)
class RealBed:
    """Implements ``tests.suites.bed.Bed`` over the tests' card; NINFER_TEST_SMALL: small cases alone."""

    bench: Bench
    real: bool = attrs.field(factory=lambda: "NINFER_TEST_SMALL" not in os.environ)
    machine: Machine = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        card = self.bench.card
        self.machine = Machine(
            self.bench.library,
            card.multiprocessors,
            card.shared_bytes,
            self.bench.gemm,
            CupyTransfers(card.stream),
            None if apart() else lambda body: capture(self.bench.library, card.stream, body),
            PlanesLt(self.bench.gemm),
        )

    @property
    def library(self) -> Any:
        """The card's kernels."""
        return self.bench.library

    @property
    def products(self) -> Products:
        """The card's products."""
        return self.bench.products

    def take(self, shape: tuple[int, ...], kind: str) -> DeviceArray:
        """Lend a poisoned array."""
        return self.bench.empty(shape, kind)

    def zeros(self, shape: tuple[int, ...], kind: str) -> DeviceArray:
        """Lend a zeroed array."""
        made = self.bench.scratch.take(shape, kind)
        self.bench.card.fill(made)
        return made

    def can_run(self, file: str) -> bool:
        """Whether the kernels of ``file`` run on this card."""
        return bool(self.library.supports(file))

    def to(self, values: Any) -> DeviceArray:
        """Copy a NumPy array in."""
        return self.bench.to(values)

    def back(self, array: DeviceArray) -> Any:
        """Copy an array out."""
        return self.bench.back(array)
