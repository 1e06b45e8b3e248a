"""What the tests on a GPU share: the card, arrays in and out, tolerances."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

import attrs
import ml_dtypes
import numpy as np

from ninfer.kernels_cu.arrays import DeviceArray
from ninfer.ops.gemm import WORKSPACE_BYTES, CublasLt
from ninfer.ops.linear import COUNTERS, Linear
from ninfer.ops.products import Products
from ninfer.runtime.arena import RawBlock, Region, Scratch
from ninfer.runtime.cuda_card import Card, open_card

BF16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = {
    "bf16": BF16,
    "f32": np.float32,
    "f64": np.float64,
    "i32": np.int32,
    "u32": np.uint32,
    "u64": np.uint64,
    "u8": np.uint8,
    "i8": np.int8,
}
KINDS = {np.dtype(dtype): kind for kind, dtype in DTYPES.items()}
POISON = 0xFF  # as bf16 and float32 a NaN


@attrs.frozen(eq=False)
class Bench:
    """A card with a scratch allocator; arrays live as long as they are referred to."""

    card: Card
    scratch: Scratch
    products: Products
    gemm: CublasLt

    def to(self, values: Any) -> DeviceArray:
        """Copy a NumPy array to the device."""
        made = self.scratch.take(values.shape, KINDS[values.dtype])
        self.card.write(made, values)
        return made

    def empty(self, shape: tuple[int, ...], kind: str) -> DeviceArray:
        """An array of poison."""
        made = self.scratch.take(shape, kind)
        self.card.fill(made, POISON)
        return made

    def back(self, array: DeviceArray) -> Any:
        """Copy an array to the host."""
        return self.card.read(array, np.empty(array.shape, DTYPES[array.kind]))


def kernel_pack() -> Path | None:
    """The kernels to use instead of compiling: the folder that NINFER_TEST_KERNELS names."""
    name = os.environ.get("NINFER_TEST_KERNELS")
    return Path(name) if name else None


@functools.cache
def bench() -> Bench:
    """The one card of the process."""
    card = open_card(pack=kernel_pack())
    nbytes = 24 << 30
    block = RawBlock.allocate(nbytes, "tests")
    region = Region(block.ptr, nbytes)
    counters = region.take((COUNTERS,), "u32")
    card.fill(counters)
    gemm = CublasLt(region.take((WORKSPACE_BYTES,), "u8"), card.stream.ptr)
    rest = region.split(nbytes - region.used - 256)
    scratch = Scratch(rest.base, rest.nbytes)
    linear = Linear(card.library, card.multiprocessors, card.shared_bytes, scratch.take, counters)
    _KEEP.append(block)
    return Bench(card, scratch, Products(linear, gemm), gemm)


_KEEP: list[RawBlock] = []
