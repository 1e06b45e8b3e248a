"""The request log: whole lines, exact integers, outages that cost events and nothing else."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from ninfer.faults import StartupError
from ninfer.observe.jsonl import LogFile, RequestLog, opened_log
from tests.observe.schema import complaints, document


def log_to(file: LogFile) -> tuple[RequestLog, list[str]]:
    heard: list[str] = []
    return RequestLog(file, "serve-1-2", lambda: 1.5, heard.append), heard


def test_an_event_is_one_line_of_ascii_with_the_base_members(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with opened_log(path, tmp_path / "model") as file:
        log, _ = log_to(file)
        log.event("x", {"n": 2**53 + 1, "text": "\u2028é\udc80"})
    raw = path.read_bytes()
    assert raw.isascii() and raw.count(b"\n") == 1
    assert json.loads(raw) == {
        "artifact_type": "ninfer_serve_request_log",
        "schema_version": 24,
        "event": "x",
        "timestamp_unix_ms": 1500,
        "server_instance_id": "serve-1-2",
        "n": 2**53 + 1,
        "text": "\u2028é\udc80",
    }


def test_a_second_server_appends_on_a_line_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b'{"event": "cut sho')
    with opened_log(path, tmp_path / "model") as file:
        log_to(file)[0].event("x", {})
        log_to(file)[0].event("y", {})
    first, *rest = path.read_text().splitlines()
    assert first == '{"event": "cut sho'
    assert [json.loads(line)["event"] for line in rest] == ["x", "y"]


def test_what_a_full_disk_cut_short_does_not_spoil_the_next_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, room = tmp_path / "log", [10]

    def write(number: int, data: bytes) -> int:
        if not room[0]:
            raise OSError(28, "No space left on device")
        taken = real(number, data[: room[0]])
        room[0] -= taken
        return taken

    real = os.write
    with opened_log(path, tmp_path / "model") as file:
        log, heard = log_to(file)
        monkeypatch.setattr(os, "write", write)
        for _ in range(3):
            log.event("lost", {})
        room[0] = 1 << 20
        log.event("kept", {})
    torn, kept = path.read_text().splitlines()
    assert len(torn) == 10 and json.loads(kept)["event"] == "kept"
    assert len(heard) == 2 and "No space left" in heard[0] and "3 events" in heard[1]


def test_a_pipe_that_nobody_reads_holds_nobody_up(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(StartupError, match="cannot be opened"), opened_log(path, tmp_path / "model"):
        pass
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with opened_log(path, tmp_path / "model") as file:
            log, heard = log_to(file)
            for _ in range(100):
                log.event("x", {"filler": "y" * 4096})
        assert len(heard) == 1 and log.lost
    finally:
        os.close(reader)


def test_without_a_file_nothing_happens() -> None:
    RequestLog(None, "serve-1-2", lambda: 0.0, lambda text: None).event("x", {})


def test_the_schema_is_a_schema_and_refuses_what_it_does_not_describe() -> None:
    Draft202012Validator.check_schema(document())
    event = {
        "artifact_type": "ninfer_serve_request_log",
        "schema_version": 24,
        "event": "request_error",
        "timestamp_unix_ms": 1,
        "server_instance_id": "serve-1-2",
    }
    found = complaints({**event, "prompt": "x"})
    assert any("'request' is a required property" in text for text in found)
    assert any("'prompt'" in text for text in found)
    assert complaints({**event, "event": "other"}) == ["unknown event 'other'"]
