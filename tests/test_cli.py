"""The command line around the commands."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ninfer.cli import main

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


@pytest.mark.parametrize(
    ("argument", "hint"),
    [
        ("--max-concurency", "did you mean --max-concurrency?"),
        ("--kv_capacity=9", "did you mean --kv-capacity?"),
        ("--bogus", "see `ninfer serve --help`"),
        ("second.ninfer", "see `ninfer serve --help`"),
    ],
)
def test_an_unknown_argument_names_the_nearest_option(
    argument: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["serve", "m.ninfer", argument])
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert said == f"ninfer serve: unknown argument {argument}; {hint}\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("written", "complaint"),
    [
        ("[", "is not valid JSON"),
        ('[{"role": "user"}]', "messages[0].content is required"),
        ('{"messages": [], "messages": []}', "messages appears twice"),
        ("5", "must hold an array of messages or an object with them"),
    ],
)
def test_a_file_that_is_no_conversation_is_told_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], written: str, complaint: str
) -> None:
    file = tmp_path / "m.json"
    file.write_text(written)
    assert main(["run", str(ARTIFACT), "--messages", str(file)]) in (1, 2)
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and said.count(complaint) == 1 and "request body" not in said


def test_the_environment_names_the_backend_of_one_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NINFER_BACKEND", "abacus")
    assert main(["run", str(ARTIFACT), "--prompt", "hi"]) == 2
    assert "There is no backend 'abacus'; choose auto, numpy or cuda." in capsys.readouterr().err
    assert main(["run", str(ARTIFACT), "--prompt", "hi", "--max-new", "1", "--backend", "numpy"]) == 0
