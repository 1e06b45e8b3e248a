"""The kernel library: find a kernel by source, name and variant, and launch it with checked arguments.

Owns loaded modules.  Promises that every argument has the kind that the kernel's own signature asks
for, and that an empty grid launches nothing.  Kernels come from an ahead-of-time pack where one is
given, otherwise from the compiler's cache, otherwise from the compiler.

The one thing a reader would get wrong: launches go to ``stream``, which whoever owns the device thread
sets once; a graph is captured by capturing that stream.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import struct
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import attrs

from ninfer.faults import StartupError
from ninfer.kernels_cu import build
from ninfer.kernels_cu.arrays import DeviceArray
from ninfer.kernels_cu.driver import Driver
from ninfer.kernels_cu.source import Parameter, Source, load, names

Argument = DeviceArray | int | float | bytes | None
_CODES = {"i32": "i", "u32": "I", "f32": "f", "u64": "Q", "i64": "q"}
DEFAULT_SHARED = 48 << 10


_POINTER = struct.Struct("Q")
_SCALARS = {kind: struct.Struct(code) for kind, code in _CODES.items()}


@attrs.define(eq=False)
class Kernel:
    """One loaded kernel of one variant.

    Arguments are written into one buffer that lives as long as the kernel, since the driver copies them
    before a launch returns; so a kernel is launched from one thread.
    """

    name: str
    parameters: tuple[Parameter, ...]
    function: Any
    library: Library
    _allowed: int = DEFAULT_SHARED
    _places: list[int] = attrs.field(factory=list)
    _sizes: list[int] = attrs.field(factory=list)
    _buffer: Any = None
    _pointers: Any = None

    def launch(
        self,
        grid: int | tuple[int, ...],
        block: int,
        *arguments: Argument,
        shared: int = 0,
        dependent: bool = False,
    ) -> None:
        """Start ``grid`` blocks (up to three axes) of ``block`` threads with ``shared`` dynamic bytes.

        ``dependent`` launches may start early: the kernel must call ``await_predecessor`` before it
        reads or writes anything that an earlier kernel touches.  None stands for a null pointer.
        Raises TypeError when an argument is not what the signature asks for.
        """
        x, y, z = (grid, 1, 1) if isinstance(grid, int) else (*grid, 1, 1)[:3]
        if not x * y * z:
            return
        library = self.library
        if shared > self._allowed:
            library.driver.allow_shared(self.function, shared)
            self._allowed = shared
        self._write(arguments)
        dependent = dependent and library.dependent_launches
        library.driver.launch(
            self.function, (x, y, z), block, shared, library.stream, self._pointers, dependent
        )
        library.launches += 1

    def _lay_out(self, arguments: tuple[Argument, ...]) -> None:
        if len(arguments) != len(self.parameters):
            raise TypeError(f"{self.name} takes {len(self.parameters)} arguments, not {len(arguments)}")
        self._sizes = [len(value) if isinstance(value, bytes) else 8 for value in arguments]
        ends = list(itertools.accumulate((size + 15) // 16 * 16 for size in self._sizes))
        self._places = [0, *ends[:-1]]
        raw = ctypes.create_string_buffer(max(16, *ends, 16))
        self._buffer, base = memoryview(raw).cast("B"), ctypes.addressof(raw)
        self._pointers = (ctypes.c_void_p * len(ends))(*[base + place for place in self._places])

    def _write(self, arguments: tuple[Argument, ...]) -> None:
        if len(arguments) != len(self._places) or self._buffer is None:
            self._lay_out(arguments)
        buffer = self._buffer
        for parameter, place, size, value in zip(
            self.parameters, self._places, self._sizes, arguments, strict=True
        ):
            wanted = parameter.kind
            if type(value) is DeviceArray:
                if wanted[:-1] != value.kind and wanted != "any*":
                    raise self._unlike(parameter, value)
                _POINTER.pack_into(buffer, place, value.ptr)
            elif wanted in _SCALARS and isinstance(value, (int, float) if wanted == "f32" else int):
                _SCALARS[wanted].pack_into(buffer, place, value)
            elif value is None and wanted[-1] == "*":
                _POINTER.pack_into(buffer, place, 0)
            elif wanted == "struct" and isinstance(value, bytes) and len(value) == size:
                buffer[place : place + size] = value
            else:
                raise self._unlike(parameter, value)

    def _unlike(self, parameter: Parameter, value: Argument) -> TypeError:
        got = f"{value.kind}*" if isinstance(value, DeviceArray) else type(value).__name__
        return TypeError(f"{self.name}: {parameter.name} is {parameter.kind}, got {got}")


@attrs.define(eq=False)
class Library:
    """Kernels of one architecture.

    arch      such as ``sm_90``; variants that need more (``sm_90a``) are chosen by ``supports``
    pack      folder made by ``write_pack``, or None to compile
    cache     folder of compiled kernels, or None
    stream    driver handle of the stream that launches go to

    Kernels of cards before sm_90 do not wait for a predecessor, so no launch is dependent there.
    """

    driver: Driver
    arch: str
    pack: Path | None = None
    cache: Path | None = attrs.field(factory=build.default_cache)
    stream: int = 0
    launches: int = 0
    dependent_launches: bool = attrs.field(init=False)
    _kernels: dict[tuple[Any, ...], Kernel] = attrs.field(factory=dict)
    _modules: dict[tuple[Any, ...], Any] = attrs.field(factory=dict)

    def __attrs_post_init__(self) -> None:
        self.dependent_launches = int(self.arch[3:].removesuffix("a")) >= 90

    def get(self, file: str, name: str, **defines: int) -> Kernel:
        """The kernel ``name`` of ``file`` in the variant that ``defines`` names."""
        key = (file, name, *sorted(defines.items()))
        if key not in self._kernels:
            source = load(file)
            function = self.driver.function(self._module(source, defines), name)
            self._kernels[key] = Kernel(name, source.signatures[name], function, self)
        return self._kernels[key]

    def supports(self, file: str) -> bool:
        """Whether ``file`` has code for this card (Hopper-only sources do not everywhere)."""
        return bool({self.arch, f"{self.arch}a"} & set(load(file).architectures))

    def box_map(self, array: DeviceArray, rows: int) -> bytes:
        """A ``BoxMap`` (hopper.cuh) of a matrix of bf16, to be copied in boxes of so many rows."""
        there, columns = array.shape
        return self.driver.box_map(array.ptr, there, columns, array.stride, rows)

    def _module(self, source: Source, defines: Mapping[str, int]) -> Any:
        key = (source.name, *sorted(defines.items()))
        if key not in self._modules:
            arch = self.arch if self.arch in source.architectures else f"{self.arch}a"
            if arch not in source.architectures:
                raise StartupError(f"{source.name} has no code for {self.arch}")
            code = self._packed(source, arch, defines)
            self._modules[key] = self.driver.load(code)
        return self._modules[key]

    def _packed(self, source: Source, arch: str, defines: Mapping[str, int]) -> bytes:
        if self.pack is None:
            return build.cached(source, arch, defines, self.cache).code
        name = entry_name(source, arch, defines)
        if read_manifest(self.pack).get(name) != source.digest:
            raise _stale(self.pack, arch)
        try:
            return (self.pack / name).read_bytes()
        except OSError:
            raise _stale(self.pack, arch) from None


def _stale(pack: Path, arch: str) -> StartupError:
    plain = arch.removesuffix("a")
    return StartupError(
        f"the kernel pack {pack} was not built from this version for {plain}: "
        f"run `ninfer kernels build --arch {plain} --out {pack}`"
    )


def check_pack(pack: Path, arch: str) -> None:
    """Raise StartupError unless a pack holds every kernel of this version for ``arch``.

    Kernels are loaded as they are first needed, some of them long after the start.
    """
    entries = read_manifest(pack)
    for source, target, variant in _wanted(arch):
        name = entry_name(source, target, variant)
        if entries.get(name) != source.digest or not (pack / name).is_file():
            raise _stale(pack, arch)


def entry_name(source: Source, arch: str, defines: Mapping[str, int]) -> str:
    """File name of one variant in a pack."""
    words = [
        source.name.removesuffix(".cu"),
        arch,
        *(f"{key}{value}" for key, value in sorted(defines.items())),
    ]
    return "-".join(words) + ".cubin"


def read_manifest(pack: Path) -> dict[str, str]:
    """Entry name -> source digest; raises StartupError when the folder is no pack."""
    try:
        entries = json.loads((pack / "manifest.json").read_text())["entries"]
    except (OSError, ValueError, KeyError, TypeError):
        raise StartupError(f"{pack} is no kernel pack: make one with `ninfer kernels build`") from None
    return {str(name): str(digest) for name, digest in entries.items()}


def _wanted(arch: str) -> list[tuple[Source, str, dict[str, int]]]:
    """Every source that ``arch`` can run, as what it is compiled for, in each variant."""
    return [
        (source, target, dict(variant))
        for source in map(load, names())
        for target in sorted({arch, f"{arch}a"} & set(source.architectures))
        for variant in source.variants
    ]


def write_pack(folder: Path, arch: str, cache: Path | None = None, jobs: int = 1) -> list[str]:
    """Compile every variant that ``arch`` can run, ``jobs`` at a time; returns the entries.

    Raises StartupError for a folder that cannot be written, before minutes of compiling.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as problem:
        raise StartupError(f"{folder}: cannot be written ({problem.strerror}); choose another") from None
    wanted = _wanted(arch)
    with ThreadPoolExecutor(jobs) as pool:
        codes = list(pool.map(lambda one: build.cached(one[0], one[1], one[2], cache).code, wanted))
    entries: dict[str, str] = {}
    for (source, target, variant), code in zip(wanted, codes, strict=True):
        name = entry_name(source, target, variant)
        build.store(folder / name, code)
        entries[name] = source.digest
    build.store(folder / "manifest.json", json.dumps({"arch": arch, "entries": entries}, indent=1).encode())
    return sorted(entries)
