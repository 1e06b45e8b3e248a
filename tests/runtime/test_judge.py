"""A speculative round on a toy target: what it publishes, column by column."""

from __future__ import annotations

import numpy as np
import pytest

from ninfer.engine.device import Bind
from ninfer.engine.job import Sampling
from ninfer.ops.sample_numpy import Purpose, uniform
from ninfer.runtime.lanes import Lane, judge

GREEDY = Sampling()


def lane_of(sampling: Sampling, generated: tuple[int, ...] = ()) -> Lane:
    lane = Lane(8)
    lane.bind(Bind(0, sampling, generated))
    return lane


def peaks(*tokens: int) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    """Rows whose best ids are ``tokens``, the next id second."""
    logits = np.zeros((len(tokens), 8), np.float32)
    for line, token in zip(logits, tokens, strict=True):
        line[token], line[(token + 1) % 8] = 2, 1
    return logits


@pytest.mark.parametrize(
    ("drafts", "published"),
    [([3, 4], (3, 4, 5)), ([3, 1], (3, 4)), ([1, 4], (3,)), ([], (3,))],
)
def test_greedy_publishes_the_longest_right_prefix_and_one_more(
    drafts: list[int], published: tuple[int, ...]
) -> None:
    lane = lane_of(GREEDY)
    assert judge(lane, peaks(3, 4, 5)[: len(drafts) + 1], drafts, 10) == published
    assert lane.pending == published[-1]


def test_penalties_of_a_column_include_the_drafts_before_it() -> None:
    sampling = Sampling(presence=2.5)
    assert judge(lane_of(sampling), peaks(3, 3, 3), [3, 4], 0) == (3, 4, 0)
    assert judge(lane_of(sampling, generated=(3,)), peaks(3, 3), [3], 0) == (4,)


def test_a_column_that_is_not_finite_ends_the_round() -> None:
    logits = peaks(3, 4, 5)
    logits[1, 0] = np.inf
    assert judge(lane_of(GREEDY), logits, [3, 4], 0) == (3, -1)


def test_random_numbers_are_those_of_position_and_purpose() -> None:
    sampling = Sampling(temperature=1.0, seed=11)
    flat = np.zeros((2, 8), np.float32)
    for frontier in range(40):
        tokens = judge(lane_of(sampling), flat.copy(), [2], frontier)
        stands = uniform(11, frontier + 1, Purpose.ACCEPT) < 1 / 8
        if stands:
            bonus = int(uniform(11, frontier + 2, Purpose.BONUS) * 8)
            assert tokens == (2, bonus)
        else:
            rest = [0, 1, 3, 4, 5, 6, 7]
            assert tokens == (rest[int(uniform(11, frontier + 1, Purpose.CORRECT) * 7)],)
