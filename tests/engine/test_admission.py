"""Seats and the checks before the line: refused at once, given back always, counted exactly."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer.engine import admission
from ninfer.engine.admission import Seats
from ninfer.engine.job import ThinkingPlan
from ninfer.faults import Kind, Refused
from tests.sim.harness import job, prompt


def seats(capacity: int) -> Seats:
    return Seats(capacity, 30.0, lambda: 100.0)


@given(st.integers(0, 5), st.lists(st.booleans(), max_size=30))
def test_seats_taken_never_exceed_capacity_and_all_come_back(capacity, moves):
    house, open_seats = seats(capacity), []
    for enters in moves:
        if enters and house.taken < capacity:
            scope = house.take()
            seat = scope.__enter__()
            assert (seat.arrived, seat.deadline) == (100.0, 130.0)
            open_seats.append(scope)
        elif enters:
            with pytest.raises(Refused) as refusal, house.take():
                pass
            assert refusal.value.fault.kind is Kind.OVERLOADED
        elif open_seats:
            open_seats.pop().__exit__(None, None, None)
        assert house.taken == len(open_seats)


def test_a_seat_comes_back_whatever_its_holder_raises():
    house = seats(1)
    for problem in (ValueError, KeyboardInterrupt, SystemExit):
        with pytest.raises(problem), house.take():
            raise problem
        assert house.taken == 0


@given(st.integers(1, 300), st.integers(0, 300), st.integers(1, 300))
def test_output_capacity_is_bounded_by_request_and_context(length, max_tokens, context):
    capacity = admission.output_capacity(length, max_tokens, context)
    assert 0 <= capacity <= max_tokens
    assert length + capacity <= max(context, length)


@given(st.integers(1, 30), st.integers(1, 8), st.integers(0, 60))
def test_a_thinking_budget_is_refused_exactly_where_control_would_be_cut(budget, control, max_tokens):
    plan = ThinkingPlan(budget, (7,) * control)
    work = job(prompt(5, thinking=True), max_tokens, thinking=plan)
    needed = budget + control + 1
    if budget < max_tokens < needed:
        with pytest.raises(Refused, match=str(needed)) as refusal:
            admission.check(work, 1000, 1000)
        assert refusal.value.fault.code == "thinking_budget_capacity_insufficient"
    else:
        assert admission.check(work, 1000, 1000) == max_tokens


def test_an_overlong_prompt_is_told_both_counts():
    with pytest.raises(Refused, match="257 tokens") as refusal:
        admission.check(job(prompt(257)), 256, 1000)
    assert "256" in refusal.value.fault.message
