"""The card: what it is, and opening it with one sentence for whatever is missing.

Owns the process's one stream and kernel library, and what to advise when the driver refuses.  The one
thing a reader would get wrong: CuPy's current stream and device are per thread; ``open_card`` must run on
the thread that will use them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from ninfer.faults import StartupError
from ninfer.kernels_cu.arrays import DeviceArray
from ninfer.kernels_cu.build import CompileFailed, default_cache
from ninfer.kernels_cu.driver import CudaDriver, DriverError
from ninfer.kernels_cu.pack import Library, check_pack
from ninfer.kernels_cu.source import ARCHITECTURES

_MULTIPROCESSORS, _SHARED_OPTIN = 16, 97
_MEMORY = "stop what else uses the GPU, or lower --max-context, --max-concurrency or --kv-capacity"
_DRIVER = "update the NVIDIA driver"
_ELSE = "see what dmesg says of it, or use --backend numpy"
_KERNELS = "build the kernels again (`ninfer kernels build`, or empty the kernel cache)"
# By code; the driver and the run-time library number these alike.
REMEDIES = {
    2: _MEMORY,
    35: _DRIVER,
    46: "another process has the GPU to itself: stop it",
    200: _KERNELS,
    209: _KERNELS,
    218: _KERNELS,
    222: _DRIVER,
    803: _DRIVER,
    804: _DRIVER,
}


@attrs.frozen(eq=False)
class Card:
    """One GPU.

    shared_bytes  shared memory that a block may have
    stream        CuPy's handle of the stream that everything runs on
    """

    name: str
    arch: str
    multiprocessors: int
    shared_bytes: int
    total_bytes: int
    stream: Any
    library: Library

    def free_bytes(self) -> int:
        """Bytes that the driver would still give."""
        import cupy

        return int(cupy.cuda.runtime.memGetInfo()[0])

    def wait(self) -> None:
        """Wait for everything submitted; raises what the device raised."""
        self.stream.synchronize()

    def fill(self, array: DeviceArray, byte: int = 0) -> None:
        """Set every byte of an array."""
        import cupy

        cupy.cuda.runtime.memsetAsync(array.ptr, byte, array.nbytes, self.stream.ptr)

    def write(self, array: DeviceArray, values: NDArray[Any]) -> None:
        """Copy host values in and wait; sizes must agree."""
        import cupy

        raw = np.ascontiguousarray(values)
        if raw.nbytes != array.nbytes:
            raise ValueError(f"{raw.nbytes} bytes into {array.nbytes}")
        cupy.cuda.runtime.memcpyAsync(array.ptr, raw.ctypes.data, raw.nbytes, 1, self.stream.ptr)
        self.wait()

    def read(self, array: DeviceArray, out: NDArray[Any]) -> NDArray[Any]:
        """Copy an array out, after everything submitted before."""
        import cupy

        if out.nbytes != array.nbytes or not out.flags.c_contiguous:
            raise ValueError(f"{array.nbytes} bytes into {out.nbytes}")
        cupy.cuda.runtime.memcpyAsync(out.ctypes.data, array.ptr, out.nbytes, 2, self.stream.ptr)
        self.wait()
        return out


@contextmanager
def starting() -> Iterator[None]:
    """Turn what the driver complains of during a start into a StartupError of one sentence."""
    try:
        yield
    except CompileFailed as problem:
        first = next((line for line in str(problem).splitlines() if "error" in line), "no reason given")
        raise StartupError(
            f"the kernels do not compile ({first.strip()}): install the extra cuda13 or cuda12 for "
            "CUDA's headers, or point --kernels at a pack made by `ninfer kernels build`"
        ) from None
    except DriverError as problem:
        raise _refused(problem, 0 if problem.call.startswith("cublas") else problem.code) from None
    except RuntimeError as problem:  # CuPy's errors are such, with a status
        if not hasattr(problem, "status"):
            raise
        raise _refused(problem, problem.status) from None


def _refused(problem: Exception, code: int) -> StartupError:
    words = " ".join(str(problem).split())
    return StartupError(f"the GPU cannot be used ({words}): {REMEDIES.get(code, _ELSE)}")


def open_card(ordinal: int = 0, pack: Path | None = None, cache: Path | None = None) -> Card:
    """Open a GPU on this thread; raises StartupError saying what is missing and what to do."""
    try:
        import cupy
    except ImportError as missing:
        raise StartupError(
            f"the CUDA backend needs CuPy ({missing}): install the extra, "
            "`pip install -e '.[cuda13]'` or `'.[cuda12]'`, or use --backend numpy (`ninfer bench cpu`)"
        ) from None
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise StartupError(
            f"no usable CUDA driver ({error}): install one, or use --backend numpy (`ninfer bench cpu`)"
        ) from None
    if ordinal >= count:
        raise StartupError(f"there is no GPU {ordinal}: this host has {count}; use --backend numpy")
    with starting():
        cupy.cuda.Device(ordinal).use()
        return _describe(ordinal, pack, cache)


def _describe(ordinal: int, pack: Path | None, cache: Path | None) -> Card:
    import cupy

    properties = cupy.cuda.runtime.getDeviceProperties(ordinal)
    major, minor = properties["major"], properties["minor"]
    name = properties["name"].decode()
    arch = nearest(major, minor)
    if arch is None:
        raise StartupError(_unknown(name, major, minor))
    if pack is not None:
        check_pack(pack, arch)
    stream = cupy.cuda.Stream(non_blocking=True)
    stream.use()
    library = Library(CudaDriver(), arch, pack, cache or default_cache(), stream.ptr)
    ask = cupy.cuda.runtime.deviceGetAttribute
    return Card(
        name=name,
        arch=arch,
        multiprocessors=ask(_MULTIPROCESSORS, ordinal),
        shared_bytes=ask(_SHARED_OPTIN, ordinal),
        total_bytes=int(properties["totalGlobalMem"]),
        stream=stream,
        library=library,
    )


def _unknown(name: str, major: int, minor: int) -> str:
    problem = "too old" if major < 8 else "of a kind that there are no kernels for"
    return f"{name} (compute capability {major}.{minor}) is {problem}: use --backend numpy"


def nearest(major: int, minor: int) -> str | None:
    """The newest architecture whose code runs on this compute capability; None where there is none.

    Machine code of X.y runs on X.z for z >= y, so 8.7 takes 8.6 code and 12.1 takes 12.0 code.
    """
    known = [(int(name[3:-1]), int(name[-1])) for name in ARCHITECTURES if name[-1].isdigit()]
    fits = [pair for pair in known if pair[0] == major and pair[1] <= minor]
    return "sm_{}{}".format(*max(fits)) if fits else None
