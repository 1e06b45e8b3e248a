"""Frames and pulse: one event in, one event out; silences are filled on the second."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from ninfer.http.exchange import PeerGone
from ninfer.http.sse import HEARTBEAT, Pulse, frame
from tests.protocols.fakes import parse_sse

Clock = trio.testing.MockClock
NEWLINES = [
    "\n",
    "\r",
    "\r\n",
    "\n\r",
    "\n\n",
    "\x0b",
    "\x0c",
    "\x1c",
    "\x1d",
    "\x1e",
    "\x85",
    "\u2028",
    "\u2029",
]
OTHERS = ["\x00", "data: x", "event: x", ": comment", "id: 1", "\ufeff", "é", "\U0001f600", " ", ""]


def unified(text: str) -> str:
    """``text`` as EventSource can carry it: every line end it knows is a line feed."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


@given(text=st.lists(st.sampled_from(NEWLINES + OTHERS) | st.text(max_size=3)).map("".join))
def test_one_event_in_is_one_event_out(text: str) -> None:
    events = list(parse_sse(frame("some.name", text) + frame(None, text)))
    data = [event.data for event in events]
    assert data == [unified(text)] * 2 and [event.name for event in events] == ["some.name", ""]


@pytest.mark.parametrize("text", [*NEWLINES, "\x00", '{"a":1}'])
def test_only_line_ends_of_the_stream_are_changed(text: str) -> None:
    raw = frame(None, text)
    assert raw.endswith(b"\n\n") and b"\r" not in raw and raw.count(b"\n\n") == 1


@pytest.mark.parametrize("name", ["", "a b", "a\n", "a\r", "a\x00", "a:b", "é"])
def test_an_event_name_that_is_none_is_a_bug(name: str) -> None:
    with pytest.raises(ValueError, match="event name"):
        frame(name, "x")


def test_lone_surrogates_cannot_leave() -> None:
    with pytest.raises(UnicodeEncodeError):
        frame(None, "\ud800")


class Wire:
    """An outlet: what a pulse writes, when, and how long it takes."""

    def __init__(self, *cost: float) -> None:
        self.heard: list[tuple[float, bytes]] = []
        self.cost = list(cost)
        self.given_up: list[float] = []
        self.gone = False

    def at_once(self, data: bytes) -> int:
        return 0

    async def send(self, data: bytes) -> None:
        if self.gone:
            raise PeerGone
        await trio.sleep(self.cost.pop(0) if self.cost else 0)
        self.heard.append((trio.current_time(), data))

    def give_up(self) -> None:
        self.given_up.append(trio.current_time())


@asynccontextmanager
async def pulsing(wire: Wire, quiet: float = 5, patience: float = 15) -> AsyncIterator[Pulse]:
    async with trio.open_nursery() as nursery:
        pulse = Pulse(wire, lambda frame: frame, wire.give_up, quiet, patience)
        nursery.start_soon(pulse.beat)
        yield pulse
        await pulse.settle()
        nursery.cancel_scope.cancel()


async def test_each_silence_is_filled_from_the_end_of_the_last_write(autojump_clock: Clock) -> None:
    wire = Wire(0, 1)
    async with pulsing(wire) as pulse:
        await trio.sleep(5.5)
        await pulse.send(b"a")  # takes a second
        await trio.sleep(5.5)
    assert wire.heard == [(5, HEARTBEAT), (6.5, b"a"), (11.5, HEARTBEAT)]


async def test_frames_that_keep_coming_leave_no_silence(autojump_clock: Clock) -> None:
    wire = Wire()
    async with pulsing(wire) as pulse:
        for _ in range(50):
            await trio.sleep(4.9)
            await pulse.send(b"x")
    assert {data for _, data in wire.heard} == {b"x"}


async def test_a_frame_waits_for_the_heartbeat_before_it(autojump_clock: Clock) -> None:
    wire = Wire(3)
    async with pulsing(wire) as pulse:
        await trio.sleep(6)
        await pulse.send(b"a")
    assert wire.heard == [(8, HEARTBEAT), (8, b"a")]


@pytest.mark.parametrize("quiet", [1, 5, 40])
@pytest.mark.parametrize("begin", [0, 2.25, 31])
async def test_a_write_that_stands_still_is_given_up_on_the_second(
    autojump_clock: Clock, quiet: float, begin: float
) -> None:
    wire = Wire()
    async with pulsing(wire, quiet) as pulse:
        await trio.sleep(begin)
        wire.cost = [1_000]
        with trio.move_on_after(100):
            await pulse.send(b"a")
    assert wire.given_up == [begin + 15]


async def test_a_heartbeat_that_stands_still_is_given_up_too(autojump_clock: Clock) -> None:
    wire = Wire(1_000)
    async with pulsing(wire):
        await trio.sleep(100)
    assert (wire.heard, wire.given_up) == ([], [20])


async def test_a_heartbeat_finds_out_that_nobody_is_there(autojump_clock: Clock) -> None:
    wire = Wire()
    wire.gone = True
    async with pulsing(wire):
        await trio.sleep(100)
    assert wire.given_up == [5]


async def test_a_settled_pulse_is_silent(autojump_clock: Clock) -> None:
    wire = Wire(2)
    async with pulsing(wire) as pulse:
        await trio.sleep(6)
        await pulse.settle()  # the heartbeat under way ends first
        assert trio.current_time() == 7
        await trio.sleep(50)
    assert wire.heard == [(7, HEARTBEAT)]
