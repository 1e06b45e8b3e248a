"""The device's thread: order, faults, and loops that never wait for it."""

from __future__ import annotations

import threading
from collections.abc import Callable

import anyio
import attrs
import pytest

from ninfer.engine.device import Clear, DeviceFailed, Geometry, Result, Unit
from ninfer.faults import StartupError
from ninfer.runtime.device import ThreadDevice


@attrs.define(eq=False)
class Recorded:
    """A program that notes what it ran and waits for permission."""

    seen: list[Unit] = attrs.field(factory=list)
    threads: set[str] = attrs.field(factory=set)
    gate: threading.Event = attrs.field(factory=threading.Event)
    fail_at: int = -1

    @property
    def geometry(self) -> Geometry:
        """Anything."""
        return Geometry(1, 1, 1, 64, 64, 64, 10, 1, 1)

    def run(self, unit: Unit) -> Result:
        """Note the unit."""
        self.gate.wait(10)
        self.threads.add(threading.current_thread().name)
        self.seen.append(unit)
        if len(self.seen) - 1 == self.fail_at:
            raise OSError("the cable fell out")
        return Result(seconds=float(len(self.seen)))


def on_both_loops(test: Callable[..., object]) -> Callable[[str], None]:
    """Run an async test under trio and under asyncio."""

    @pytest.mark.parametrize("backend", ["trio", "asyncio"])
    def run(backend: str) -> None:
        anyio.run(test, backend=backend)

    return run


@on_both_loops
async def test_units_run_in_order_on_one_thread_and_submit_does_not_wait() -> None:
    program = Recorded()
    async with ThreadDevice.start(lambda: program) as device:
        assert device.geometry.vocab == 10
        tickets = [device.submit(Clear(slot)) for slot in range(5)]
        assert program.seen == []  # the program stands at its gate; nobody waited for it
        program.gate.set()
        assert [(await ticket.result()).seconds for ticket in tickets] == [1, 2, 3, 4, 5]
    assert program.seen == [Clear(slot) for slot in range(5)]
    assert program.threads == {"ninfer-device"}


@on_both_loops
async def test_the_first_fault_fails_its_unit_and_all_later_ones() -> None:
    program = Recorded(fail_at=1)
    program.gate.set()
    async with ThreadDevice.start(lambda: program) as device:
        tickets = [device.submit(Clear(slot)) for slot in range(4)]
        assert (await tickets[0].result()).seconds == 1
        for ticket in (*tickets[1:], device.submit(Clear(9))):
            with pytest.raises(DeviceFailed) as failed:
                await ticket.result()
            assert isinstance(failed.value.__cause__, OSError)
    assert len(program.seen) == 2  # nothing ran on a lost device


@on_both_loops
async def test_an_abandoned_unit_still_runs_before_the_thread_ends() -> None:
    program = Recorded()
    async with ThreadDevice.start(lambda: program) as device:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await device.submit(Clear(0)).result()
        program.gate.set()
    assert program.seen == [Clear(0)]


@on_both_loops
async def test_leaving_does_not_wait_for_ever() -> None:
    program = Recorded()
    async with ThreadDevice.start(lambda: program, stop_seconds=0.01) as device:
        device.submit(Clear(0))
    assert program.seen == []  # it stands at its gate still
    program.gate.set()


@on_both_loops
async def test_a_program_that_cannot_be_built_says_why() -> None:
    def build() -> Recorded:
        raise StartupError("no such weights")

    with pytest.raises(StartupError, match="no such weights"):
        async with ThreadDevice.start(build):
            raise AssertionError("a device without a program was handed out")


@on_both_loops
async def test_the_thread_is_gone_after_the_context() -> None:
    before = threading.active_count()
    program = Recorded()
    program.gate.set()
    async with ThreadDevice.start(lambda: program):
        assert threading.active_count() == before + 1
    names = [thread.name for thread in threading.enumerate()]
    assert names.count("ninfer-device") <= 1  # it may still be returning, with nothing left to run
