"""From a source to a cubin: NVRTC (or nvcc), with a cache on disk.

Owns the compiler's options and the cache key (source hash, architecture, defines, compiler version).
Promises that a cached cubin is used only for exactly the text it was made from, and that a half-written
file is never read.  No GPU and no CuPy are needed.

The one thing a reader would get wrong: ``<cuda_bf16.h>`` and its kin come from the CUDA headers of the
machine; sources that include none compile with the NVRTC library alone.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import attrs

from ninfer.faults import StartupError
from ninfer.kernels_cu.libraries import find_headers, find_library
from ninfer.kernels_cu.source import Source

OPTIONS = ("-std=c++17", "--ptxas-options=-v", "-default-device", "-lineinfo")
_ENTRY = re.compile(r"(?:Compiling entry function '(\w+)'|Function properties for (\w+))")


class CompileFailed(Exception):
    """The compiler refused a source; the text is its log."""


@attrs.frozen
class Usage:
    """What one kernel takes: registers a thread, spilled bytes, static shared bytes."""

    registers: int
    spill_bytes: int
    shared_bytes: int = 0


@attrs.frozen
class Cubin:
    """Machine code of one source variant for one architecture."""

    code: bytes
    log: str = ""

    @property
    def usage(self) -> dict[str, Usage]:
        """Registers and spills of each kernel, read from the assembler's log (empty from the cache)."""
        return parse_usage(self.log)


class Compiler(Protocol):
    """Turns text into a cubin."""

    @property
    def version(self) -> str:
        """Identifies the compiler in cache keys."""

    def compile(self, name: str, text: str, arch: str, defines: Mapping[str, int]) -> Cubin:
        """Compile; raises CompileFailed."""


def parse_usage(log: str) -> dict[str, Usage]:
    """Read ``ptxas -v`` output: kernel -> Usage."""
    found: dict[str, Usage] = {}
    current, spilled = "", 0
    for line in log.splitlines():
        if match := _ENTRY.search(line):
            current, spilled = match[1] or match[2], spilled if match[2] else 0
        if match := re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", line):
            spilled = int(match[1]) + int(match[2])
        if match := re.search(r"Used (\d+) registers", line):
            shared = re.search(r"(\d+) bytes smem", line)
            found[current] = Usage(int(match[1]), spilled, int(shared[1]) if shared else 0)
            spilled = 0
    return found


class Nvrtc:
    """The run-time compiler, called in this process; releases the GIL while it works."""

    def __init__(self, path: str) -> None:
        for beside in sorted(Path(path).parent.glob("libnvrtc-builtins.so.*")):
            if ".alt." not in beside.name:
                ctypes.CDLL(str(beside), ctypes.RTLD_GLOBAL)  # NVRTC opens it by its bare name
        self._lib = ctypes.CDLL(path)
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._lib.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        self.version = f"nvrtc{major.value}.{minor.value}"
        self._includes = [f"-I{path}" for path in find_headers()]

    def compile(self, name: str, text: str, arch: str, defines: Mapping[str, int]) -> Cubin:
        """Compile; raises CompileFailed with the log."""
        program = ctypes.c_void_p()
        self._lib.nvrtcCreateProgram(ctypes.byref(program), text.encode(), name.encode(), 0, None, None)
        options = [*OPTIONS, f"--gpu-architecture={arch}", *self._includes]
        options += [f"-D{key}={value}" for key, value in defines.items()]
        raw = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
        try:
            status = self._lib.nvrtcCompileProgram(program, len(options), raw)
            log = self._read(program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
            if status:
                raise CompileFailed(f"{name} for {arch}:\n{log}")
            return Cubin(self._read(program, "CUBIN"), log)
        finally:
            self._lib.nvrtcDestroyProgram(ctypes.byref(program))

    def _read(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        getattr(self._lib, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
        data = ctypes.create_string_buffer(size.value)
        getattr(self._lib, f"nvrtcGet{what}")(program, data)
        return data.raw


class Nvcc:
    """The offline compiler of a CUDA toolkit."""

    def __init__(self, path: str) -> None:
        self._path = path
        text = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
        match = re.search(r"V(\d+\.\d+\.\d+)", text)
        self.version = f"nvcc{match[1] if match else ''}"

    def compile(self, name: str, text: str, arch: str, defines: Mapping[str, int]) -> Cubin:
        """Compile; raises CompileFailed with the log."""
        number = arch.removeprefix("sm_")
        with tempfile.TemporaryDirectory() as folder:
            source, out = Path(folder, name), Path(folder, "out.cubin")
            source.write_text(text)
            command = [self._path, "-cubin", "-std=c++17", "-Xptxas", "-v", "-lineinfo"]
            command += [f"-gencode=arch=compute_{number},code={arch}", "-o", str(out), str(source)]
            command += [f"-D{key}={value}" for key, value in defines.items()]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise CompileFailed(f"{name} for {arch}:\n{done.stderr}{done.stdout}")
            return Cubin(out.read_bytes(), done.stderr + done.stdout)


@functools.cache
def find_compiler() -> Compiler:
    """NVRTC where its library is found, otherwise nvcc; raises StartupError when neither is."""
    if path := find_library("nvrtc"):
        return Nvrtc(path)
    if path := shutil.which("nvcc"):
        return Nvcc(path)
    raise StartupError(
        "no CUDA compiler: install the extra cuda13 or cuda12 (they bring NVRTC), "
        "or point --kernels at a pack made by `ninfer kernels build`"
    )


def default_cache() -> Path:
    """Where compiled kernels are kept: $NINFER_CACHE, else the user's cache directory."""
    root = os.environ.get("NINFER_CACHE") or os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "ninfer" / "kernels"


def cached(source: Source, arch: str, defines: Mapping[str, int], cache: Path | None) -> Cubin:
    """Compile a source, or read the cubin that an earlier run left in ``cache`` (None: do not cache)."""
    compiler = find_compiler()
    if cache is None:
        return compiler.compile(source.name, source.text, arch, defines)
    words = [
        source.digest,
        arch,
        compiler.version,
        *OPTIONS,
        *(f"{k}={v}" for k, v in sorted(defines.items())),
    ]
    key = hashlib.sha256(" ".join(words).encode()).hexdigest()[:32]
    place = cache / f"{source.name.removesuffix('.cu')}-{arch}-{key}.cubin"
    try:
        return Cubin(place.read_bytes())
    except OSError:
        made = compiler.compile(source.name, source.text, arch, defines)
    with suppress(OSError):  # a cache that cannot be kept costs time, nothing else
        store(place, made.code)
    return made


def store(place: Path, data: bytes) -> None:
    """Write a file so that a reader sees all of it or none."""
    place.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=place.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            os.fchmod(file.fileno(), 0o644)
        os.replace(temporary, place)
    except OSError:
        Path(temporary).unlink(missing_ok=True)
        raise
