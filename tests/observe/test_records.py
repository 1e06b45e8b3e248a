"""Operational records: one line each, filtered by level, nothing of a terminal in a pipe."""

from __future__ import annotations

import io
import re

import attrs
import pytest

from ninfer.engine.job import Done, Finish, Summary
from ninfer.observe import lines
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


# The lines of a request

FINISHED = Summary(
    prompt_tokens=1234,
    cached_tokens=617,
    computed_prefill_tokens=617,
    output_tokens=(1,) * 1001,
    path="checkpoint",
    submitted=1.0,
    admitted=1.5,
    arrived=0.5,
    first_token=2.5,
    last_token=4.5,
    ended=4.5,
)


def test_a_done_line_reads_as_documented() -> None:
    line = lines.done(7, "openai_chat_completions", Done(Finish.STOP_TOKEN, None, FINISHED), None, None)
    assert line == (
        "req#7 done | openai_chat_completions | stop_token | prompt 1,234 | output 1,001"
        " | cache 617 (50%, checkpoint) | TTFT 2.00 s | total 4.00 s"
        " | prefill 617.0 tok/s | decode 500.0 tok/s"
    )


def test_a_done_line_without_a_token_has_no_first_token() -> None:
    silent = attrs.evolve(FINISHED, output_tokens=(), first_token=None, last_token=None)
    line = lines.done(7, "openai_chat_completions", Done(Finish.CANCELLED, None, silent), None, None)
    assert "output 0" in line and "TTFT" not in line


def test_a_done_line_adds_what_there_is_to_say() -> None:
    more = attrs.evolve(
        FINISHED,
        drafted=2000,
        accepted=1500,
        model_thinking_tokens=512,
        control_tokens=19,
        preemptions=2,
        paused_seconds=0.25,
    )
    line = lines.done(8, "anthropic_messages", Done(Finish.CANCELLED, None, more), 512, "mtp")
    assert line.startswith("req#8 cancelled during transport | anthropic_messages | cancelled | ")
    assert line.endswith(
        " | mtp accepted 1,500/2,000 (75%) | thinking 512/512 + 19 control | paused 2x for 250.0 ms"
    )


def test_a_request_without_any_output_has_finite_rates() -> None:
    nothing = Done(Finish.CANCELLED, None, Summary())
    assert "decode 0.0 tok/s" in lines.done(1, "p", nothing, None, None)
    assert lines.started(1, "p", 1234, True) == "req#1 started | p | prompt 1,234 | stream"
