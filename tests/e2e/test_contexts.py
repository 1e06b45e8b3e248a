"""Retained contexts over real restarts: same answer, nothing computed twice, damage ignored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ninfer.cli import main
from tests.e2e.server import MODEL, Live, running
from tests.e2e.test_lifecycle import body, post

pytestmark = pytest.mark.slow
QUESTION = "Tell me a long story about a fox, please, and about everybody whom it met on its way home."


def ask(live: Live) -> tuple[str, int]:
    """What it said, and how much of the prompt it knew."""
    status, raw = post(live, body(QUESTION, max_tokens=20))
    answer: Any = json.loads(raw)
    assert status == 200
    message = answer["choices"][0]["message"]
    known: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return message.get("reasoning_content", "") + (message["content"] or ""), known


def test_a_restarted_server_knows_what_it_knew(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "contexts"
    options = ("--context-dir", str(folder), "--max-context", "1024")
    with running(*options) as first:
        text, known = ask(first)
    files = list(folder.glob("*.context"))
    assert known == 0 and files
    assert any(f"INFO {len(files)} files of retained contexts on disk | " in line for line in first.log)
    with running(*options) as second:
        again, known = ask(second)
        assert again == text and known > 20
    for path in folder.glob("*.context"):
        path.write_bytes(path.read_bytes()[:-7] + b"damaged")
    with running(*options) as third:
        assert ask(third) == (text, 0)
    warned = [line for line in third.log if "WARNING" in line and "NVIDIA driver" not in line]
    assert warned and all("is ignored: its checksum does not match" in line for line in warned)
    with running(*options, "--kv-dtype", "int8") as other:
        assert ask(other)[1] == 0
    assert any("another model or format" in line for line in other.log)


def test_two_servers_never_share_a_folder(tmp_path: Path, capsys: Any) -> None:
    with running("--context-dir", str(tmp_path)):
        assert main(["serve", str(MODEL), "--port", "0", "--context-dir", str(tmp_path)]) == 2
    assert "another server uses it" in capsys.readouterr().err


def test_a_folder_that_cannot_be_made_ends_the_start(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "file").write_text("")
    assert main(["serve", str(MODEL), "--port", "0", "--context-dir", str(tmp_path / "file" / "x")]) == 2
    assert "cannot be used" in capsys.readouterr().err
