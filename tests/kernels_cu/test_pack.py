"""The kernel library: checked arguments, loading from packs and caches, with a driver made of paper."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest

from ninfer.faults import StartupError
from ninfer.kernels_cu import build, pack, source
from ninfer.kernels_cu.arrays import DeviceArray
from ninfer.kernels_cu.pack import Kernel, Library
from ninfer.kernels_cu.source import Parameter

PARAMETERS = (
    Parameter("x", "bf16*", "bf16"),
    Parameter("p", "any*", "void"),
    Parameter("n", "i32", "int"),
    Parameter("eps", "f32", "float"),
    Parameter("many", "struct", "Many"),
)
X = DeviceArray(4096, (2, 3), "bf16")


@attrs.define
class Paper:
    """Remembers what it was asked."""

    launched: list[Any] = attrs.field(factory=list)
    allowed: list[int] = attrs.field(factory=list)

    def load(self, code: bytes) -> bytes:
        return code

    def function(self, module: Any, name: str) -> Any:
        return (module, name)

    def allow_shared(self, function: Any, nbytes: int) -> None:
        self.allowed.append(nbytes)

    def launch(
        self,
        function: Any,
        grid: Any,
        block: int,
        shared: int,
        stream: int,
        arguments: Any,
        dependent: bool,
    ) -> None:
        self.launched.append((grid, block, shared, stream, dependent, list(arguments)))


def make(arch: str = "sm_90") -> tuple[Paper, Kernel]:
    paper = Paper()
    library = Library(paper, arch, stream=7)
    return paper, Kernel("k", PARAMETERS, None, library)


def test_arguments_reach_the_driver_in_c_types() -> None:
    paper, kernel = make()
    kernel.launch((2, 3), 64, X, None, -5, 0.5, b"12345678", dependent=True)
    ((grid, block, shared, stream, dependent, cells),) = paper.launched
    assert (grid, block, shared, stream, dependent) == ((2, 3, 1), 64, 0, 7, True)
    assert ctypes.c_uint64.from_address(cells[0]).value == 4096
    assert ctypes.c_uint64.from_address(cells[1]).value == 0
    assert ctypes.c_int32.from_address(cells[2]).value == -5
    assert ctypes.c_float.from_address(cells[3]).value == 0.5
    assert ctypes.string_at(cells[4], 8) == b"12345678"


@pytest.mark.parametrize(
    "arch, dependent",
    [("sm_80", False), ("sm_86", False), ("sm_89", False), ("sm_90", True), ("sm_120", True)],
)
def test_only_kernels_that_wait_are_launched_early(arch: str, dependent: bool) -> None:
    paper, kernel = make(arch)
    kernel.launch(1, 64, X, None, -5, 0.5, b"12345678", dependent=True)
    kernel.launch(1, 64, X, None, -5, 0.5, b"12345678")
    assert [launch[4] for launch in paper.launched] == [dependent, False]


def test_empty_grid_launches_nothing() -> None:
    paper, kernel = make()
    kernel.launch((0, 3), 64, X, None, 1, 1.0, b"")
    assert not paper.launched and kernel.library.launches == 0


@pytest.mark.parametrize(
    "wrong",
    [
        (X.view("f16"), None, 1, 1.0, b""),
        (X, 5, 1, 1.0, b""),
        (X, None, 1.5, 1.0, b""),
        (X, None, 1, "1", b""),
        (X, None, 1, 1.0, 3),
        (X, None, 1, 1.0),
    ],
)
def test_wrong_arguments_are_refused_by_name(wrong: Any) -> None:
    _, kernel = make()
    with pytest.raises(TypeError, match="k"):
        kernel.launch(1, 32, *wrong)


def test_large_shared_memory_is_asked_for_once() -> None:
    paper, kernel = make()
    for shared in (1024, 65536, 65536, 98304):
        kernel.launch(1, 32, X, None, 1, 1.0, b"", shared=shared)
    assert paper.allowed == [65536, 98304]


def test_arrays_slice_and_reshape_without_moving() -> None:
    part = X.rows(1, 2)
    assert (part.ptr, part.shape, part.nbytes) == (4096 + 6, (1, 3), 6)
    assert X.reshape(6).shape == (6,)
    with pytest.raises(ValueError):
        X.reshape(7)
    with pytest.raises(ValueError):
        X.rows(1, 3)


class Counting:
    """A compiler that writes the text back."""

    version = "counting"

    def __init__(self) -> None:
        self.runs = 0

    def compile(self, name: str, text: str, arch: str, defines: Mapping[str, int]) -> build.Cubin:
        self.runs += 1
        return build.Cubin(f"{name} {arch} {dict(defines)}".encode(), "log")


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Counting:
    made = Counting()
    monkeypatch.setattr(build, "find_compiler", lambda: made)
    return made


PLAIN = source.Source("plain.cu", "text", {}, ((), (("R", 8),)), ("sm_80", "sm_90"), {})


def test_cache_compiles_once_for_each_text_architecture_and_variant(
    compiler: Counting, tmp_path: Path
) -> None:
    for _ in range(2):
        for arch in ("sm_80", "sm_90"):
            for defines in ({}, {"R": 8}):
                cubin = build.cached(PLAIN, arch, defines, tmp_path)
                assert cubin.code == f"plain.cu {arch} {defines}".encode()
    build.cached(attrs.evolve(PLAIN, text="other"), "sm_80", {}, tmp_path)
    assert compiler.runs == 5


@pytest.mark.parametrize("place", ["file/below", "x" * 300, "file"])
def test_a_cache_that_can_be_neither_read_nor_written_costs_time_alone(
    compiler: Counting, tmp_path: Path, place: str
) -> None:
    (tmp_path / "file").touch()
    for _ in range(2):
        assert build.cached(PLAIN, "sm_80", {}, tmp_path / place).code == b"plain.cu sm_80 {}"
    assert compiler.runs == 2


def test_a_file_that_cannot_be_put_in_place_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "taken" / "inside").mkdir(parents=True)
    with pytest.raises(OSError):
        build.store(tmp_path / "taken", b"data")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_pack_round_trip_needs_no_compiler(
    compiler: Counting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pack, "names", lambda: ("plain.cu",))
    monkeypatch.setattr(pack, "load", lambda name: attrs.evolve(PLAIN, signatures={"k": PARAMETERS}))
    entries = pack.write_pack(tmp_path, "sm_90")
    assert entries == ["plain-sm_90-R8.cubin", "plain-sm_90.cubin"]
    compiler.runs = 0
    library = Library(Paper(), "sm_90", pack=tmp_path)
    assert library.get("plain.cu", "k", R=8).function == (b"plain.cu sm_90 {'R': 8}", "k")
    assert compiler.runs == 0


def test_a_folder_that_cannot_be_written_is_told_before_anything_is_compiled(
    compiler: Counting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pack, "names", lambda: ("plain.cu",))
    (tmp_path / "file").write_text("taken")
    for folder in (tmp_path / "file", tmp_path / "file" / "inside"):
        with pytest.raises(StartupError, match="cannot be written"):
            pack.write_pack(folder, "sm_90")
    assert compiler.runs == 0


@pytest.mark.parametrize("damage", ["missing", "stale", "broken"])
def test_unusable_pack_says_how_to_make_one(
    damage: str, compiler: Counting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pack, "names", lambda: ("plain.cu",))
    monkeypatch.setattr(pack, "load", lambda name: attrs.evolve(PLAIN, signatures={"k": PARAMETERS}))
    pack.write_pack(tmp_path, "sm_90")
    manifest = tmp_path / "manifest.json"
    if damage == "missing":
        manifest.unlink()
    elif damage == "stale":
        entries = {"plain-sm_90.cubin": "0"}
        manifest.write_text(json.dumps({"arch": "sm_90", "entries": entries}))
    else:
        manifest.write_text("[]")
    with pytest.raises(StartupError, match="ninfer kernels build"):
        Library(Paper(), "sm_90", pack=tmp_path).get("plain.cu", "k")


def test_unsupported_card_is_a_startup_error(compiler: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack, "load", lambda name: attrs.evolve(PLAIN, signatures={"k": PARAMETERS}))
    with pytest.raises(StartupError, match="sm_75"):
        Library(Paper(), "sm_75", cache=None).get("plain.cu", "k")


def test_usage_is_read_from_the_assembler_log() -> None:
    log = """ptxas info    : Compiling entry function 'k' for 'sm_90'
ptxas info    : Function properties for k
    0 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 1024 bytes smem
ptxas info    : Compiling entry function 'm' for 'sm_90'
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 16 registers, used 0 barriers"""
    assert build.parse_usage(log) == {"k": build.Usage(40, 12, 1024), "m": build.Usage(16, 0)}
