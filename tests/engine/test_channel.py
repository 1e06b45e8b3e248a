"""The channel of one request: order, the end, leaving, and waits that can be cancelled, on both loops."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import pytest
from anyio.lowlevel import checkpoint

from ninfer.engine.channel import Channel, EventParking, best_parking
from ninfer.engine.parking import TaskParking

on_both_loops = pytest.mark.parametrize("backend", ["trio", "asyncio"])


def play(scenario: Callable[[], object], backend: str) -> None:
    anyio.run(scenario, backend=backend)  # type: ignore[arg-type]


def test_trio_parks_tasks_and_others_wait_for_events() -> None:
    async def trio() -> None:
        assert isinstance(best_parking(), TaskParking)

    async def asyncio() -> None:
        assert isinstance(best_parking(), EventParking)

    play(trio, "trio")
    play(asyncio, "asyncio")


@on_both_loops
def test_what_was_sent_is_read_in_order_and_then_the_end(backend: str) -> None:
    async def scenario() -> None:
        channel = Channel[int](10)
        got: list[int] = []

        async def read() -> None:
            async for event in channel.reader:
                got.append(event)

        async with anyio.create_task_group() as tasks:
            channel.send_nowait(1)
            tasks.start_soon(read)
            await anyio.sleep(0.001)
            channel.send_nowait(2)
            channel.send_nowait(3)
            await anyio.sleep(0.001)
            channel.send_nowait(4)
            channel.close()
        assert got == [1, 2, 3, 4]
        with pytest.raises(anyio.EndOfStream):
            await channel.reader.receive()

    play(scenario, backend)


@on_both_loops
def test_a_reader_that_left_is_told_to_the_sender_and_reads_nothing_more(backend: str) -> None:
    async def scenario() -> None:
        channel = Channel[int](10)
        channel.send_nowait(1)
        with channel.reader:
            pass
        assert channel.left
        with pytest.raises(anyio.BrokenResourceError):
            channel.send_nowait(2)
        with pytest.raises(anyio.ClosedResourceError):
            await channel.reader.receive()

    play(scenario, backend)


@on_both_loops
def test_a_full_channel_refuses_and_never_waits(backend: str) -> None:
    async def scenario() -> None:
        channel = Channel[int](1)
        channel.send_nowait(1)
        with pytest.raises(anyio.WouldBlock):
            channel.send_nowait(2)
        assert await channel.reader.receive() == 1
        channel.send_nowait(2)

    play(scenario, backend)


@on_both_loops
def test_a_cancelled_wait_loses_no_event_and_wakes_nobody_else(backend: str) -> None:
    async def scenario() -> None:
        channel = Channel[int](10)
        with anyio.move_on_after(0.001) as scope:
            await channel.reader.receive()
        assert scope.cancelled_caught
        channel.send_nowait(1)
        await checkpoint()
        assert await channel.reader.receive() == 1

    play(scenario, backend)


@on_both_loops
def test_reading_what_is_there_can_still_be_cancelled(backend: str) -> None:
    async def scenario() -> None:
        channel = Channel[int](10)
        channel.send_nowait(1)
        with anyio.CancelScope() as scope:
            scope.cancel()
            await channel.reader.receive()
        assert scope.cancelled_caught
        assert await channel.reader.receive() == 1

    play(scenario, backend)


@on_both_loops
def test_an_event_and_a_cancellation_in_one_instant_lose_nothing(backend: str) -> None:
    async def scenario() -> None:
        channel = Channel[int](10)
        got: list[int] = []

        async def read() -> None:
            got.append(await channel.reader.receive())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            await anyio.sleep(0.001)
            channel.send_nowait(1)
            tasks.cancel_scope.cancel()
        if not got:
            assert await channel.reader.receive() == 1

    play(scenario, backend)
