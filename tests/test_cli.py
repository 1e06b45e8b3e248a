"""The command line around the commands."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ARTIFACT = Path(__file__).resolve().parents[1] / "fixtures" / "tiny-qwen3_5.ninfer"


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ["inspect", str(ARTIFACT)],
        ["inspect", str(ARTIFACT), "--json"],
        ["run", str(ARTIFACT), "--prompt", "hi", "--greedy", "--max-new", "3", "--no-thinking"],
    ],
)
def test_a_reader_that_leaves_ends_a_command_without_a_word(command: list[str]) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "ninfer", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        said = process.stderr.read()
    assert b"Traceback" not in said and b"Exception" not in said
    assert process.returncode == 141
