"""Threads: one core stays free, the operator's word stands, no thread keeps the interpreter long."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

from ninfer.runtime.threads import MOST, TURN, VARIABLE, settle_blas_threads, shorten_turns


@pytest.fixture
def python_turns() -> Iterator[float]:
    own = sys.getswitchinterval()
    sys.setswitchinterval(0.005)  # what an interpreter starts with, whatever ran here before
    yield 0.005
    sys.setswitchinterval(own)


def test_a_serving_process_gives_way_ten_times_sooner(python_turns: float) -> None:
    shorten_turns()
    assert sys.getswitchinterval() == pytest.approx(TURN) and python_turns / 10 >= TURN


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (2, 1), (8, 7), (128, MOST)])
def test_one_core_is_left_to_the_event_loop(
    monkeypatch: pytest.MonkeyPatch, cores: int, threads: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))
    monkeypatch.delenv(VARIABLE)
    assert settle_blas_threads() == threads
    assert os.environ[VARIABLE] == str(threads)


def test_a_value_from_the_environment_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "3")
    assert settle_blas_threads(5) == 3


def test_a_wish_is_granted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE)
    assert settle_blas_threads(5) == 5
    monkeypatch.delenv(VARIABLE)
