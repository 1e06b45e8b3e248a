"""Paths in a conversation file become data URIs; what is no path or no part is left alone."""

from __future__ import annotations

import base64
import copy
import json
import sys
from pathlib import Path
from subprocess import run
from typing import Any

import pytest

from ninfer.faults import StartupError
from ninfer.media.local import inline_media

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "fixtures" / "examples"


def message(*parts: Any) -> list[Any]:
    return [{"role": "user", "content": list(parts)}]


def test_paths_become_the_bytes_of_their_files(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"picture")
    uri = "data:;base64," + base64.b64encode(b"picture").decode()
    for source in ("a.png", str(tmp_path / "a.png"), "../" + tmp_path.name + "/a.png"):
        messages = message(
            {"type": "image_url", "image_url": {"url": source}}, {"type": "video_url", "video_url": source}
        )
        inline_media(messages, tmp_path, 100)
        first, second = messages[0]["content"]
        assert first["image_url"]["url"] == second["video_url"] == uri


@pytest.mark.parametrize(
    "messages",
    [
        *(None, 5, "text", {}, [5], [{}], [{"content": "a.png"}], [{"content": [5, "a.png", None]}]),
        *(message({"image_url": 5}), message({"image_url": {"url": 5}}), message({"text": "a.png"})),
        *(
            message({"image_url": {"url": url}})
            for url in ("http://a/b", "HTTPS://a/b", "data:;base64,AAAA")
        ),
    ],
)
def test_everything_else_is_left_alone(messages: Any, tmp_path: Path) -> None:
    before = copy.deepcopy(messages)
    inline_media(messages, tmp_path, 100)
    assert messages == before


@pytest.mark.parametrize(
    "source", ["nothing.png", ".", "", "large.png", "a\0b", "file:///etc/hosts", "x" * 5000]
)
def test_a_file_that_cannot_be_taken_is_named(source: str, tmp_path: Path) -> None:
    (tmp_path / "large.png").write_bytes(bytes(101))
    with pytest.raises(StartupError, match=r"cannot be read|larger than 100 bytes"):
        inline_media(message({"image_url": {"url": source}}), tmp_path, 100)


def ask(tmp_path: Path, source: str, *options: str) -> Any:
    parts = [
        {"type": "image_url", "image_url": {"url": source}},
        {"type": "text", "text": "Describe the image."},
    ]
    (tmp_path / "talk.json").write_text(json.dumps(message(*parts)))
    model = str(ROOT / "fixtures" / "tiny-qwen3_5.ninfer")
    command = [sys.executable, "-m", "ninfer", "run", model, "--messages", str(tmp_path / "talk.json")]
    return run([*command, "--greedy", *options], capture_output=True, text=True, cwd=ROOT, check=False)


@pytest.mark.slow
def test_the_command_line_sees_a_local_picture(tmp_path: Path) -> None:
    (tmp_path / "b.png").write_bytes((EXAMPLES / "image_b.png").read_bytes())
    seen = ask(tmp_path, "b.png", "--vision")
    assert seen.stdout == "The image shows a blue square and a green triangle.\n", seen.stderr
    blind = ask(tmp_path, "b.png")
    assert blind.returncode == 1 and "messages[0].content[0]" in blind.stderr and not blind.stdout
    lost = ask(tmp_path, "c.png", "--vision")
    assert lost.returncode == 2 and "c.png" in lost.stderr
