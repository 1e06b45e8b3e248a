"""The pure scheduler, cycle by cycle: what a cycle holds, who advances, who is overtaken how often."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer.engine.cycle import Flight
from ninfer.engine.device import Bind, Decode, Geometry, Prefill, Result, RowResult
from ninfer.engine.job import Finish
from ninfer.engine.memory import Memory
from ninfer.engine.scheduler import Scheduler
from ninfer.engine.sequence import MOVES, Sequence, State
from ninfer.faults import Broken, StartupError
from ninfer.settings import ContextCosts, EngineOptions
from tests.sim.fake_device import small
from tests.sim.harness import job, prompt

PAGE = 8


def scheduler(geometry: Geometry, **options: object) -> Scheduler:
    chosen = EngineOptions(costs=ContextCosts(0.0, 1e9, 1e-3, 0.0), **options)  # type: ignore[arg-type]
    return Scheduler(Memory.of(geometry, chosen), chosen, geometry.prefill_chunk)


def outcome(flight: Flight) -> Result:
    """Let every row that samples say 5."""
    sampled = isinstance(flight.unit, Decode) or (isinstance(flight.unit, Prefill) and flight.unit.sample)
    return Result(tuple(RowResult((5,)) for _ in flight.rows) if sampled else ())


def run_cycle(table: Scheduler) -> list[Flight]:
    """Plan a cycle, run it whole, take its tokens and end whoever is full."""
    cycle = table.plan()
    for flight in cycle:
        for landed in table.settle(flight, outcome(flight)):
            seq = landed.seq
            for token in (*landed.control, *landed.tokens):
                seq.take(token)
            if len(seq.outputs) >= seq.capacity and not seq.flying:
                table.evict(seq, Finish.OUTPUT_LIMIT)
    return cycle


arrivals = st.lists(
    st.tuples(st.integers(1, 60), st.integers(1, 40), st.integers(0, 6)), min_size=1, max_size=14
)


@settings(max_examples=150, deadline=None)
@given(arrivals, st.integers(1, 4), st.integers(0, 6), st.sampled_from((0, 100_000)), st.booleans())
def test_every_cycle_of_any_schedule_keeps_the_rules(work, lanes, spare, host, reuse):
    geometry = small(lanes=lanes, pages=16 + spare, max_context=128, prefill_chunk=16, host_bytes=host)
    table = scheduler(geometry, prefix_reuse=reuse, checkpoint_every=16, junction_tokens=1)
    todo = [Sequence(job(prompt(n, seed=n % 3), m), i, m) for i, (n, m, _) in enumerate(work)]
    gaps = [gap for _, _, gap in work]
    passed = dict.fromkeys(todo, 0)
    idle = 0
    while todo or table.roster.waiting or table.roster.residents or table.roster.paused:
        while todo and idle >= gaps[len(gaps) - len(todo)]:
            table.admit(todo.pop(0))
            idle = 0
        idle += 1
        before = list(table.roster.waiting)
        cycle = run_cycle(table)
        check_cycle(cycle, lanes)
        served = {seq for flight in cycle for seq in flight.rows}
        oldest = min({*served, *table.roster.residents}, key=lambda seq: seq.order, default=None)
        assert oldest is None or oldest in served
        admitted = [seq for seq in before if seq.state is not State.QUEUED]
        for seq in before:
            passed[seq] += sum(other.order > seq.order for other in admitted) if seq not in admitted else 0
        table.check()
    assert max(passed.values()) <= lanes
    stats = table.memory.space
    assert stats.pages.statistics().held == stats.slots.statistics().held == 0


def check_cycle(cycle: list[Flight], lanes: int) -> None:
    work = [flight for flight in cycle if isinstance(flight.unit, Prefill | Decode)]
    assert [type(flight.unit) for flight in work] in ([], [Decode], [Prefill], [Decode, Prefill])
    rows = [row.lane for flight in work if isinstance(flight.unit, Decode) for row in flight.unit.rows]
    assert len(rows) == len(set(rows)) <= lanes
    fed = [flight.unit.lane for flight in work if isinstance(flight.unit, Prefill)]
    assert not set(fed) & set(rows)


def test_admission_is_first_come_first_served_when_everything_fits():
    table = scheduler(small(lanes=2, pages=64, max_context=128))
    todo = [Sequence(job(prompt(9, seed=n), 4), n, 4) for n in range(5)]
    for seq in todo:
        table.admit(seq)
    order = []
    while table.roster.waiting or table.roster.residents:
        for flight in run_cycle(table):
            order += [flight.unit.sampling] if isinstance(flight.unit, Bind) else []
    assert len(order) == 5
    assert [seq.state for seq in todo] == [State.DONE] * 5


def test_a_large_head_is_overtaken_as_often_as_there_are_lanes_and_no_more():
    table = scheduler(small(lanes=2, pages=16, max_context=128), prefix_reuse=False)
    holder = Sequence(job(prompt(60), 60), 0, 60)
    head = Sequence(job(prompt(120, seed=1), 1), 1, 1)
    small_ones = [Sequence(job(prompt(5, seed=n), 2), n, 2) for n in range(2, 8)]
    for seq in (holder, head, *small_ones):
        table.admit(seq)
    for _ in range(40):
        run_cycle(table)
    done = [seq.order for seq in small_ones if seq.state is State.DONE]
    assert done == [2, 3]
    while head.state is not State.DONE:
        run_cycle(table)


def test_states_move_only_along_the_table():
    for here, reachable in MOVES.items():
        for there in State:
            seq = Sequence(job(5), 1, 8, state=here)
            if there in reachable:
                seq.move(there)
            else:
                with pytest.raises(Broken):
                    seq.move(there)


def test_every_state_is_reachable_and_every_way_ends():
    reached = {State.QUEUED}
    while more := {there for here in reached for there in MOVES[here]} - reached:
        reached |= more
    assert reached == set(State)
    assert all(State.DONE in reachable for here, reachable in MOVES.items() if here is not State.DONE)


@pytest.mark.parametrize(
    ("geometry", "word"),
    [
        (small(pages=31, max_context=256), "--kv-capacity"),
        (small(lanes=8, slots=7), "slots"),
        (small(lanes=4, pages=3, max_context=8), "lanes"),
    ],
)
def test_a_device_that_cannot_run_one_request_alone_is_refused_at_start(geometry, word):
    with pytest.raises(StartupError, match=re.escape(word)):
        Memory.of(geometry, EngineOptions())


def test_the_engine_knows_no_text_and_no_arrays():
    room = Path(__file__).parents[2] / "ninfer" / "engine"
    for path in room.glob("*.py"):
        words = "json|numpy|cupy" if path.name == "parking.py" else "json|numpy|cupy|trio"
        assert not re.search(rf"^(import|from) ({words})\b", path.read_text(), re.MULTILINE)


def test_the_drawing_of_states_is_the_table():
    page = (Path(__file__).parents[2] / "docs" / "context.md").read_text()
    drawn = set(re.findall(r"^    (\w+) --> (\w+)$", page, re.MULTILINE))
    table = {(a.value, b.value) for a, more in MOVES.items() for b in more if b is not State.DONE}
    assert drawn == table
