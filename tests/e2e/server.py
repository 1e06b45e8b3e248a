"""A real server process on a free loopback port, for tests that speak through official clients."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "fixtures" / "tiny-qwen3_5.ninfer"
_SERVING = re.compile(r"serving (\S+) on http://127\.0\.0\.1:(\d+)")


@attrs.define
class Live:
    """A running server: where it listens and what it has logged so far."""

    url: str
    model: str
    process: subprocess.Popen[str]
    seconds: float = 0.0  # from its start to its readiness
    log: list[str] = attrs.field(factory=list)
    reader: threading.Thread | None = None

    def drain(self) -> None:
        """Collect the log until the server ends."""
        assert self.process.stderr is not None
        self.log.extend(self.process.stderr)


@contextmanager
def running(*options: str, model: Path = MODEL, module: str = "ninfer", code: int = 0) -> Iterator[Live]:
    """Start a server, wait until it is ready, stop it with SIGTERM and demand its exit code.

    ``module`` is what is run; a server that has ended by itself is not sent the signal.
    """
    command = [sys.executable, "-m", module, "serve", str(model), "--port", "0", *options]
    env = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env, cwd=ROOT)
    live, begun = Live("", "", process), time.monotonic()
    try:
        _await_ready(live)
        live.seconds = time.monotonic() - begun
        yield live
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == code, "".join(live.log)
    finally:
        process.kill()
        process.wait()
        if live.reader is not None:
            live.reader.join()
        if process.stderr is not None:
            process.stderr.close()


def _await_ready(live: Live) -> None:
    assert live.process.stderr is not None
    for line in live.process.stderr:
        live.log.append(line)
        found = _SERVING.search(line)
        if found:
            live.url, live.model = f"http://127.0.0.1:{found[2]}", found[1]
            live.reader = threading.Thread(target=live.drain, daemon=True)
            live.reader.start()
            return
    raise AssertionError("the server did not start:\n" + "".join(live.log))
