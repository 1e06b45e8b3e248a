"""Every kernel compiles, in every variant and for every architecture; none spills more than it declares.

Needs a compiler, not a GPU: NVRTC from the ``dev`` extra, or an nvcc on the path.  What was compiled before
is remembered by the hash of its text, so only changed sources cost time.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from pathlib import Path

import pytest

from ninfer.faults import StartupError
from ninfer.kernels_cu import build, source

CASES = [(name, arch) for name in source.names() for arch in source.load(name).architectures]


def usage(name: str, arch: str, defines: dict[str, int]) -> dict[str, tuple[int, int]]:
    """(registers, spilled bytes) of every kernel of one variant."""
    loaded, compiler = source.load(name), build.find_compiler()
    key = f"{loaded.digest} {arch} {sorted(defines.items())} {compiler.version} {build.OPTIONS}"
    place = Path(tempfile.gettempdir(), "ninfer-compiled", hashlib.sha256(key.encode()).hexdigest()[:24])
    if not place.is_file():
        found = compiler.compile(name, loaded.text, arch, defines).usage
        build.store(place, json.dumps({k: (u.registers, u.spill_bytes) for k, u in found.items()}).encode())
    return {k: (registers, spilled) for k, (registers, spilled) in json.loads(place.read_bytes()).items()}


@pytest.fixture(scope="module", autouse=True)
def compiler() -> None:
    try:
        build.find_compiler()
    except StartupError:
        pytest.skip("no CUDA compiler on this machine")


@pytest.mark.slow
@pytest.mark.parametrize("name, arch", CASES)
def test_kernels_compile_without_unplanned_spills(name: str, arch: str) -> None:
    loaded = source.load(name)
    for variant in loaded.variants:
        found = usage(name, arch, dict(variant))
        assert set(found) == set(loaded.signatures)
        spilled = {kernel: spills for kernel, (_, spills) in found.items() if spills}
        excess = {k: v for k, v in spilled.items() if v > loaded.spill_allowance.get(k, 0)}
        assert not excess, f"{name} for {arch} {dict(variant)}"


def test_no_allowance_is_left_over() -> None:
    for name in source.names():
        loaded = source.load(name)
        assert set(loaded.spill_allowance) <= set(loaded.signatures), name
