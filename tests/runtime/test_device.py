"""The device's thread: order, faults, and loops that never wait for it."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator

import anyio
import attrs
import pytest
from trio.testing import MockClock

from ninfer.engine.device import Clear, DeviceFailed, Geometry, Result, Unit
from ninfer.engine.job import Event, Failed, Job, Sampling
from ninfer.engine.loop import Engine
from ninfer.faults import Refused, StartupError
from ninfer.prompt.prepared import Prepared
from ninfer.runtime.device import ThreadDevice
from ninfer.runtime.inventory import Inventory
from ninfer.runtime.threads import LEFT
from ninfer.settings import DeviceWaits, EngineOptions
from ninfer.warmup import explain
from tests.sim.harness import Reader


@attrs.define(eq=False)
class Recorded:
    """A program that notes what it ran and waits for permission."""

    inventory: Inventory = attrs.field(factory=Inventory)
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
    async with ThreadDevice.start(lambda: program, DeviceWaits(stop=0.01)) as device:
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
    before = {*threading.enumerate()}
    program = Recorded()
    program.gate.set()
    async with ThreadDevice.start(lambda: program):
        (own,) = (t for t in threading.enumerate() if t not in before and t.name == "ninfer-device")
    own.join(timeout=10)  # it may still be returning, with nothing left to run
    assert not own.is_alive()


@attrs.define(eq=False)
class Archived(Recorded):
    """A program whose state is what it ran."""

    signature: str = "recorded"

    def export(self, slot: int | None, pages: tuple[int, ...]) -> bytes:
        """Tell how many units ran."""
        return b"%d" % len(self.seen)

    def export_host(self, key: int, skip: int, count: int) -> bytes:
        """Nothing."""
        return b""

    def room(self, key: int, pages: int) -> memoryview:
        """Refuse what cannot be had; otherwise tell how many units had ended."""
        if not pages:
            raise MemoryError("no such room")
        return memoryview(b"%d" % len(self.seen))


@on_both_loops
async def test_state_is_given_out_in_its_place_among_the_units() -> None:
    program = Archived()
    program.gate.set()
    async with ThreadDevice.start(lambda: program) as device:
        archive = device.archive
        assert archive is not None and archive.signature == "recorded"
        tickets = [device.submit(Clear(slot)) for slot in range(3)]
        seen = []

        async def export() -> None:
            seen.append(await archive.export(0, ()))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(export)
            await anyio.lowlevel.checkpoint()
            await anyio.lowlevel.checkpoint()
            await device.submit(Clear(9)).result()
        assert seen == [b"3"]
        assert (await tickets[2].result()).seconds == 3


@on_both_loops
async def test_room_that_cannot_be_had_does_not_cost_the_device() -> None:
    program = Archived()
    program.gate.set()
    async with ThreadDevice.start(lambda: program) as device:
        assert device.archive is not None
        with pytest.raises(MemoryError, match="no such room"):
            await device.archive.room(1, 0)
        assert (await device.submit(Clear(0)).result()).seconds == 1


@attrs.define(eq=False)
class Ahead(Archived):
    """The same, taking the next unit before the last one has ended."""

    def start(self, unit: Unit) -> Callable[[], Result]:
        """Run it when its result is asked for."""
        return lambda: self.run(unit)


@on_both_loops
async def test_room_is_made_without_waiting_for_units_under_way() -> None:
    program = Ahead()
    async with ThreadDevice.start(lambda: program) as device:
        assert device.archive is not None
        first, second = device.submit(Clear(0)), device.submit(Clear(1))
        rooms: list[bytes] = []

        async def room() -> None:
            rooms.append(bytes(await device.archive.room(1, 1)))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(room)
            await anyio.lowlevel.checkpoint()
            await anyio.lowlevel.checkpoint()
            last = device.submit(Clear(2))
            program.gate.set()
        assert [(await one.result()).seconds for one in (first, second, last)] == [1, 2, 3]
        assert rooms[0] in (b"1", b"0")  # the second one was still under way


@on_both_loops
async def test_a_lost_device_gives_nothing_out() -> None:
    program = Archived(fail_at=0)
    program.gate.set()
    async with ThreadDevice.start(lambda: program) as device:
        archive = device.archive
        assert archive is not None
        device.submit(Clear(0))
        with pytest.raises(DeviceFailed):
            await archive.export(0, ())


@on_both_loops
async def test_a_program_without_an_archive_has_none() -> None:
    async with ThreadDevice.start(Recorded) as device:
        assert device.archive is None


@attrs.define(eq=False)
class Failing(Recorded):
    """A program that takes a unit before the last one has ended; ``fail_at`` is the one that fails.

    ``early``  whether it fails when it is submitted (a launch that is refused) or when it is waited for
    """

    early: bool = False
    waited: list[Unit] = attrs.field(factory=list)

    def start(self, unit: Unit) -> Callable[[], Result]:
        """Submit a unit."""
        self.gate.wait(10)
        self.seen.append(unit)
        failing = len(self.seen) - 1 == self.fail_at
        if failing and self.early:
            raise OSError("the launch was refused")

        def finish() -> Result:
            self.waited.append(unit)
            if failing:
                raise OSError("an illegal address")
            return Result(seconds=float(len(self.waited)))

        return finish


@pytest.mark.parametrize("early", [True, False], ids=["refused launch", "fault found by waiting"])
async def test_a_fault_of_a_unit_under_way_fails_it_and_all_after_it(early: bool) -> None:
    program = Failing(fail_at=2, early=early)
    async with ThreadDevice.start(lambda: program) as device:
        tickets = [device.submit(Clear(slot)) for slot in range(6)]
        program.gate.set()
        outcomes = []
        for ticket in tickets:
            try:
                outcomes.append((await ticket.result()).seconds)
            except DeviceFailed as failed:
                outcomes.append(str(failed.__cause__))
        with pytest.raises(DeviceFailed):
            await device.submit(Clear(9)).result()
    cause = "the launch was refused" if early else "an illegal address"
    fine = outcomes.index(cause)  # a unit under way beside a refused launch fails with it
    assert fine in ((1, 2) if early else (2,))
    assert outcomes[fine:] == [cause] * (6 - fine)
    assert len(program.seen) <= 4 and len(program.waited) <= 3  # nothing was begun on a lost device


def left_behind() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.endswith(LEFT)]


@pytest.fixture
def stuck() -> Iterator[Archived]:
    """A program that never returns; when the test is over, it does."""
    program = Archived()
    yield program
    program.gate.set()
    for thread in left_behind():
        thread.join(10)


async def test_a_device_that_hangs_is_lost_for_everyone_on_the_exact_second(
    autojump_clock: MockClock, stuck: Archived
) -> None:
    began = anyio.current_time()
    async with ThreadDevice.start(lambda: stuck, DeviceWaits(load=math.inf, work=600)) as device:
        archive = device.archive
        assert archive is not None
        for later in (device.submit(Clear(0)), device.submit(Clear(1))):
            with pytest.raises(DeviceFailed) as failed:
                await later.result()
            assert "nothing for 600 s" in str(failed.value.__cause__)
        with pytest.raises(DeviceFailed):
            await archive.export(0, ())
        with pytest.raises(DeviceFailed):
            await device.submit(Clear(2)).result()
        assert anyio.current_time() - began == 600
    assert anyio.current_time() - began == 600  # nor does leaving wait for it
    assert len(left_behind()) == 1


async def test_a_copy_that_hangs_loses_the_device_too(autojump_clock: MockClock, stuck: Archived) -> None:
    release = threading.Event()

    def export(slot: int | None, pages: tuple[int, ...]) -> bytes:
        release.wait(10)
        return b""

    stuck.gate.set()
    async with ThreadDevice.start(lambda: stuck, DeviceWaits(load=math.inf, work=600)) as device:
        with pytest.raises(DeviceFailed):
            await device.call(lambda: export(0, ()))
        with pytest.raises(DeviceFailed):
            await device.submit(Clear(0)).result()
        release.set()


async def test_who_waits_behind_work_that_ends_waits_on() -> None:
    program = Recorded()
    program.gate.set()
    async with ThreadDevice.start(lambda: program, DeviceWaits(work=0.2)) as device:
        naps = [device.submit(Clear(slot)) for slot in range(8)]

        async def nap() -> None:
            await device.call(lambda: time.sleep(0.1))

        async with anyio.create_task_group() as tasks:
            for _ in range(8):
                tasks.start_soon(nap)
        assert [(await one.result()).seconds for one in naps] == [1, 2, 3, 4, 5, 6, 7, 8]


async def test_a_device_that_is_never_ready_is_a_problem_of_the_start(autojump_clock: MockClock) -> None:
    release = threading.Event()

    def build() -> Recorded:
        release.wait(10)
        return Recorded()

    with pytest.raises(StartupError, match="not ready within 7200 s"):
        async with ThreadDevice.start(build):
            raise AssertionError("a device that is not ready was handed out")
    release.set()
    for thread in left_behind():
        thread.join(10)


async def test_requests_on_a_device_that_hangs_hear_it_and_newcomers_are_refused(
    autojump_clock: MockClock, stuck: Archived
) -> None:
    async with ThreadDevice.start(lambda: stuck, DeviceWaits(load=math.inf, work=600)) as device:
        engine = Engine(device, EngineOptions(pending_timeout=1e6))
        events: list[list[Event]] = []

        async def ask(number: int) -> None:
            job = Job(f"r{number}", Prepared((1, 2, 3), False), Sampling(), 4, Reader(), math.inf)
            with engine.seat():
                reader = engine.submit(job)
                with reader:
                    events.append([event async for event in reader])

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(engine.run)
            for number in range(3):  # one runs, two wait for its lane
                tasks.start_soon(ask, number)
        assert [told[-1].fault.code for told in events if isinstance(told[-1], Failed)] == [
            "engine_failed"
        ] * 3
        assert isinstance(engine.failure, DeviceFailed) and "for 600 s" in explain(engine)
        with pytest.raises(Refused), engine.seat():
            raise AssertionError("a lost device took a request")
