"""One block of numbers for the device: every array of a unit of work, laid end to end, sent in one copy.

Owns the block and its order.  The same arrays in the same shapes lie at the same addresses each time, which
is what lets a captured graph be replayed on new numbers.

The one thing a reader would get wrong: ``room`` only reserves; what lies there is written by a kernel.
"""

from __future__ import annotations

import math

import attrs
import numpy as np
from numpy.typing import NDArray

from ninfer.kernels_cu.arrays import DeviceArray
from ninfer.ops.numpy_state import Ints
from ninfer.ops.verbs import Step

ALIGN = 4  # int32 elements: parts begin on 16 bytes


@attrs.define(eq=False)
class Packer:
    """Lays int32 arrays into ``block``; ``width`` is the pages that every table has room for."""

    block: DeviceArray
    width: int
    used: int = 0
    _host: Ints = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._host = np.zeros(self.block.size, np.int32)

    def begin(self) -> None:
        """Start a new block."""
        self.used = 0

    def room(self, *shape: int) -> DeviceArray:
        """Reserve an array.  Raises ValueError when the block is full."""
        size = math.prod(shape)
        begin, self.used = self.used, self.used + -(-size // ALIGN) * ALIGN
        if self.used > self.block.size:
            raise ValueError(f"a unit needs more than {self.block.size} numbers")
        return DeviceArray(self.block.ptr + 4 * begin, shape, "i32", self.block.owner)

    def put(self, values: NDArray[np.int32]) -> DeviceArray:
        """Lay an array."""
        begin = self.used
        made = self.room(*values.shape)
        self._host[begin : begin + values.size].reshape(values.shape)[...] = values
        return made

    def tables(self, tables: Ints) -> DeviceArray:
        """Lay page tables (S, P), P at most ``width``, padded to ``width``."""
        begin, (count, pages) = self.used, tables.shape
        made = self.room(count, self.width)
        here = self._host[begin : begin + count * self.width].reshape(count, self.width)
        here[:, :pages] = tables
        return made

    def step(self, step: Step, ids: DeviceArray | None = None) -> Step:
        """Lay a step; ``ids`` are already there when a kernel finds them.

        Tables of a prompt piece keep their own width, which tells how far its pages reach.
        """
        return attrs.evolve(
            step,
            ids=self.put(step.ids) if ids is None else ids,
            positions=self.put(step.positions),
            offsets=self.put(step.offsets),
            frontiers=self.put(step.frontiers),
            tables=self.put(step.tables) if step.kind == "prefill" else self.tables(step.tables),
            slots=self.put(step.slots),
            lanes=self.put(step.lanes),
        )

    def moved(self, device: Step, step: Step) -> Step:
        """The same rows at the positions of ``step``, which must differ in nothing else."""
        return attrs.evolve(device, positions=self.put(step.positions), first=step.first)

    def ending(self, device: Step, step: Step) -> Step:
        """The last rows of a laid step, as ``step`` says them; whose sequence it is stays where it is."""
        rows = device.rows
        return attrs.evolve(
            device,
            rows=step.rows,
            ids=device.ids.rows(rows - step.rows, rows),
            positions=self.put(step.positions),
            offsets=self.put(step.offsets),
            frontiers=self.put(step.frontiers),
        )

    @property
    def numbers(self) -> Ints:
        """What has been laid, to be sent to the beginning of the block."""
        return self._host[: self.used]
