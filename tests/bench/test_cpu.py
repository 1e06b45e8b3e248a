"""Rates are counted from what the program was asked for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from ninfer.bench.cpu import Load, Rates, measure
from ninfer.cli import main
from tests.toy import toy_program


def ticking() -> Iterator[float]:
    now = 0.0
    while True:
        yield now
        now += 2.0


def test_rates_are_tokens_over_the_time_between_phases() -> None:
    clock = ticking()
    rates = measure(toy_program(prefill_chunk=16), Load(40, 10, repeats=2), lambda: next(clock))
    assert rates == Rates(20.0, 5.0, 1.0)


def test_drafted_rounds_are_counted() -> None:
    program = toy_program(spec="mtp", draft_tokens=2)
    rates = measure(program, Load(20, 12, draft=2, repeats=1))
    assert 1 <= rates.tokens_a_round <= 3


@pytest.mark.slow
def test_the_command_prints_one_json_object(fixtures: Path, capsys: pytest.CaptureFixture[str]) -> None:
    artifact = fixtures / "tiny-qwen3_5.ninfer"
    if not artifact.exists():
        pytest.skip("no bundled model")
    options = ["--prompt-tokens", "8", "--decode-tokens", "4", "--repeats", "1", "--json"]
    assert main(["bench", "cpu", str(artifact), *options]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["prefill_tokens_per_s"] > 0 and found["decode_tokens_per_s"] > 0
