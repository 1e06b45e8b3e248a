"""Measure what a scheduling decision costs with 8 residents and 10,000 retained frontiers.

Prints microseconds: a decode cycle (plan and settle), a cycle in which the cache must give up pages,
an admission of an 8,192-token prompt that shares its first tokens with retained histories (and with as
many on disk), and a whole round of the engine's loop (plan, submit, read, commit, publish, eight
readers) on a device that costs nothing.
"""

from __future__ import annotations

import gc
import itertools
import statistics
import time
from collections.abc import Callable

import anyio
import anyio.lowlevel
import attrs

from ninfer.engine.device import Decode, Geometry, Prefill, Result, RowResult, Unit
from ninfer.engine.disk import Stretch
from ninfer.engine.identity import Identity
from ninfer.engine.job import Job, Sampling, Verdict
from ninfer.engine.loop import Engine
from ninfer.engine.memory import Memory
from ninfer.engine.prefix import Kind
from ninfer.engine.scheduler import Scheduler
from ninfer.engine.sequence import Sequence, State
from ninfer.prompt.prepared import Prepared
from ninfer.settings import EngineOptions

FRONTIERS = 10_000
GEOMETRY = Geometry(
    lanes=8,
    slots=16,
    pages=32_768,
    page_tokens=64,
    max_context=65_536,
    prefill_chunk=1_024,
    vocab=248_077,
    image_bytes=144 << 20,
    page_bytes=4 << 20,
    host_bytes=FRONTIERS * (144 << 20),
)


class Silent:
    """A judge that never stops."""

    def take(self, token: int) -> Verdict:
        """Let it pass."""
        return Verdict()

    def finish(self) -> None:
        """Say nothing."""


def sequence(order: int, ids: tuple[int, ...]) -> Sequence:
    """Build a request."""
    job = Job(f"r{order}", Prepared(ids, False), Sampling(), 50_000, Silent(), float("inf"))
    return Sequence(job, order, 50_000)


def retain(scheduler: Scheduler) -> None:
    """Fill the cache: families of histories that share 4,096 tokens and part in their last 128."""
    memory, units = scheduler.memory, []
    for n in range(FRONTIERS):
        family = n // 100
        ids = tuple(range(family, family + 128)) + (n % 100,) * 128
        seq = sequence(0, ids)
        count = memory.space.pages_for(len(ids)) - 2 * (n % 100 > 0)
        shared = memory.retention.tree.match(seq.whole).nodes
        held = shared[-1].pages[:2] if shared else ()
        seq.pages = held + memory.space.take_pages(count)
        node = memory.retention.tree.insert(seq.whole, seq.pages, units)
        node.kind, node.image = Kind.ENDPOINT, memory.space.host.save(0, (), units)
        memory.space.pages.release(seq.pages[len(held) :])
        for each in node.path():
            memory.retention.shelve(each)


def timed(times: int, act: Callable[[], None]) -> str:
    """Return median and 99th percentile of one call, in microseconds."""
    spent = []
    for _ in range(times):
        begun = time.perf_counter()
        act()
        spent.append(1e6 * (time.perf_counter() - begun))
    return f"median {statistics.median(spent):7.1f} us   p99 {sorted(spent)[int(times * 0.99)]:7.1f} us"


def cycle(scheduler: Scheduler) -> None:
    """Plan a cycle and take its outcome."""
    for flight in scheduler.plan():
        rows = (RowResult((5,)),) * len(flight.rows) if isinstance(flight.unit, Decode) else ()
        for landed in scheduler.settle(flight, Result(rows)):
            for token in landed.tokens:
                landed.seq.take(token)


def settle_in(scheduler: Scheduler) -> None:
    """Give eight residents a context of 4,096 tokens each."""
    for n in range(8):
        seq = sequence(n + 1, (200_000 + n,) * 4_096)
        scheduler.admit(seq)
    while not scheduler.roster.residents or any(
        seq.state is not State.DECODING for seq in scheduler.roster.residents
    ):
        for flight in scheduler.plan():
            sampled = getattr(flight.unit, "sample", False) or isinstance(flight.unit, Decode)
            rows = tuple(RowResult((5,)) for _ in flight.rows) if sampled else ()
            for landed in scheduler.settle(flight, Result(rows)):
                for token in landed.tokens:
                    landed.seq.take(token)


def file(scheduler: Scheduler) -> None:
    """Fill the index of the disk with the same families."""
    disk = scheduler.memory.disk
    disk.capacity = 1 << 60
    for n in range(FRONTIERS):
        whole = sequence(0, tuple(range(n // 100, n // 100 + 128)) + (n % 100,) * 128).whole
        for start in (disk.way(whole)[1], whole.stop):
            disk.add(Stretch(f"{n} {start}", whole, start, 0, 1 << 20, 1 << 20, b""))


def look(scheduler: Scheduler) -> str:
    """Time what a newcomer costs whose prompt may lie on disk."""
    ids = tuple(range(50, 178)) + tuple(range(1_000, 1_000 + 8_064))
    seq = sequence(998, ids)
    scheduler.fetching.open = True

    def search() -> None:
        seq.looks = 1
        scheduler.memory.cache.forget(seq)
        scheduler.fetching.look(seq, [])

    return timed(2_000, search)


def admission(scheduler: Scheduler) -> str:
    """Time the search for the start of a prompt that shares its first tokens with many."""
    ids = tuple(range(50, 178)) + tuple(range(1_000, 1_000 + 8_064))
    seq = sequence(999, ids)
    whole: Identity = seq.whole

    def search() -> None:
        scheduler.memory.cache.forget(seq)
        scheduler.memory.cache.find(seq, whole)

    return timed(2_000, search)


@attrs.frozen
class Instant:
    """A unit that is done."""

    outcome: Result

    async def result(self) -> Result:
        """Let others run, then answer."""
        await anyio.lowlevel.checkpoint()
        return self.outcome


class Idle:
    """A device whose units cost nothing."""

    geometry = attrs.evolve(GEOMETRY, host_bytes=0)

    def submit(self, unit: Unit) -> Instant:
        """Answer with a token for each row that wants one."""
        sampled = isinstance(unit, Prefill) and unit.sample
        rows = len(unit.rows) if isinstance(unit, Decode) else int(sampled)
        return Instant(Result((RowResult((5,)),) * rows))


async def rounds(lanes: int, tokens: int) -> None:
    """Time rounds of the whole loop."""
    engine, numbers = Engine(Idle(), EngineOptions()), itertools.count(1)
    ids = [(next(numbers),) * 500 for _ in range(lanes)]

    async def read(prompt: tuple[int, ...]) -> None:
        job = Job("r", Prepared(prompt, False), Sampling(), tokens, Silent(), float("inf"))
        with engine.submit(job) as events:
            async for _ in events:
                pass

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(engine.run)
        begun = time.perf_counter()
        async with anyio.create_task_group() as readers:
            for prompt in ids:
                readers.start_soon(read, prompt)
        spent = time.perf_counter() - begun
        tasks.cancel_scope.cancel()
    done = engine.stats().counters.decode_rounds
    print(f"whole loop, {lanes} lanes          mean {1e6 * spent / done:9.1f} us a round")


def main() -> None:
    """Print the figures."""
    scheduler = Scheduler(Memory.of(GEOMETRY, EngineOptions()), EngineOptions(), 1_024)
    retain(scheduler)
    settle_in(scheduler)
    gc.freeze()
    print(f"retained nodes {sum(1 for _ in scheduler.memory.retention.tree)}")
    print("decode cycle, 8 residents     ", timed(3_000, lambda: cycle(scheduler)))
    print("search of an 8,192-token prompt", admission(scheduler))
    file(scheduler)
    print("the same, with 20,000 files   ", look(scheduler))
    scheduler.memory.space.pages.take(scheduler.memory.space.pages.free)
    print("decode cycle, cache gives pages", timed(3_000, lambda: cycle(scheduler)))
    for lanes in (1, 8):
        anyio.run(rounds, lanes, 3_000, backend="trio")


if __name__ == "__main__":
    main()
