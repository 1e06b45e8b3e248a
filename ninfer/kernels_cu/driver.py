"""The driver calls that load modules and launch kernels, through ctypes.

Owns the C structs of ``cuLaunchKernelEx``.  CuPy has neither dependent launches nor a launch that skips
its own argument guessing; memory, streams, events and graphs stay CuPy's.

The one thing a reader would get wrong: after a sticky code (``STICKY``) every later call fails, so the
first one is the fault worth reporting.
"""

from __future__ import annotations

import ctypes
from typing import Any, Protocol

STICKY = {700, 702, 710, 714, 715, 716, 717, 718, 719}


class DriverError(Exception):
    """A driver call failed; ``code`` is the CUresult."""

    def __init__(self, call: str, code: int) -> None:
        lost = " (the context is lost)" if code in STICKY else ""
        super().__init__(f"{call}: CUDA error {code}{lost}")
        self.call = call
        self.code = code


class _Attribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_uint), ("pad", ctypes.c_uint), ("value", ctypes.c_uint * 16))


class _Config(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    )


PROGRAMMATIC_SERIALIZATION = 6
MAX_DYNAMIC_SHARED, SHARED_CARVEOUT = 8, 9
BOX_COLUMNS = 64  # 128 bytes, which the swizzle asks for
_MAP_BYTES, _BF16_ELEMENTS, _SWIZZLE_128, _PROMOTE_256 = 128, 9, 3, 3


class Driver(Protocol):
    """What loading and launching need of a driver; tests pass a fake."""

    def load(self, code: bytes) -> Any:
        """Open a module."""

    def function(self, module: Any, name: str) -> Any:
        """Find a kernel in a module."""

    def allow_shared(self, function: Any, nbytes: int) -> None:
        """Let a kernel take more than 48 KiB of dynamic shared memory."""

    def box_map(self, ptr: int, rows: int, columns: int, stride: int, box_rows: int) -> bytes:
        """Describe a matrix of bf16 to the engine that copies boxes of it."""

    def launch(
        self,
        function: Any,
        grid: tuple[int, int, int],
        block: int,
        shared: int,
        stream: int,
        arguments: Any,
        dependent: bool,
    ) -> None:
        """Start a kernel; ``arguments`` is a C array of pointers to its parameters."""


class CudaDriver:
    """``libcuda`` itself.  Uses the context that is current in the calling thread."""

    def __init__(self) -> None:
        self._lib = ctypes.CDLL("libcuda.so.1")
        self._attribute = _Attribute(PROGRAMMATIC_SERIALIZATION, 0)
        self._attribute.value[0] = 1
        self._config = _Config()
        self._config.attributes = ctypes.pointer(self._attribute)
        self._reference = ctypes.byref(self._config)
        self._launch = self._lib.cuLaunchKernelEx

    def check(self, call: str, code: int) -> None:
        """Raise DriverError unless the call went well."""
        if code:
            raise DriverError(call, code)

    def load(self, code: bytes) -> ctypes.c_void_p:
        """Open a module from a cubin's bytes."""
        module = ctypes.c_void_p()
        self.check("cuModuleLoadData", self._lib.cuModuleLoadData(ctypes.byref(module), code))
        return module

    def function(self, module: ctypes.c_void_p, name: str) -> ctypes.c_void_p:
        """Find a kernel in a module."""
        found = ctypes.c_void_p()
        code = self._lib.cuModuleGetFunction(ctypes.byref(found), module, name.encode())
        self.check(f"cuModuleGetFunction {name}", code)
        # One split of L1 and shared memory for all: a multiprocessor must be empty to change it, and
        # until then a dependent launch would crowd onto those that already are.
        self.check("cuFuncSetAttribute", self._lib.cuFuncSetAttribute(found, SHARED_CARVEOUT, 100))
        return found

    def allow_shared(self, function: ctypes.c_void_p, nbytes: int) -> None:
        """Let a kernel take more than 48 KiB of dynamic shared memory."""
        code = self._lib.cuFuncSetAttribute(function, MAX_DYNAMIC_SHARED, nbytes)
        self.check("cuFuncSetAttribute", code)

    def box_map(self, ptr: int, rows: int, columns: int, stride: int, box_rows: int) -> bytes:
        """Describe a matrix of bf16 to the engine that copies boxes of 64 columns of it, swizzled.

        ``stride`` counts elements; the address is a multiple of 16 bytes, and so is a row.
        """
        room = ctypes.create_string_buffer(_MAP_BYTES + 64)
        at = -(-ctypes.addressof(room) // 64) * 64
        pair, one = ctypes.c_uint64 * 2, ctypes.c_uint64 * 1
        words = ctypes.c_uint32 * 2
        code = self._lib.cuTensorMapEncodeTiled(
            ctypes.c_void_p(at), _BF16_ELEMENTS, 2, ctypes.c_void_p(ptr), pair(columns, rows),
            one(stride * 2), words(BOX_COLUMNS, box_rows), words(1, 1), 0, _SWIZZLE_128, _PROMOTE_256, 0,
        )  # fmt: skip
        self.check("cuTensorMapEncodeTiled", code)
        return ctypes.string_at(at, _MAP_BYTES)

    def launch(
        self,
        function: ctypes.c_void_p,
        grid: tuple[int, int, int],
        block: int,
        shared: int,
        stream: int,
        arguments: Any,
        dependent: bool,
    ) -> None:
        """Start a kernel; a ``dependent`` one may begin before its predecessor has ended."""
        config = self._config
        config.grid[:] = grid
        config.block[:] = (block, 1, 1)
        config.shared = shared
        config.stream = stream
        config.count = 1 if dependent else 0
        self.check("cuLaunchKernelEx", self._launch(self._reference, function, arguments, None))
