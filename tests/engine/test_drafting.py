"""The automatic width against a machine that keeps the time: it may win, it must never lose much."""

from __future__ import annotations

import math
import random
import weakref
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer.engine.drafting import Drafting
from ninfer.engine.sequence import Sequence
from tests.sim.harness import job

PLAIN = 0.010  # seconds of a step without drafts


def honest(number: int, seconds: float) -> float:
    return seconds


def ratio(
    chance: float,
    slope: float,
    lanes: int,
    rounds: int,
    drafting: Drafting,
    timer: Callable[[int, float], float] = honest,
) -> float:
    """Tokens a second over those of plain steps, if each draft is right with ``chance``."""
    draw = random.Random(5)
    seqs = [Sequence(job(5, 10**6), n, 10**6) for n in range(lanes)]
    spent, said = 0.0, 0
    for number in range(rounds):
        width = drafting.width(seqs)
        assert width == drafting.width(seqs) and 0 <= width <= drafting.widest
        accepted = []
        for _ in seqs:
            right = 0
            while right < width and draw.random() < chance:
                right += 1
            accepted.append(right)
        seconds = PLAIN * (1 + slope * width)
        drafting.learn(seqs, accepted, [width] * lanes, timer(number, seconds))
        spent, said = spent + seconds, said + sum(accepted) + lanes
    return said / lanes / (spent / PLAIN)


@settings(max_examples=25, deadline=None)
@given(st.floats(0, 1), st.floats(0.01, 2.0), st.integers(1, 8))
def test_it_is_never_much_slower_than_no_drafts(chance, slope, lanes):
    assert ratio(chance, slope, lanes, 1500, Drafting(5, auto=True)) > 0.97


@pytest.mark.parametrize("lanes", [1, 8])
def test_text_that_turns_hostile_costs_little(lanes):
    drafting = Drafting(5, auto=True)
    assert ratio(0.95, 0.3, lanes, 500, drafting) > 1.7
    assert ratio(0.05, 0.3, lanes, 1000, drafting) > 0.97


@given(st.floats(0, 1), st.floats(0.01, 2.0))
@settings(max_examples=25, deadline=None)
def test_measured_beforehand_it_loses_nothing_at_first(chance, slope):
    drafting = Drafting(5, auto=True)
    with drafting.measuring():
        ratio(0.5, slope, 1, 12, drafting)
    assert ratio(chance, slope, 1, 60, drafting) > 0.95


@pytest.mark.parametrize(("chance", "slope"), [(0.95, 0.1), (0.9, 0.3), (0.7, 0.1)])
def test_where_drafts_pay_it_comes_near_the_best_width(chance, slope):
    best = max(sum(chance**i for i in range(width + 1)) / (1 + slope * width) for width in range(6))
    assert ratio(chance, slope, 1, 1500, Drafting(5, auto=True)) > 0.93 * best


WRONG = st.sampled_from([math.inf, -math.inf, math.nan, 0.0, -1.0, 1e-9, 1e-6, 1.0, 1e6, 1e300])


@given(st.dictionaries(st.integers(0, 40), WRONG, max_size=4), st.sampled_from([(0.9, 0.1), (0.05, 0.4)]))
@settings(max_examples=40, deadline=None)
def test_a_clock_that_was_wrong_now_and_then_decides_nothing_for_good(lies, machine):
    drafting = Drafting(5, auto=True)
    ratio(*machine, 1, 900, drafting, lies.get)
    best = max(
        sum(machine[0] ** i for i in range(width + 1)) / (1 + machine[1] * width) for width in range(6)
    )
    assert ratio(*machine, 1, 1000, drafting) > 0.9 * best


@pytest.mark.parametrize("first", range(8))
def test_a_hiccup_in_the_first_round_of_a_width_does_not_end_drafting(first):
    drafting = Drafting(5, auto=True)
    ratio(0.9, 0.1, 1, 400, drafting, lambda number, seconds: seconds * (100 if number == first else 1))
    assert ratio(0.9, 0.1, 1, 600, drafting) > 2.5


def test_what_was_said_is_not_kept_beyond_its_request():
    drafting = Drafting(5, auto=True)
    rows = [Sequence(job(5, 100), 1, 100)]
    for _ in range(40):
        width = drafting.width(rows)
        drafting.learn(rows, [0], [width], PLAIN * (1 + width))
    assert drafting._resting
    (gone,) = map(weakref.ref, rows)
    rows.clear()
    assert gone() is None
