"""Hostile media as kinds: right code, bounded memory, no stall; measured in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.media.hostile import write_cases

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_thousands_of_hostile_files_get_the_right_code_and_cost_little(tmp_path: Path) -> None:
    write_cases(tmp_path / "cases")
    command = [sys.executable, "-W", "error", "-m", "tests.media.hostile", str(tmp_path / "cases")]
    run = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT, timeout=110)
    assert run.returncode == 0 and not run.stderr, run.stderr[-4000:]
    told = json.loads(run.stdout)
    assert not told["wrong"]
    assert told["files"] >= 3000
    assert set(told["codes"]) == {"fine", "invalid_media", "media_budget_exceeded"}
    assert told["grown"] <= 64 << 20, told["grown"]
    assert told["stall"] <= 0.05, told["stall"]
