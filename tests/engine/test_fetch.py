"""Who waits for files: only who gains by it, for exactly its own history, and never for long."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import attrs
import pytest

from ninfer.engine.device import HostLoad, Prefill
from ninfer.engine.disk import Stretch
from ninfer.engine.fetch import Fetching
from ninfer.engine.identity import Identity
from ninfer.engine.loop import Engine
from ninfer.engine.memory import Memory
from ninfer.engine.persist import Persistence
from ninfer.engine.sequence import Sequence
from ninfer.prompt.prepared import Mark, MarkKind, Prepared
from ninfer.settings import ContextCosts, EngineOptions
from tests.engine.test_persist import device, persistence
from tests.sim.disk import reading
from tests.sim.fake_device import small
from tests.sim.harness import Heard, hear, hear_all, job, prompt, running

COSTS = ContextCosts(0.0, 1e9, 1e-3, 0.0, 1e9)
OPTIONS = EngineOptions(max_pending=64, checkpoint_every=4096, junction_tokens=8, costs=COSTS)
SHARED = prompt(36).ids


def ask(seed: int, own: int = 20, shared: int = 36, marked: bool = True) -> Prepared:
    ids = SHARED[:shared] + prompt(own, seed=seed).ids
    return Prepared(ids, False, marks=(Mark(len(ids) - 4, MarkKind.EXPLICIT),) if marked else ())


async def leave(folder: Path, *asks: Prepared) -> list[list[int]]:
    """Answer and leave everything on disk."""
    async with running(device(), OPTIONS) as engine:
        texts = [(await hear(engine, job(one, 9))).tokens for one in asks]
        there = persistence(engine, folder)
        await there.save()
    return texts


async def opened(
    folder: Path, options: EngineOptions = OPTIONS, **more: int
) -> tuple[Any, Engine, Persistence]:
    made = device(**more)
    engine = Engine(made, options)
    there = persistence(engine, folder)
    await there.open()
    return made, engine, there


async def test_histories_that_part_inside_a_file_each_get_their_own(autojump_clock, tmp_path):
    one, two, three = ask(1), ask(2), ask(3, shared=20)
    texts = await leave(tmp_path, one, two, three)
    made, engine, there = await opened(tmp_path)
    async with running(made, OPTIONS, engine), reading(there):
        for work, text in [(two, texts[1]), (three, texts[2]), (one, texts[0])]:
            heard = await hear(engine, job(work, 9))
            assert heard.tokens == text
            assert heard.admitted.cached_tokens == len(work.ids) - 4
            engine.check()


async def test_requests_of_one_prompt_share_one_fetch(autojump_clock, tmp_path):
    (text,) = await leave(tmp_path, ask(1))
    made, engine, there = await opened(tmp_path, lanes=4)
    there.run_blocking = slow(0.5)
    async with running(made, OPTIONS, engine), reading(there):
        heard = await hear_all(engine, [job(ask(1), 9) for _ in range(4)])
        assert all(one.tokens == text and one.end.summary.disk_tokens == 52 for one in heard)
    assert engine.stats().counters.disk_reads == 1
    assert sum(len(unit.ids) for unit in made.log if isinstance(unit, Prefill)) == 4 * 4


def slow(seconds: float) -> Callable[[Callable[[], object]], Any]:
    async def run(work: Callable[[], object]) -> object:
        await anyio.sleep(seconds)
        return work()

    return run


async def test_what_is_quicker_computed_is_not_read(autojump_clock, tmp_path):
    await leave(tmp_path, ask(1))
    options = attrs.evolve(OPTIONS, costs=attrs.evolve(COSTS, disk_bytes_per_second=1e4))
    made, engine, there = await opened(tmp_path, options)
    async with running(made, options, engine), reading(there):
        heard = await hear(engine, job(ask(1), 9))
    assert heard.admitted.cached_tokens == 0 and engine.stats().counters.disk_reads == 0


async def test_kv_that_is_in_memory_is_not_read_again(autojump_clock, tmp_path):
    await leave(tmp_path, ask(1))
    made, engine, there = await opened(tmp_path)
    async with running(made, OPTIONS, engine), reading(there):
        await hear(engine, job(ask(1), 9))
        first = engine.stats().counters.disk_read_bytes
        tree = engine.scheduler.memory.retention.tree
        node = next(node for node in tree if node.frontier == 52)
        engine.scheduler.memory.retention.strip(node, "for a test", engine.scheduler._loose)
        heard = await hear(engine, job(ask(1), 9))
        assert heard.admitted.cached_tokens == 52 and heard.end.summary.disk_tokens == 52
        image = there.disk.at(tree.match(engine_whole(ask(1), 52)).nodes and engine_whole(ask(1), 52)).image
        assert engine.stats().counters.disk_read_bytes - first == image.size


def engine_whole(prepared: Prepared, stop: int) -> Any:
    from ninfer.engine.identity import identify

    return identify(prepared).part(0, stop)


async def test_without_host_memory_it_is_a_miss_with_a_reason(autojump_clock, tmp_path):
    (text,) = await leave(tmp_path, ask(1))
    made, engine, there = await opened(tmp_path, host=1_800)  # an image and seven pages want 1,700
    async with running(made, OPTIONS, engine), reading(there):
        taken = engine.scheduler.memory.space.host.reserve(False, 2)  # as a snapshot would
        heard = await hear(engine, job(ask(1), 9))
        engine.scheduler.memory.space.host.drop(taken, [])
        assert heard.tokens == text and heard.admitted.cached_tokens == 0
        assert "52 tokens are on disk, but there is no host memory" in (heard.end.summary.miss_reason or "")


@pytest.mark.parametrize("made", [0, 1])
async def test_a_host_that_cannot_set_memory_aside_costs_a_miss(autojump_clock, tmp_path, made):
    (text,) = await leave(tmp_path, ask(1))
    made_device, engine, there = await opened(tmp_path)
    rooms: list[int] = []

    async def room(key: int, pages: int) -> memoryview:
        rooms.append(key)
        if len(rooms) > made:
            raise MemoryError
        return await type(made_device).room(made_device, key, pages)

    there.archive = SimpleNamespace(signature="fake", room=room)
    async with running(made_device, OPTIONS, engine), reading(there):
        heard = await hear(engine, job(ask(1), 9))
        assert heard.tokens == text and heard.admitted.cached_tokens == 0
        assert "could not set memory aside" in (heard.end.summary.miss_reason or "")
    assert len(there.disk) == 4 and engine.stats().counters.disk_failures == 1


async def test_what_it_hangs_on_may_go_while_it_is_read(autojump_clock, tmp_path):
    (text,) = await leave(tmp_path, ask(1, own=30))
    options = attrs.evolve(OPTIONS, prefix_reuse=True)
    made, engine, there = await opened(tmp_path, options)
    async with running(made, options, engine), reading(there):
        await hear(engine, job(ask(5, marked=False), 2))  # brings the shared tokens into memory
        there.run_blocking = slow(1.0)
        heard = Heard()
        async with anyio.create_task_group() as tasks:

            async def listen() -> None:
                heard.events += (await hear(engine, job(ask(1, own=30), 9))).events

            tasks.start_soon(listen)
            await anyio.sleep(0.5)
            assert engine.scheduler.fetching.pending
            while engine.scheduler.memory.retention.give_up_one(engine.scheduler._loose):
                pass
            for node in list(engine.scheduler.memory.retention.tree):
                if node.parent is not None:
                    engine.scheduler.memory.retention._remove(node, engine.scheduler._loose)
        assert heard.tokens == text
        engine.check()


async def test_a_request_that_waits_is_not_in_the_way(autojump_clock, tmp_path):
    await leave(tmp_path, ask(1))
    made, engine, there = await opened(tmp_path, lanes=1)
    there.run_blocking = slow(5.0)
    async with running(made, OPTIONS, engine), reading(there):
        order: list[int] = []

        async def go(name: int, work: Prepared) -> None:
            await hear(engine, job(work, 2))
            order.append(name)

        async with anyio.create_task_group() as tasks:
            for name, work in enumerate((ask(1), *(prompt(30, seed=60 + n) for n in range(6)))):
                tasks.start_soon(go, name, work)
                await anyio.sleep(1e-6)
        assert order == [1, 2, 3, 4, 5, 6, 0]
    assert any(isinstance(unit, HostLoad) for unit in made.log)


def looks_at(turns: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """How often a fetch of a conversation of so many turns compares or weighs something."""
    memory = Memory.of(small(host_bytes=10**9), OPTIONS)
    memory.disk.capacity = 10**9
    ids = prompt(20 * turns + 5).ids
    for turn in range(turns):
        whole = Identity(0, array("I", ids[: 20 * turn + 20]).tobytes())
        memory.disk.add(Stretch(f"kv {turn}", whole, 20 * turn, 0, 100, 100, b""))
        memory.disk.add(Stretch(f"image {turn}", whole, whole.stop, 0, 100, 100, b""))
    fetching, count = Fetching(memory.cache, memory.disk, open=True), 0
    for kind, name in ((Identity, "agrees"), (Identity, "part"), (Fetching, "_memory")):
        real = getattr(kind, name)

        def counting(*args: Any, real: Any = real) -> Any:
            nonlocal count
            count += 1
            return real(*args)

        monkeypatch.setattr(kind, name, counting)
    seq = Sequence(job(Prepared(ids, False), 8), 1, 8)
    fetching.look(seq, [])
    (fetch,) = fetching.take_fresh()
    assert len(fetch.loads) == turns + 1 and fetching.landed(fetch, [])
    assert memory.source_for(seq, len(ids)).common == 20 * turns
    return count


def test_a_conversation_of_many_turns_costs_no_more_for_each(monkeypatch):
    few = looks_at(20, monkeypatch)
    monkeypatch.undo()
    assert looks_at(200, monkeypatch) < 12 * few
