"""Operational records: one line each, filtered by level, nothing of a terminal in a pipe."""

from __future__ import annotations

import io
import re

import pytest

from ninfer.observe.records import LEVELS, Records, count, rate, seconds, size

STAMP = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} [A-Z]+ .*\n$")


def written(level: str, terminal: bool = False) -> tuple[Records, io.StringIO]:
    stream = io.StringIO()
    return Records(stream, level, lambda: 1_700_000_000.1239, terminal), stream


def test_a_record_is_stamped_to_the_millisecond() -> None:
    records, stream = written("info")
    records.info("ready")
    assert STAMP.match(stream.getvalue())
    assert ".123 INFO ready" in stream.getvalue()


@pytest.mark.parametrize("level", LEVELS)
def test_the_level_filters_everything_below_it(level: str) -> None:
    records, stream = written(level)
    for other in LEVELS[:-1]:
        records.write(other, f"<{other}>")
    shown = [other for other in LEVELS[:-1] if f"<{other}>" in stream.getvalue()]
    assert shown == list(LEVELS[LEVELS.index(level) : -1])


def test_line_ends_inside_a_message_do_not_make_a_second_record() -> None:
    records, stream = written("info")
    records.info("one\ntwo\r\nthree")
    assert stream.getvalue().count("\n") == 1


def test_a_pipe_sees_no_transient_line_and_no_control_sequence() -> None:
    records, stream = written("info")
    records.transient("loading 10%")
    records.info("ready")
    assert "loading" not in stream.getvalue() and "\x1b" not in stream.getvalue()


def test_a_terminal_sees_the_transient_line_erased_by_the_next_record() -> None:
    records, stream = written("info", terminal=True)
    records.transient("loading 10%")
    records.info("ready")
    assert stream.getvalue().startswith("loading 10%\r\x1b[2K")


def test_a_broken_stderr_ends_the_log_and_nothing_else() -> None:
    class Broken(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError("gone")

    records = Records(Broken(), "info", lambda: 0.0)
    records.info("a")
    assert records.level == "off"


def test_units_are_readable() -> None:
    assert (count(1234567), seconds(0.0123), seconds(75.0)) == ("1,234,567", "12.3 ms", "75.00 s")
    assert (size(512), size(3 << 20), rate(10, 0)) == ("512 B", "3.0 MiB", "0.0 tok/s")
