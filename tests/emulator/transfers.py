"""Copies that happen at once, in host memory: stands in for runtime.cuda_transfers."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from ninfer.kernels_cu.arrays import DeviceArray
from tests.emulator.memory import seen


class Passed:
    """A mark that is always behind us."""

    def wait(self) -> None:
        """Nothing to wait for."""


class HostTransfers:
    """Implements ``runtime.cuda_transfers.Transfers`` at once."""

    def send(self, target: DeviceArray, values: Any) -> None:
        """Copy into the first bytes of an array."""
        raw = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        assert raw.nbytes <= target.nbytes
        ctypes.memmove(target.ptr, raw.ctypes.data, raw.nbytes)

    def fetch(self, source: DeviceArray) -> tuple[Any, Passed]:
        """Copy results out."""
        return seen(source).copy(), Passed()

    def copy(self, target: DeviceArray, source: DeviceArray) -> None:
        """Copy between arrays."""
        ctypes.memmove(target.ptr, source.ptr, source.nbytes)

    def fill(self, array: DeviceArray, byte: int = 0) -> None:
        """Set every byte."""
        ctypes.memset(array.ptr, byte, array.nbytes)

    def save(self, arrays: Sequence[DeviceArray]) -> Any:
        """Copy arrays out, end to end."""
        return np.concatenate([seen(array).reshape(-1).view(np.uint8) for array in arrays])

    def load(self, array: DeviceArray, saved: Any, at: int) -> None:
        """Copy back."""
        seen(array).reshape(-1).view(np.uint8)[:] = saved[at : at + array.nbytes]

    def room(self, nbytes: int) -> Any:
        """Lend poisoned memory."""
        return np.full(nbytes, 0xFF, np.uint8)

    def drop(self, saved: Any) -> None:
        """Nothing to give back."""

    def read(self, arrays: Sequence[DeviceArray]) -> Any:
        """Copy arrays out."""
        return self.save(arrays)

    def mark(self) -> Passed:
        """Everything has run."""
        return Passed()

    def seconds(self, begin: Passed, end: Passed) -> float:
        """No time passes."""
        return 0.0
