"""What a lane remembers between units: its sampler, penalty counts, pending token, open verification.

The one thing a reader would get wrong: counts move when a token is chosen, not when it is committed;
settling a verification to fewer tokens takes the others back.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np

from ninfer.engine.device import Bind, Row
from ninfer.engine.job import Sampling
from ninfer.faults import Broken
from ninfer.ops import sample_numpy as sampler
from ninfer.ops.numpy_state import Floats
from ninfer.ops.sample_numpy import Counts, Purpose, uniform


@attrs.frozen
class Verification:
    """A verification that was not settled yet: the row and the tokens it published."""

    row: Row
    published: tuple[int, ...]


@attrs.define(eq=False)
class Lane:
    """One lane."""

    vocab: int
    sampling: Sampling = attrs.field(factory=Sampling)
    counts: Counts | None = None
    pending: int | None = None
    open: Verification | None = None

    def bind(self, unit: Bind) -> None:
        """Take a new request; forget everything of the old one."""
        self.sampling, self.pending, self.open, self.counts = unit.sampling, None, None, None
        if unit.sampling.presence or unit.sampling.frequency:
            self.counts = Counts(self.vocab)
            for token in unit.generated:
                self.counts.add(token)

    def feed(self, row: Row) -> int:
        """The token that a decode row forwards."""
        token = self.pending if row.token is None else row.token
        if token is None:
            raise Broken(f"lane {row.lane} has no pending token")
        return max(token, 0)  # -1 (a failed row) may be fed once more before the engine has read it

    def publish(self, tokens: Sequence[int]) -> None:
        """Remember chosen tokens."""
        self.pending = tokens[-1]
        if self.counts is not None:
            for token in tokens:
                self.counts.add(token)

    def settle(self, keep: int) -> Verification:
        """Close the open verification with its first ``keep`` positions kept."""
        done = self.open
        if done is None or not 0 <= keep <= len(done.published):
            raise Broken(f"settling {keep} of {done}")
        self.open = None
        if self.counts is not None:
            for token in done.published[keep:]:
                self.counts.add(token, -1)
        if keep:
            self.pending = done.published[keep - 1]
        return done

    def penalise(self, logits: Floats) -> None:
        """Apply penalties to a row of logits in place."""
        if self.counts is not None:
            self.counts.penalise(logits, self.sampling)

    def number(self, position: int, purpose: Purpose) -> float:
        """A random number of this lane's request; any will do when nothing is left to chance."""
        if self.sampling.temperature <= 0:
            return 0.0
        return uniform(self.sampling.seed, position, purpose)


def sample_rows(lanes: Sequence[Lane], logits: Floats, numbers: Sequence[float]) -> list[int]:
    """Choose and publish one token for each lane from (R, V) logits (overwritten)."""
    for lane, row in zip(lanes, logits, strict=True):
        lane.penalise(row)
    tokens: list[int] = sampler.sample(logits, [lane.sampling for lane in lanes], numbers).tolist()
    for lane, token in zip(lanes, tokens, strict=True):
        lane.publish([token])
    return tokens


def judge(lane: Lane, logits: Floats, drafts: Sequence[int], frontier: int) -> tuple[int, ...]:
    """Accept a prefix of one-hot ``drafts`` and add the correction or the bonus.

    ``logits`` (len(drafts) + 1, V): row i follows draft i - 1 and judges draft i.  The result is
    published.  Non-finite rows publish -1 and end the round.
    """
    tokens: list[int] = []
    for i, draft in enumerate(drafts):
        token = _judge_one(lane, logits[i : i + 1], draft, frontier + i + 1)
        tokens.append(token)
        lane.publish([token])
        if token != draft:
            return tuple(tokens)
    at = frontier + len(drafts) + 1
    tokens += sample_rows([lane], logits[-1:], [lane.number(at, Purpose.BONUS)])
    return tuple(tokens)


def _judge_one(lane: Lane, logits: Floats, draft: int, position: int) -> int:
    if not np.isfinite(logits).all():
        return sampler.INVALID
    lane.penalise(logits[0])
    found = sampler.distribution(logits, [lane.sampling])
    accept, correct = (
        np.array([lane.number(position, purpose)], np.float32)
        for purpose in (Purpose.ACCEPT, Purpose.CORRECT)
    )
    stands, other = sampler.speculate(found, np.array([draft], np.int32), accept, correct)
    return draft if stands[0] else int(other[0])
