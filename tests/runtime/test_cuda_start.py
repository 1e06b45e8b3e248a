"""Starts on a card that cannot be: one sentence and exit code 2.  A made-up CuPy stands in for the card."""

from __future__ import annotations

import shutil
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from ninfer.cli import main
from ninfer.faults import StartupError
from ninfer.kernels_cu import pack
from ninfer.kernels_cu.build import CompileFailed
from ninfer.kernels_cu.driver import DriverError
from ninfer.runtime import cuda_card, cuda_open
from ninfer.runtime.cuda_card import open_card, starting
from tests.kernels_cu.test_pack import Paper

MODEL = Path(__file__).resolve().parents[2] / "fixtures" / "tiny-qwen3_5.ninfer"


class CUDARuntimeError(RuntimeError):
    """As CuPy's: a status and its name."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status


@attrs.define
class Host:
    """What CuPy finds: how many cards, of which capability, and what it cannot do."""

    cards: int = 1
    capability: tuple[int, int] = (9, 0)
    driver: CUDARuntimeError | None = None
    stream: CUDARuntimeError | None = None

    def count(self) -> int:
        """Count the cards."""
        if self.driver:
            raise self.driver
        return self.cards

    def open_stream(self, **options: Any) -> Any:
        """Make a stream, which makes the context."""
        if self.stream:
            raise self.stream
        return types.SimpleNamespace(use=lambda: None, ptr=0)


def plugged(monkeypatch: pytest.MonkeyPatch, host: Host) -> None:
    """Put a made-up CuPy in place."""
    major, minor = host.capability
    described = {"major": major, "minor": minor, "name": b"Paper GPU", "totalGlobalMem": 1 << 30}
    runtime = types.SimpleNamespace(
        CUDARuntimeError=CUDARuntimeError,
        getDeviceCount=host.count,
        getDeviceProperties=lambda ordinal: described,
        deviceGetAttribute=lambda name, ordinal: 1,
    )
    device = types.SimpleNamespace(use=lambda: None)
    cuda = types.SimpleNamespace(runtime=runtime, Device=lambda ordinal: device, Stream=host.open_stream)
    monkeypatch.setitem(sys.modules, "cupy", types.SimpleNamespace(cuda=cuda))  # type: ignore[arg-type]
    monkeypatch.setattr(cuda_card, "CudaDriver", Paper)


NO_DRIVER = CUDARuntimeError(35, "cudaErrorInsufficientDriver: CUDA driver version is insufficient")
FULL = CUDARuntimeError(2, "cudaErrorMemoryAllocation: out of memory")
TAKEN = CUDARuntimeError(46, "cudaErrorDevicesUnavailable: all CUDA-capable devices are busy")
HOSTS = {
    "no driver": (Host(driver=NO_DRIVER), "no usable CUDA driver .*--backend numpy"),
    "no card": (Host(cards=0), "there is no GPU 0: this host has 0; use --backend numpy"),
    "old": (Host(capability=(7, 5)), r"Paper GPU \(compute capability 7\.5\) is too old"),
    "strange": (Host(capability=(11, 0)), "no kernels for: use --backend numpy"),
    "full": (Host(stream=FULL), "out of memory.*stop what else uses the GPU"),
    "taken": (Host(stream=TAKEN), "busy.*another process has the GPU to itself"),
}


def refusal(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    """Start a server on the card; demand exit code 2 and one sentence, and return it."""
    argv = ["serve", str(MODEL), "--port", "0", "--log-level", "off", "--backend", "cuda", *options]
    assert main(argv) == 2
    error = capsys.readouterr().err
    assert error.startswith("ninfer: ") and len(error.splitlines()) == 1, error
    return error


@pytest.mark.parametrize("case", HOSTS)
def test_a_card_that_cannot_be_used_is_told_in_one_sentence(
    case: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    host, sentence = HOSTS[case]
    plugged(monkeypatch, host)
    with pytest.raises(StartupError, match=sentence) as problem:
        open_card()
    assert refusal(capsys) == f"ninfer: {problem.value}\n"


def test_without_cupy_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)  # type: ignore[arg-type]
    assert "pip install -e '.[cuda13]'" in refusal(capsys)


def removed(folder: Path) -> None:
    next(folder.glob("*.cubin")).unlink()


def outdated(folder: Path) -> None:
    manifest = folder / "manifest.json"
    manifest.write_text(manifest.read_text().replace('": "', '": "0'))


def emptied(folder: Path) -> None:
    shutil.rmtree(folder)


@pytest.mark.parametrize("damage", [removed, outdated, emptied])
def test_a_pack_of_another_version_is_refused_before_anything_is_loaded(
    damage: Callable[[Path], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "pack"
    monkeypatch.setattr(pack.build, "cached", lambda *words: types.SimpleNamespace(code=b"code"))
    pack.write_pack(folder, "sm_90")
    pack.check_pack(folder, "sm_90")
    plugged(monkeypatch, Host())
    assert open_card(pack=folder).arch == "sm_90"
    with pytest.raises(StartupError, match="--arch sm_80"):
        pack.check_pack(folder, "sm_80")
    damage(folder)
    assert "ninfer kernels build" in refusal(capsys, "--kernels", str(folder))


LATE = {
    "memory": (DriverError("cuModuleLoadData", 2), "cuModuleLoadData.*stop what else uses the GPU"),
    "code": (DriverError("cuModuleLoadData", 209), "build the kernels again"),
    "lost": (DriverError("cuLaunchKernelEx", 700), "the context is lost.*dmesg"),
    "cublas": (DriverError("cublasLtCreate", 2), "cublasLtCreate.*dmesg"),
    "pinned": (CUDARuntimeError(2, "out of memory"), "stop what else uses the GPU"),
    "headers": (CompileFailed("a.cu for sm_90:\nerror: no cuda_bf16.h\nmore"), "no cuda_bf16.h.*headers"),
}


@pytest.mark.parametrize("case", LATE)
def test_what_the_driver_refuses_while_loading_is_told_in_one_sentence(
    case: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    problem, sentence = LATE[case]

    def fail(*words: Any, **options: Any) -> None:
        raise problem

    monkeypatch.setattr(cuda_open, "open_card", fail)
    error = refusal(capsys)
    with pytest.raises(StartupError, match=sentence), starting():
        raise problem
    assert error.startswith(("ninfer: the GPU cannot be used", "ninfer: the kernels do not compile"))


def test_a_bug_is_no_problem_of_the_start() -> None:
    with pytest.raises(RuntimeError, match="our own"), starting():
        raise RuntimeError("our own")
