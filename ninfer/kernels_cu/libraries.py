"""Where CUDA's shared libraries and headers lie: wheels, a toolkit, or the loader's own path.

Promises to open nothing; it only names files.  The one thing a reader would get wrong: wheels win over an
installed toolkit, and headers and libraries may come from different places.
"""

from __future__ import annotations

import ctypes.util
import functools
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path


def _roots() -> Iterator[Path]:
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        yield from sorted(Path(folder).iterdir(), reverse=True)
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if variable in os.environ:
            yield Path(os.environ[variable])
    yield Path("/usr/local/cuda")


@functools.cache
def find_library(stem: str) -> str | None:
    """Path (or loader name) of ``lib<stem>.so.*``, newest first; None when there is none."""
    for root in _roots():
        for folder in (root / "lib", root / "lib64"):
            found = sorted(path for path in folder.glob(f"lib{stem}.so.*") if ".alt." not in path.name)
            if found:
                return str(found[-1])
    return ctypes.util.find_library(stem)


@functools.cache
def find_headers() -> tuple[str, ...]:
    """Folders that hold ``cuda_bf16.h`` and its kin, best first."""
    return tuple(
        str(root / "include") for root in _roots() if (root / "include" / "cuda_bf16.h").is_file()
    )[:1]
