"""A card lost while it serves: what clients, the operator and the exit code say."""

from __future__ import annotations

import time

import pytest

from tests.device.serving import on_card
from tests.e2e.losing import LANES, SIZES, check_log, check_loss
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
