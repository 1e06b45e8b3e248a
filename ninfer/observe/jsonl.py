"""The machine-readable request log: one JSON object a line, schema 24, append mode.

Owns the file and the base members of every event.  Promises that each event is written and flushed
whole, and that a full disk stops the log, not the server: the first failure is reported once.

The one thing a reader would get wrong: ids and token counts are integers of any size and stay exact.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TextIO

import attrs

from ninfer.faults import StartupError

ARTIFACT_TYPE = "ninfer_serve_request_log"
SCHEMA_VERSION = 24


def open_log(path: Path, artifact: Path) -> TextIO:
    """Open the log for appending.  Raises ``StartupError`` naming what is wrong with the path."""
    if not path.parent.is_dir():
        raise StartupError(f"--request-log-jsonl {path}: its folder does not exist; create it first")
    if path.exists() and os.path.samefile(path, artifact):
        raise StartupError(f"--request-log-jsonl {path}: this is the model artifact; choose another file")
    try:
        return path.open("a", encoding="utf-8")
    except OSError as problem:
        raise StartupError(f"--request-log-jsonl {path}: cannot be opened ({problem.strerror})") from None


@attrs.define(eq=False)
class RequestLog:
    """Writes events; ``None`` as stream makes every call a no-op.

    ``now`` gives wall-clock seconds since the epoch; ``instance`` is ``serve-<pid>-<microseconds>``.
    """

    stream: TextIO | None
    instance: str
    now: Callable[[], float]
    on_failure: Callable[[str], None]

    @property
    def enabled(self) -> bool:
        """Whether events are being written."""
        return self.stream is not None

    def event(self, name: str, members: Mapping[str, object]) -> None:
        """Append one event and flush it."""
        if self.stream is None:
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
            self.stream.write(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n")
            self.stream.flush()
        except OSError as problem:
            self.stream = None
            self.on_failure(f"request log stopped: {problem.strerror}")

    def __enter__(self) -> RequestLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        if self.stream is not None:
            self.stream.close()
            self.stream = None
