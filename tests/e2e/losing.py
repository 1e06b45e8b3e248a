"""A device lost under load: six requests in flight, three of them streams, and what each is told.

The one thing a reader would get wrong: requests that still wait for a lane are in flight, too; the server
has four lanes, so two of the six do.  The program prints ``fault at SECONDS`` (monotonic clock) on stderr.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import attrs

from tests.e2e.server import Live
from tests.e2e.speak import PATHS, ask, asked, get, stream, streamed, together

LANES = 4
SIZES = ("--max-concurrency", str(LANES), "--kv-capacity", "16384")
STORY = "Tell me a long story about everything that you know."
TOLD = "the engine failed while it served this request"
NOISE = re.compile(r"Traceback|Exception ignored|terminate called|Segmentation|core dumped", re.IGNORECASE)


@attrs.define
class Unhealthy:
    """When ``/health`` turned 503, on the monotonic clock."""

    live: Live
    at: float = 0.0

    def watch(self) -> None:
        """Ask every 5 ms until it does."""
        while get(self.live, "/health")[0] == 200:
            threading.Event().wait(0.005)
        self.at = time.monotonic()


def check_loss(live: Live) -> float:
    """Keep four lanes busy until the device is lost; check what everybody is told.

    Returns the seconds from the fault to the first 503 of ``/health``, which are less than one.
    """
    health = Unhealthy(live)
    begun = [threading.Event() for _ in PATHS]
    calls: list[Any] = [partial(_stream, live, name, at) for name, at in zip(PATHS, begun, strict=True)]
    calls += [partial(_whole, live, name, begun) for name in PATHS]
    *streams, one, two, three = together([health.watch, *calls])[1:]
    for name, events in zip(PATHS, streams, strict=True):
        assert len(events) > 1, events
        _check_last(name, events[-1])
    for name, (status, answer) in zip(PATHS, (one, two, three), strict=True):
        assert status == 500, (name, answer)
        _check_error(name, answer, TOLD)
    check_lost(live)
    took = health.at - fault_time(live)
    assert 0 <= took < 1.0
    return took


def _stream(live: Live, dialect: str, begun: threading.Event) -> list[Any]:
    def noting() -> Iterator[Any]:
        for event in streamed(live, dialect, asked(dialect, STORY, 4000)):
            begun.set()
            yield event

    return list(noting())


def _whole(live: Live, dialect: str, begun: list[threading.Event]) -> tuple[int, Any]:
    for event in begun:
        assert event.wait(30)
    return ask(live, dialect, asked(dialect, STORY, 4000))


def _check_last(dialect: str, event: Any) -> None:
    """The last event of a stream that was cut by the loss."""
    if dialect == "responses":
        assert event["type"] == "response.failed" and event["response"]["status"] == "failed"
        assert event["response"]["error"]["code"] == "engine_failed"
    else:
        _check_error(dialect, event, TOLD)


def _check_error(dialect: str, answer: Any, message: str) -> None:
    error = answer["error"]
    assert error["message"] == message, answer
    if dialect == "messages":
        assert (answer["type"], error["type"]) == ("error", "api_error")
    else:
        assert error["type"] == "server_error" and error["code"].startswith("engine_")


def check_lost(live: Live) -> None:
    """A server whose device is lost says so and refuses newcomers at once."""
    assert get(live, "/health") == (503, b'{"status": "unavailable"}')
    assert b"ninfer_engine_ready 0.0" in get(live, "/metrics")[1]
    begun = time.monotonic()
    for name in PATHS:
        status, answer = ask(live, name, asked(name, STORY))
        assert status == 503
        _check_error(name, answer, "the engine is not available")
        (refused,) = stream(live, name, asked(name, STORY))
        assert refused["status"] == 503
    assert time.monotonic() - begun < 2
    assert live.process.poll() is None


def fault_time(live: Live) -> float:
    """When the fault was put in."""
    lines = [line.split()[-1] for line in live.log if line.startswith("fault at ")]
    return float(lines[0])


def check_log(live: Live, cause: str) -> None:
    """One critical record names the cause, and nothing else was spilled; call it after the end."""
    text = "".join(live.log)
    (critical,) = [line for line in live.log if "CRITICAL" in line]
    assert "engine failed" in critical and re.search(cause, critical), critical
    assert not NOISE.search(text), text
