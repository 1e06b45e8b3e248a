"""The machine-readable request log: one JSON object a line, schema 24, append mode.

Owns the file and the base members of every event; ``docs/request-log.schema.json`` describes them all.
Promises that an event is one write of one whole line, that no write ever waits for a reader, and that a
full disk costs events, never the server: the operator hears of it once, and once when it is over.

The one thing a reader would get wrong: a line that was cut short stays in the file; what follows it
begins on a line of its own, so a reader skips at most the one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import attrs

from ninfer.faults import StartupError

ARTIFACT_TYPE = "ninfer_serve_request_log"
SCHEMA_VERSION = 24
_MODE = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK


@contextmanager
def opened_log(path: Path, artifact: Path) -> Iterator[LogFile]:
    """Open the log for appending.  Raises ``StartupError`` naming what is wrong with the path."""
    if not path.parent.is_dir():
        raise StartupError(f"--request-log-jsonl {path}: its folder does not exist; create it first")
    if path.exists() and artifact.exists() and os.path.samefile(path, artifact):
        raise StartupError(f"--request-log-jsonl {path}: this is the model artifact; choose another file")
    try:
        torn = _ends_inside_a_line(path)
        number = os.open(path, _MODE, 0o640)
    except OSError as problem:
        raise StartupError(f"--request-log-jsonl {path}: cannot be opened ({problem.strerror})") from None
    try:
        yield LogFile(number, torn)
    finally:
        os.close(number)


@attrs.define(eq=False)
class LogFile:
    """An open file; ``torn`` says that it ends inside a line."""

    number: int
    torn: bool = False

    def append(self, line: bytes) -> None:
        """Write one whole line.  Raises ``OSError``; what was written until then stays."""
        data = b"\n" + line if self.torn else line
        while data:
            data = data[os.write(self.number, data) :]
            self.torn = bool(data)


def _ends_inside_a_line(path: Path) -> bool:
    if not path.is_file() or not path.stat().st_size:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


class Sink(Protocol):
    """Where lines go."""

    def append(self, line: bytes) -> None:
        """Write one whole line.  Raises ``OSError``."""


@attrs.define(eq=False)
class RequestLog:
    """Writes events; without a ``sink`` every call is a no-op.

    ``now`` gives wall-clock seconds since the epoch; ``instance`` is ``serve-<pid>-<microseconds>``;
    ``warn`` hears of outages.
    """

    sink: Sink | None
    instance: str
    now: Callable[[], float]
    warn: Callable[[str], None]
    lost: int = 0  # events of the present outage

    def event(self, name: str, members: Mapping[str, object]) -> None:
        """Append one event."""
        if self.sink is None:
            return
        record = {
            "artifact_type": ARTIFACT_TYPE,
            "schema_version": SCHEMA_VERSION,
            "event": name,
            "timestamp_unix_ms": int(self.now() * 1000),
            "server_instance_id": self.instance,
            **members,
        }
        try:
            self.sink.append(json.dumps(record, allow_nan=False).encode() + b"\n")
        except OSError as problem:
            if not self.lost:
                self.warn(f"request log cannot be written, events are being lost | {problem.strerror}")
            self.lost += 1
        else:
            self._recovered()

    def _recovered(self) -> None:
        if self.lost:
            self.warn(f"request log is written again | {self.lost} events were lost")
            self.lost = 0
