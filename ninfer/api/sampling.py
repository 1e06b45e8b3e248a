"""Sampling strategies that compose: temperature, then top-k, then top-p.

A pipeline says two things: the values that the engine's own sampler is given (``sampling``), and, for
use on arrays of one's own, the distribution it makes of logits (``probabilities``).

The one thing a reader would get wrong: the engine keeps at most 20 candidates, so a top-k of 0 or above
20 means 20 there; ``probabilities`` does as it is told.
"""

from __future__ import annotations

from typing import Protocol

import attrs
import numpy as np
import numpy.typing as npt

from ninfer.engine.job import COLDEST, Sampling

Logits = npt.NDArray[np.float64]
CANDIDATES = 20


class Strategy(Protocol):
    """One stage: logits (rows, vocab) in, logits out; excluded entries become -inf."""

    def apply(self, logits: Logits) -> Logits:
        """Return changed logits; the argument stays as it is."""

    def settle(self, sampling: Sampling) -> Sampling:
        """Return the engine's sampling values with this stage in them."""


@attrs.frozen
class TemperatureStrategy:
    """Divide logits by ``temperature``; 0 keeps the largest alone."""

    temperature: float = 1.0

    def apply(self, logits: Logits) -> Logits:
        """Return scaled logits."""
        if self.temperature == 0:
            return np.where(logits == logits.max(-1, keepdims=True), logits, -np.inf)
        return logits / max(self.temperature, COLDEST)

    def settle(self, sampling: Sampling) -> Sampling:
        """Set the temperature."""
        return attrs.evolve(sampling, temperature=self.temperature)


@attrs.frozen
class TopKStrategy:
    """Keep the ``k`` largest logits of each row (ties stay); 0 keeps all."""

    k: int = 0

    def apply(self, logits: Logits) -> Logits:
        """Return logits without the rest."""
        if not 0 < self.k < logits.shape[-1]:
            return logits
        least = np.partition(logits, -self.k, axis=-1)[..., -self.k, None]
        return np.where(logits >= least, logits, -np.inf)

    def settle(self, sampling: Sampling) -> Sampling:
        """Set top-k, as far as the engine's candidates go."""
        return attrs.evolve(sampling, top_k=min(self.k, CANDIDATES))


@attrs.frozen
class TopPStrategy:
    """Keep the most probable entries until their sum reaches ``p``; the first always stays."""

    p: float = 1.0

    def apply(self, logits: Logits) -> Logits:
        """Return logits without the tail."""
        order = np.argsort(-logits, axis=-1, kind="stable")
        ranked = np.take_along_axis(softmax(logits), order, -1)
        before = np.cumsum(ranked, -1) - ranked
        kept = np.where(before < self.p, np.take_along_axis(logits, order, -1), -np.inf)
        kept[..., 0] = np.take_along_axis(logits, order, -1)[..., 0]
        out = np.empty_like(kept)
        np.put_along_axis(out, order, kept, -1)
        return out

    def settle(self, sampling: Sampling) -> Sampling:
        """Set top-p."""
        return attrs.evolve(sampling, top_p=self.p)


@attrs.frozen
class SamplingPipeline:
    """Stages in order; usually temperature, top-k, top-p."""

    stages: tuple[Strategy, ...]

    def probabilities(self, logits: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Return the distribution of each row after all stages.  (rows, vocab) -> (rows, vocab)."""
        values = np.array(logits, np.float64)
        for stage in self.stages:
            values = stage.apply(values)
        return softmax(values)

    def sample(self, logits: npt.ArrayLike, rng: np.random.Generator) -> npt.NDArray[np.int64]:
        """Draw one index from each row's distribution."""
        chances = self.probabilities(logits)
        draws = rng.random((*chances.shape[:-1], 1))
        picked = (np.cumsum(chances, -1) <= draws).sum(-1).clip(0, chances.shape[-1] - 1)
        return np.asarray(picked, np.int64)

    def sampling(self, seed: int = 0) -> Sampling:
        """Return the engine's sampling values of this pipeline."""
        values = Sampling(temperature=1.0, seed=seed)
        for stage in self.stages:
            values = stage.settle(values)
        return values


def pipeline(temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> SamplingPipeline:
    """Build the usual three stages."""
    return SamplingPipeline((TemperatureStrategy(temperature), TopKStrategy(top_k), TopPStrategy(top_p)))


def sample(
    logits: npt.ArrayLike,
    rng: np.random.Generator,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
) -> npt.NDArray[np.int64]:
    """Draw one index from each row in one call."""
    return pipeline(temperature, top_k, top_p).sample(logits, rng)


def softmax(logits: Logits) -> npt.NDArray[np.float64]:
    """Return exp(x - max) normalised over the last axis."""
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    total: npt.NDArray[np.float64] = weights / weights.sum(-1, keepdims=True)
    return total
