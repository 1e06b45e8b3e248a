"""Choosing tokens: penalties, the processed distribution, counter-based randomness, rejection sampling.

A row's processed distribution is its ``TOP`` best ids at most, with probabilities after temperature,
top-k, min-p and top-p; temperature 0 is the distribution that is certain of the argmax, so greedy and
sampled rows take the same road.  Randomness is a pure function of (seed, position, purpose, sub), so
tokens do not depend on the batch or the lane.

The one thing a reader would get wrong: top-p compares with the sum over the top-k *before* min-p
removes anything.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence

import attrs
import numpy as np

from ninfer.engine.job import Sampling
from ninfer.ops.numpy_state import Floats, Ints

TOP = 20  # widest distribution
INVALID = -1  # what a row with non-finite logits yields
_MASK = (1 << 64) - 1


class Purpose(enum.IntEnum):
    """What a random number is for; each purpose is its own stream."""

    PREFILL = 0
    DECODE = 1
    ACCEPT = 2
    CORRECT = 3
    BONUS = 4


def splitmix64(x: int) -> int:
    """One step of the splitmix64 generator from state ``x``."""
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) & _MASK
    return x ^ x >> 31


def uniform(seed: int, position: int, purpose: Purpose, sub: int = 0) -> float:
    """A number in [0, 1) with 24 bits, fixed by its four arguments."""
    key = splitmix64((seed ^ position * 0xD1B54A32D192ED03) & _MASK)
    key = splitmix64(key ^ purpose << 21 ^ (sub * 0x2545F4914F6CDD1D & _MASK))
    return float(key >> 40) / float(1 << 24)


@attrs.define(eq=False)
class Counts:
    """How often a request has generated each id; adding costs O(1), a penalty O(different ids)."""

    vocab: int
    _times: Ints = attrs.field(init=False)
    _seen: Ints = attrs.field(init=False)
    _length: int = 0

    def __attrs_post_init__(self) -> None:
        self._times = np.zeros(self.vocab, np.int32)
        self._seen = np.empty(self.vocab, np.int32)

    def add(self, token: int, times: int = 1) -> None:
        """Count ``token``; a negative ``times`` takes it back."""
        if not 0 <= token < self.vocab:
            return
        known = self._seen[: self._length]
        if self._times[token] == 0 and not (known == token).any():
            self._seen[self._length] = token
            self._length += 1
        self._times[token] += times

    def penalise(self, logits: Floats, sampling: Sampling) -> None:
        """Subtract presence and frequency penalties from a row of logits, in place."""
        ids = self._seen[: self._length]
        times = self._times[ids]
        weight = np.float32(sampling.presence) * (times > 0) + np.float32(sampling.frequency) * times
        logits[ids] -= weight.astype(np.float32)


@attrs.frozen(eq=False)
class Distribution:
    """Processed distributions of R rows, best first: ids and probabilities (R, k), zero where cut."""

    ids: Ints
    chances: Floats


def best_of(logits: Floats, k: int) -> tuple[Ints, Floats]:
    """The k largest of each row, descending, ties to the lower id.  -> ids, values (R, k)."""
    rows, vocab = logits.shape
    k = min(k, vocab)
    if vocab <= 4 * TOP:
        ids = np.argsort(-logits, axis=1, kind="stable")[:, :k].astype(np.int32)
        return ids, np.take_along_axis(logits, ids, axis=1)
    ids = np.empty((rows, k), np.int32)
    floors = np.partition(logits, vocab - k, axis=1)[:, vocab - k]
    for row in range(rows):
        able = np.flatnonzero(logits[row] >= floors[row])
        ids[row] = able[np.argsort(-logits[row, able], kind="stable")[:k]]
    return ids, np.take_along_axis(logits, ids, axis=1)


def distribution(logits: Floats, rows: Sequence[Sampling]) -> Distribution:
    """Process penalised logits (R, V), finite, one ``Sampling`` a row."""
    if all(row.temperature <= 0 for row in rows):
        ids = logits.argmax(axis=1).astype(np.int32)[:, None]
        return Distribution(ids, np.ones(ids.shape, np.float32))
    ids, values = best_of(logits, TOP)
    column = np.arange(ids.shape[1])
    heat = _column(row.temperature if row.temperature > 0 else 1.0 for row in rows)
    width = _column(1 if row.temperature <= 0 else row.top_k or TOP for row in rows)
    scaled: Floats = np.divide(values, heat, dtype=np.float32)
    weights: Floats = np.exp(scaled - scaled[:, :1], dtype=np.float32)
    weights[column >= width] = 0
    total = np.cumsum(weights, axis=1, dtype=np.float32)
    top_p = _column(row.top_p for row in rows)
    enough = (total[:, :-1] >= top_p * total[:, -1:]) & (top_p < 1)
    weights[:, 1:][enough] = 0
    low = weights < _column(row.min_p for row in rows) * weights[:, :1]
    low[:, 0] = False
    weights[low] = 0
    weights /= np.cumsum(weights, axis=1, dtype=np.float32)[:, -1:]
    return Distribution(ids, weights)


def _column(values: Iterable[float]) -> Floats:
    return np.array(list(values), np.float32)[:, None]


def choose(ids: Ints, chances: Floats, u: Floats) -> Ints:
    """Pick one id a row: the first whose cumulative chance exceeds u (R,), else the last possible."""
    total = np.cumsum(chances, axis=1, dtype=np.float32)
    hit = u[:, None] < total
    last = chances.shape[1] - 1 - (chances > 0)[:, ::-1].argmax(axis=1)
    at = np.where(hit.any(axis=1), np.minimum(hit.argmax(axis=1), last), last)
    picked: Ints = np.take_along_axis(ids, at[:, None], axis=1)[:, 0]
    return picked


def chance_of(found: Distribution, tokens: Ints) -> Floats:
    """The processed probability of one token (R,) in each row."""
    chances: Floats = np.where(found.ids == tokens[:, None], found.chances, np.float32(0)).sum(axis=1)
    return chances


def without(found: Distribution, tokens: Ints) -> Floats:
    """Chances (R, k) after a rejection of ``tokens``: the rest, renormalised."""
    rest = found.chances.copy()
    rest[found.ids == tokens[:, None]] = 0
    total = np.cumsum(rest, axis=1, dtype=np.float32)[:, -1:]
    total[total == 0] = 1
    rest /= total
    return rest


def sample(logits: Floats, rows: Sequence[Sampling], numbers: Sequence[float]) -> Ints:
    """Choose a token for each row of penalised logits (R, V, overwritten); -1 where one is not finite."""
    broken = np.flatnonzero(~np.isfinite(logits).all(axis=1))
    logits[broken] = 0
    if all(row.temperature <= 0 for row in rows):
        picked: Ints = logits.argmax(axis=1).astype(np.int32)
    else:
        found = distribution(logits, rows)
        picked = choose(found.ids, found.chances, np.array(numbers, np.float32))
    picked[broken] = INVALID
    return picked


def speculate(found: Distribution, drafts: Ints, accept: Floats, correct: Floats) -> tuple[Ints, Ints]:
    """Judge one-hot drafts, one a row.  -> (accepted (R,) bool as int32, replacement ids (R,)).

    A draft stands iff its uniform number ``accept`` is below its processed probability; a replacement
    is drawn from the rest by ``correct`` and means something only where the draft fell.
    """
    stands = accept < chance_of(found, drafts)
    return stands.astype(np.int32), choose(found.ids, without(found, drafts), correct)
