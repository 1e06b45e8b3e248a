"""The automatic width against a machine that keeps the time: it may win, it must never lose much."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer.engine.drafting import Drafting
from ninfer.engine.sequence import Sequence
from tests.sim.harness import job

PLAIN = 0.010  # seconds of a step without drafts


def ratio(chance: float, slope: float, lanes: int, rounds: int, drafting: Drafting) -> float:
    """Tokens a second over those of plain steps, if each draft is right with ``chance``."""
    draw = random.Random(5)
    seqs = [Sequence(job(5, 10**6), n, 10**6) for n in range(lanes)]
    spent, said = 0.0, 0
    for _ in range(rounds):
        width = drafting.width(seqs)
        accepted = []
        for _ in seqs:
            right = 0
            while right < width and draw.random() < chance:
                right += 1
            accepted.append(right)
        seconds = PLAIN * (1 + slope * width)
        drafting.learn(seqs, accepted, [width] * lanes, seconds)
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
