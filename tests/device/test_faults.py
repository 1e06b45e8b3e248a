"""A card lost while it serves: what clients, the operator and the exit code say."""

from __future__ import annotations

import re
import subprocess
import sys
import time

import pytest

from tests.device.serving import card_options, on_card
from tests.e2e.losing import LANES, SIZES, check_log, check_loss
from tests.e2e.server import MODEL, ROOT
from tests.e2e.speak import ask, asked

pytestmark = pytest.mark.cuda
FAULTY = "tests.device.faulty"
CASES = {
    "refused": ("refused", ("--no-cuda-graph",), "cuLaunchKernelEx: CUDA error 1"),
    "poison": ("poison", (), "illegal|CUDA error 700"),
    "poison-eager": ("poison", ("--no-cuda-graph",), "illegal|CUDA error 700"),
    "poison-drafts": ("poison", ("--spec", "mtp", "--draft-tokens", "3"), "illegal|CUDA error 700"),
}


@pytest.fixture(autouse=True)
def late(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault comes in the middle of decode, with all lanes busy."""
    monkeypatch.setenv("FAIL_AFTER", "10")
    monkeypatch.setenv("FAIL_ROWS", str(LANES))


@pytest.mark.parametrize("case", CASES)
def test_a_fault_in_decode_is_told_to_everyone_and_sigterm_ends_with_3(
    case: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fault, options, cause = CASES[case]
    monkeypatch.setenv("FAULT", fault)
    with on_card(*SIZES, *options, module=FAULTY, code=3) as live:
        took = check_loss(live)
        live.process.terminate()
        begun = time.monotonic()
        assert live.process.wait(timeout=20) == 3
        ended = time.monotonic() - begun
    check_log(live, cause)
    with capsys.disabled():
        print(f"\n{case}: unhealthy after {took * 1e3:.0f} ms, ended {ended * 1e3:.0f} ms after SIGTERM")
    assert ended < 5


@pytest.mark.parametrize("fault", ["refused", "poison"])
def test_with_exit_on_engine_failure_the_process_ends_by_itself(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAULT", fault)
    monkeypatch.setenv("FAIL_ROWS", "1")
    eager = ("--no-cuda-graph",) if fault == "refused" else ()
    with on_card("--exit-on-engine-failure", *eager, module=FAULTY, code=3) as live:
        status, answer = ask(live, "chat", asked("chat", "What is 12 + 30?"))
        assert (status, answer["error"]["code"]) == (500, "engine_failed")
        assert live.process.wait(timeout=10) == 3
    check_log(live, "CUDA error|illegal")


@pytest.mark.parametrize("left", [100 << 20, 2 << 30], ids=["no context", "no room"])
def test_a_full_card_is_told_in_one_sentence(left: int) -> None:
    import cupy

    held = cupy.cuda.Memory(cupy.cuda.runtime.memGetInfo()[0] - left)
    try:
        wide = ("--max-concurrency", "8", "--kv-capacity", "65536", "--prefill-chunk", "8192")
        command = [sys.executable, "-m", "ninfer", "serve", str(MODEL), "--port", "0"]
        done = subprocess.run(
            [*command, *card_options(), *wide, "--device-state-slots", "4096"],
            capture_output=True, text=True, timeout=60, cwd=ROOT, check=False,
        )  # fmt: skip
    finally:
        del held
    assert done.returncode == 2, done.stderr
    said = [line for line in done.stderr.splitlines() if line.startswith("ninfer: ")]
    assert len(said) == 1 and re.search("out of memory|lacks|has no [0-9.]+ GiB", said[0]), done.stderr
    assert "Traceback" not in done.stderr
