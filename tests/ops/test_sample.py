"""The sampler against its rules, one by one, and against counted draws."""

from __future__ import annotations

import math

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer.api.sampling import pipeline
from ninfer.engine.job import Sampling
from ninfer.ops import sample_numpy as sampler
from ninfer.ops.sample_numpy import INVALID, TOP, Counts, Purpose, uniform

HOT = Sampling(temperature=1.0)


def row(*values: float) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    return np.array([values], np.float32)


def chances(logits: np.ndarray, sampling: Sampling) -> dict[int, float]:
    found = sampler.distribution(logits, [sampling])
    return {int(i): float(p) for i, p in zip(found.ids[0], found.chances[0], strict=True) if p > 0}


# Order and ties


@given(st.lists(st.integers(-8, 8), min_size=1, max_size=300), st.integers(1, 40))
def test_best_are_descending_with_ties_to_the_lower_id(values: list[int], k: int) -> None:
    logits = np.array([values, values[::-1]], np.float32)
    ids, kept = sampler.best_of(logits, k)
    for line, found, value in zip(logits.tolist(), ids.tolist(), kept.tolist(), strict=True):
        wanted = sorted(range(len(line)), key=lambda i: (-line[i], i))[:k]
        assert found == wanted and value == [line[i] for i in wanted]


def test_zero_and_minus_zero_tie() -> None:
    assert sampler.best_of(row(-0.0, 0.0, -0.0), 2)[0].tolist() == [[0, 1]]


def test_temperature_zero_is_certain_of_the_first_argmax() -> None:
    assert chances(row(1, 3, 3, 2), Sampling()) == {1: 1.0}
    mixed = sampler.distribution(np.array([[1, 3, 3, 2]] * 2, np.float32), [Sampling(), HOT])
    assert mixed.chances[0].tolist() == [1, 0, 0, 0]
    assert mixed.chances[1, 0] < 0.5


@given(st.floats(5e-324, 1e-5), st.integers(0, 3), st.sampled_from([1.0, 300.0, -1e9, 1e9]))
def test_however_cold_it_is_the_best_id_is_chosen(temperature: float, best: int, level: float) -> None:
    logits = np.full((1, 4), level, np.float32)
    logits[0, best] += abs(level) / 256  # one step of bf16
    assert chances(logits, Sampling(temperature=temperature)) == {best: 1.0}
    assert pipeline(temperature).probabilities(logits)[0].tolist() == [float(i == best) for i in range(4)]


# Truncation


@pytest.mark.parametrize(("top_k", "width"), [(0, TOP), (25, TOP), (20, TOP), (19, 19), (1, 1)])
def test_top_k_of_zero_and_above_twenty_mean_twenty(top_k: int, width: int) -> None:
    assert len(chances(np.zeros((1, 500), np.float32), attrs.evolve(HOT, top_k=top_k))) == width


def test_top_p_compares_with_the_sum_before_min_p_removes_anything() -> None:
    logits = np.log(row(0.5, 0.2, 0.2, 0.1))
    # min_p 0.3 removes the last; 0.9 of the whole sum is reached only by the third
    assert set(chances(logits, attrs.evolve(HOT, top_p=0.89, min_p=0.3))) == {0, 1, 2}
    # of the reduced sum (0.9) it would have been reached by two: 0.7 / 0.9 = 0.78
    assert set(chances(logits, attrs.evolve(HOT, top_p=0.75, min_p=0.3))) == {0, 1, 2}
    assert set(chances(logits, attrs.evolve(HOT, top_p=0.7, min_p=0.3))) == {0, 1}


def test_top_p_includes_the_id_that_reaches_it() -> None:
    logits = np.log(row(0.5, 0.3, 0.2))
    assert set(chances(logits, attrs.evolve(HOT, top_p=0.51))) == {0, 1}
    assert set(chances(logits, attrs.evolve(HOT, top_p=0.49))) == {0}


def test_one_id_always_survives() -> None:
    assert set(chances(row(0, 1, 2), attrs.evolve(HOT, top_p=0.0, min_p=1.0))) == {2}


@given(
    st.lists(st.floats(-30, 30, width=32), min_size=2, max_size=60),
    st.floats(0.1, 4),
    st.integers(0, 30),
    st.floats(0, 1),
    st.floats(0, 1),
)
def test_distribution_follows_the_walk(
    values: list[float], temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    found, wanted = chances(np.array([values], np.float32), sampling), walk(values, sampling)
    if set(found) == set(wanted):  # a cut within rounding of a bound may fall on either side
        assert found == pytest.approx(wanted, rel=1e-4)
    else:
        assert abs(len(found) - len(wanted)) == 1


def walk(values: list[float], sampling: Sampling) -> dict[int, float]:
    """The rules as they are written, in double precision."""
    k = sampling.top_k if 1 <= sampling.top_k < TOP else TOP
    order = sorted(range(len(values)), key=lambda i: (-values[i], i))[:k]
    weights = [math.exp((values[i] - values[order[0]]) / sampling.temperature) for i in order]
    total, cumulative, kept = sum(weights), 0.0, {}
    for token, weight in zip(order, weights, strict=True):
        if kept and weight < sampling.min_p * weights[0]:
            break
        kept[token] = weight
        cumulative += weight
        if sampling.top_p < 1 and cumulative >= sampling.top_p * total:
            break
    return {token: weight / sum(kept.values()) for token, weight in kept.items()}


# Randomness


def test_uniform_is_a_pinned_function() -> None:
    assert [sampler.splitmix64(x) for x in (0, 1)] == [0xE220A8397B1DCDAF, 0x910A2DEC89025CC1]
    assert uniform(1, 2, Purpose.DECODE) == by_hand(1, 2, 1, 0)
    assert uniform(-5, 10**6, Purpose.CORRECT, 3) == by_hand(-5, 10**6, 3, 3)


def by_hand(seed: int, position: int, purpose: int, sub: int) -> float:
    mask = 2**64 - 1
    key = sampler.splitmix64((seed ^ ((position * 0xD1B54A32D192ED03) & mask)) & mask)
    key = sampler.splitmix64(key ^ (purpose << 21) ^ ((sub * 0x2545F4914F6CDD1D) & mask))
    return (key >> 40) / 2**24


def test_purposes_are_independent_streams() -> None:
    streams = np.array([[uniform(9, at, purpose) for at in range(2000)] for purpose in Purpose])
    assert ((streams >= 0) & (streams < 1)).all()
    assert np.abs(streams.mean(axis=1) - 0.5).max() < 0.03
    assert np.abs(np.corrcoef(streams) - np.eye(len(Purpose))).max() < 0.08


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**20), st.sampled_from(Purpose))
def test_every_seed_and_position_gives_a_number_below_one(seed: int, at: int, purpose: Purpose) -> None:
    assert 0 <= uniform(seed, at, purpose) < 1


def test_choice_picks_the_first_cumulative_chance_above_u_and_falls_through_to_the_last() -> None:
    ids = np.array([[7, 3, 9, 4]] * 4, np.int32)
    parts = np.array([[0.5, 0.25, 0.25, 0.0]] * 4, np.float32)
    picked = sampler.choose(ids, parts, np.array([0, 0.5, 0.74, 1.0], np.float32))
    assert picked.tolist() == [7, 3, 3, 9]


# Penalties


def test_penalties_count_presence_once_and_frequency_each_time() -> None:
    counts = Counts(6)
    for token in (2, 4, 2, 2):
        counts.add(token)
    counts.add(4, -1)
    logits = np.zeros(6, np.float32)
    counts.penalise(logits, Sampling(presence=1.0, frequency=0.25))
    assert logits.tolist() == [0, 0, -1.75, 0, 0, 0]


@given(st.lists(st.tuples(st.integers(-3, 12), st.sampled_from([1, 1, 1, -1])), max_size=60))
def test_counts_equal_a_dictionary(moves: list[tuple[int, int]]) -> None:
    counts, book = Counts(10), dict.fromkeys(range(10), 0)
    for token, times in moves:
        if token in book and book[token] + times >= 0:
            counts.add(token, times)
            book[token] += times
        elif token not in book:
            counts.add(token, times)
    logits = np.zeros(10, np.float32)
    counts.penalise(logits, Sampling(presence=0.5, frequency=0.25))
    assert logits.tolist() == [-0.5 * (book[t] > 0) - 0.25 * book[t] for t in range(10)]


def test_greedy_is_the_argmax_after_penalties() -> None:
    counts = Counts(3)
    counts.add(0)
    logits = row(1.0, 0.5, 0.0)
    counts.penalise(logits[0], Sampling(presence=0.6))
    assert sampler.sample(logits, [Sampling(presence=0.6)], [0.0]).tolist() == [1]


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("sampling", [Sampling(), HOT])
def test_a_row_that_is_not_finite_is_invalid_and_others_are_not(poison: float, sampling: Sampling) -> None:
    logits = np.zeros((3, 400), np.float32)
    logits[:, 7] = 9
    logits[1, 350] = poison
    assert sampler.sample(logits, [sampling] * 3, [0.1] * 3).tolist() == [7, INVALID, 7]


# Rejection sampling

ROUNDS = 100_000
CRITICAL = 27.9  # chi-square, 9 degrees of freedom, one in a thousand


def numbers(seed: int, purpose: Purpose) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return np.array([uniform(seed, at, purpose) for at in range(ROUNDS)], np.float32)


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [HOT, Sampling(temperature=0.7, top_p=0.9, min_p=0.02)])
def test_speculative_sampling_keeps_the_target_distribution(sampling: Sampling) -> None:
    logits = np.random.default_rng(3).standard_normal((1, 10)).astype(np.float32) * 1.5
    target = chances(logits, sampling)
    found = sampler.distribution(np.repeat(logits, ROUNDS, axis=0), [sampling] * ROUNDS)
    drafts = np.random.default_rng(4).integers(0, 10, ROUNDS).astype(np.int32)
    stands, other = sampler.speculate(
        found, drafts, numbers(1, Purpose.ACCEPT), numbers(1, Purpose.CORRECT)
    )
    fits(np.where(stands, drafts, other), target)


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [HOT, Sampling(temperature=0.7, top_p=0.9, min_p=0.02)])
def test_corrections_and_bonus_tokens_keep_their_distributions(sampling: Sampling) -> None:
    """Of rounds with one draft: what replaces a rejected one, and what follows an accepted one."""
    first, second = (
        np.random.default_rng(n).standard_normal((1, 10)).astype(np.float32) * 1.5 for n in (5, 6)
    )
    draft = int(first[0].argmax())
    found = sampler.distribution(np.repeat(first, ROUNDS, axis=0), [sampling] * ROUNDS)
    stands, other = sampler.speculate(
        found,
        np.full(ROUNDS, draft, np.int32),
        numbers(2, Purpose.ACCEPT),
        numbers(2, Purpose.CORRECT),
    )
    bonus = sampler.sample(
        np.repeat(second, ROUNDS, axis=0), [sampling] * ROUNDS, numbers(2, Purpose.BONUS).tolist()
    )
    stood = stands.astype(bool)
    target = chances(first, sampling)
    rest = {token: chance / (1 - target[draft]) for token, chance in target.items() if token != draft}
    fits(other[~stood], rest)
    fits(bonus[stood], chances(second, sampling))
    assert stood.mean() == pytest.approx(target[draft], abs=0.006)


def fits(tokens: np.ndarray, target: dict[int, float]) -> None:
    """Chi-square of drawn tokens against their chances."""
    published = np.bincount(tokens, minlength=10)
    expected = np.array([target.get(token, 0.0) for token in range(10)]) * len(tokens)
    assert published[expected == 0].sum() == 0
    live = expected > 0
    assert ((published - expected)[live] ** 2 / expected[live]).sum() < CRITICAL


def test_greedy_drafts_stand_only_when_they_are_the_argmax() -> None:
    found = sampler.distribution(np.array([[0, 5, 1], [0, 5, 1]], np.float32), [Sampling()] * 2)
    almost = np.full(2, 1 - 2**-24, np.float32)
    stands, other = sampler.speculate(found, np.array([1, 2], np.int32), almost, almost)
    assert stands.tolist() == [1, 0] and other[1] == 1
