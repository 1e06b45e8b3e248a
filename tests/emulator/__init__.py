"""Compile a .cu file with the host compiler and run its kernels on the CPU.

Owns the build (one shared object per source text and variant, cached in the temporary directory) and
``EmulatedLibrary``, which stands in for ``kernels_cu.pack.Library``: the same ``get`` and ``launch``,
with device arrays whose addresses are host addresses.

The one thing a reader would get wrong: kernels write straight into the NumPy arrays they are given, so
those must stay alive and contiguous.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import re
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ninfer.kernels_cu import source
from ninfer.kernels_cu.arrays import DeviceArray

HERE = Path(__file__).resolve().parent
TOOLKITS = ("/usr/local/cuda/include", "/usr/local/cuda-13.0/include", "/usr/local/cuda-12.9/include")
CODES = {"i32": "i", "u32": "I", "f32": "f", "u64": "Q", "i64": "q"}
KINDS = {
    "float32": "f32",
    "int32": "i32",
    "uint8": "u8",
    "int8": "i8",
    "uint16": "bf16",
    "uint32": "u32",
    "float64": "f64",
    "bfloat16": "bf16",
    "uint64": "u64",
}


def toolkit() -> str | None:
    """The directory of CUDA's headers, or None; the host compiler must be there too."""
    if shutil.which("g++") is None:
        return None
    return next((path for path in TOOLKITS if Path(path, "cuda_bf16.h").exists()), None)


def translate(name: str) -> str:
    """C++ that the host compiler takes."""
    loaded = source.load(name)
    text = loaded.text
    assert _body(source.HERE / "ptx.cuh") in text, f"{name} does not include ptx.cuh"
    for instructions in ("ptx.cuh", "hopper.cuh"):
        text = text.replace(_body(source.HERE / instructions), _body(HERE / instructions))
    text = re.sub(
        r"extern __shared__ (?:__align__\(\d+\) )?([\w ]+?) (\w+)\[\];",
        r"\1* \2 = reinterpret_cast<\1*>(emu::dynamic_shared);",
        text,
    )
    exports = "".join(f"EMU_EXPORT({kernel})\n" for kernel in loaded.signatures)
    return f'#include "{HERE / "cuda.h"}"\n{text}\n{exports}'


def _body(path: Path) -> str:
    return path.read_text().replace("#pragma once\n", "")


@functools.cache
def build(name: str, defines: tuple[tuple[str, int], ...] = ()) -> ctypes.CDLL:
    """The shared object of one variant of ``ninfer/kernels_cu/<name>``."""
    include = toolkit()
    assert include is not None, "no CUDA headers"
    code = translate(name)
    head = (HERE / "cuda.h").read_bytes()
    digest = hashlib.sha256(code.encode() + head + repr(defines).encode()).hexdigest()[:20]
    place = Path(tempfile.gettempdir()) / "ninfer-emulator"
    place.mkdir(exist_ok=True)
    library = place / f"{digest}.so"
    if not library.exists():
        text = place / f"{digest}.{os.getpid()}.cpp"
        text.write_text(code)
        flags = ["-O2", "-march=native", "-std=c++17", "-fPIC", "-shared", "-w", "-ffp-contract=fast"]
        flags += ["-fno-strict-aliasing", f"-I{include}", *(f"-D{key}={value}" for key, value in defines)]
        subprocess.run(["g++", *flags, str(text), "-o", f"{text}.so"], check=True)
        Path(f"{text}.so").rename(library)
    return ctypes.CDLL(str(library))


class EmulatedKernel:
    """One kernel of one variant; see ``kernels_cu.pack.Kernel``."""

    def __init__(self, file: str, name: str, defines: Mapping[str, int], owner: EmulatedLibrary) -> None:
        self.parameters = source.load(file).signatures[name]
        self._library = build(file, tuple(sorted(defines.items())))
        self._entry = getattr(self._library, f"emu_{name}")
        self._name, self._owner = name, owner

    def launch(
        self,
        grid: int | tuple[int, ...],
        block: int,
        *arguments: Any,
        shared: int = 0,
        dependent: bool = False,
    ) -> None:
        """Run to the end; arguments may also be NumPy arrays, passed by address."""
        x, y, z = (grid, 1, 1) if isinstance(grid, int) else (*grid, 1, 1)[:3]
        if not x * y * z:
            return
        assert len(arguments) == len(self.parameters), (
            f"{self._name} takes {len(self.parameters)} arguments"
        )
        ctypes.c_int.in_dll(self._library, "emu_order").value = self._owner.order
        cells = [
            ctypes.create_string_buffer(encode(p.kind, value), max(8, len(encode(p.kind, value))))
            for p, value in zip(self.parameters, arguments, strict=True)
        ]
        pointers = (ctypes.c_void_p * len(cells))(*[ctypes.addressof(cell) for cell in cells])
        threads = (ctypes.c_int * 3)(block, 1, 1)
        assert block <= 1024 and shared <= 227 << 10
        code = self._entry((ctypes.c_int * 3)(x, y, z), threads, shared, pointers, len(cells))
        assert code == 0, f"{self._name}: arity"
        self._owner.launches += 1


def encode(kind: str, value: Any) -> bytes:
    """Bytes of one argument; checks element kinds as the real library does."""
    if kind.endswith("*"):
        if value is None:
            return struct.pack("Q", 0)
        if isinstance(value, np.ndarray):
            assert value.flags.c_contiguous
            value = DeviceArray(value.ctypes.data, value.shape, KINDS[str(value.dtype)], value)
        assert kind in ("any*", f"{value.kind}*"), f"wanted {kind}, got {value.kind}"
        return struct.pack("Q", value.ptr)
    if kind == "struct":
        assert isinstance(value, bytes)
        return value
    return struct.pack(CODES[kind], value)


class EmulatedLibrary:
    """Stands in for ``kernels_cu.pack.Library``; ``order`` is how fibers are scheduled (see cuda.h)."""

    def __init__(self, order: int = 0, arch: str = "sm_80") -> None:
        self.arch = arch
        self.order = order
        self.launches = 0
        self.stream = 0
        self._kernels: dict[tuple[Any, ...], EmulatedKernel] = {}

    def get(self, file: str, name: str, **defines: int) -> EmulatedKernel:
        """The kernel ``name`` of ``file`` in the variant that ``defines`` names."""
        key = (file, name, *sorted(defines.items()))
        if key not in self._kernels:
            self._kernels[key] = EmulatedKernel(file, name, defines, self)
        return self._kernels[key]

    def supports(self, file: str) -> bool:
        """Whether ``file`` has code for the card that is emulated."""
        return self.arch in source.load(file).architectures

    def box_map(self, array: DeviceArray, rows: int) -> bytes:
        """What ``copy_box`` of emulator/hopper.cuh reads."""
        return struct.pack("16Q", array.ptr, *array.shape, array.stride, rows, *[0] * 11)
