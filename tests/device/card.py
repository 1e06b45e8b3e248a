"""What the tests on a GPU share: the card, arrays in and out.

With ``NINFER_TEST_ALLOCATE=each`` every array is an allocation of its own, so that a memory checker sees
the end of each; with ``raw`` arrays are not poisoned either, so that it sees what nobody wrote.  With
``NINFER_TEST_WATCHED=1`` kernels are compiled in the form that a race checker can follow, where they have
one.  The one thing a reader would get wrong: nothing can be captured with ``each`` or ``raw``, so rounds
run eagerly.
"""

from __future__ import annotations

import functools
import math
import os
from pathlib import Path
from typing import Any

import attrs
import ml_dtypes
import numpy as np

from ninfer.kernels_cu.arrays import KIND_BYTES, DeviceArray
from ninfer.kernels_cu.pack import Kernel, Library
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
ALLOCATE = os.environ.get("NINFER_TEST_ALLOCATE")
POISON = 0xFF  # as bf16 and float32 a NaN


class Alone:
    """Lends every array as an allocation of its own."""

    def take(self, shape: tuple[int, ...], kind: str) -> DeviceArray:
        """Lend an array."""
        import cupy

        memory = cupy.cuda.Memory(max(1, math.prod(shape) * KIND_BYTES[kind]))
        return DeviceArray(memory.ptr, shape, kind, memory)


def apart() -> bool:
    """Whether every array is to be an allocation of its own."""
    return ALLOCATE in ("each", "raw")


FOLLOWED = ("linear.cu", "attend_decode.cu", "delta_step.cu", "delta_hopper.cu", "rope.cu")


@attrs.define(eq=False)
class Watched(Library):
    """Kernels in the form that a race checker can follow, compiled; those without one as ever."""

    plain: Library = attrs.field(kw_only=True)

    @classmethod
    def like(cls, plain: Library) -> Watched:
        """For the same card and stream."""
        return cls(plain.driver, plain.arch, None, plain.cache, plain.stream, plain=plain)

    def get(self, file: str, name: str, **defines: int) -> Kernel:
        """The kernel ``name`` of ``file``."""
        if file not in FOLLOWED:
            return self.plain.get(file, name, **defines)
        return super().get(file, name, WATCHED=1, **defines)


@attrs.frozen(eq=False)
class Bench:
    """A card with a scratch allocator; arrays live as long as they are referred to."""

    card: Card
    library: Library
    scratch: Scratch | Alone
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
        if ALLOCATE != "raw":
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
    if apart():
        return _bench(
            card, Alone(), Alone().take((WORKSPACE_BYTES,), "u8"), Alone().take((COUNTERS,), "u32")
        )
    nbytes = 24 << 30
    block = RawBlock.allocate(nbytes, "tests")
    region = Region(block.ptr, nbytes)
    counters, workspace = region.take((COUNTERS,), "u32"), region.take((WORKSPACE_BYTES,), "u8")
    rest = region.split(nbytes - region.used - 256)
    _KEEP.append(block)
    return _bench(card, Scratch(rest.base, rest.nbytes), workspace, counters)


def _bench(card: Card, scratch: Scratch | Alone, workspace: DeviceArray, counters: DeviceArray) -> Bench:
    card.fill(counters)
    gemm = CublasLt(workspace, card.stream.ptr)
    library = Watched.like(card.library) if os.environ.get("NINFER_TEST_WATCHED") else card.library
    linear = Linear(library, card.multiprocessors, card.shared_bytes, scratch.take, counters)
    return Bench(card, library, scratch, Products(linear, gemm), gemm)


_KEEP: list[RawBlock] = []
