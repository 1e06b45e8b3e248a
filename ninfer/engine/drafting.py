"""How many tokens to draft in the next round: as asked, or what has paid best lately.

Owns the running estimates (acceptance by request and overall, device seconds by batch and width) and the
account of what drafting has lost.  Promises that a round never drafts beyond what the request may still
say, nor beyond the thinking budget, that estimates change no greedy text, only its speed, and that
automatic drafting stops while it has lost more than ``PATIENCE`` of the time against plain steps.

The one thing a reader would get wrong: all rows of a batch ask for the same width, because the batch
costs what its widest row costs; a row near its limit then asks for less.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows

import attrs

from ninfer.engine.sequence import Sequence

MEMORY = 0.9  # weight of the past in running means
SLOPE = 0.08  # what one more draft is taken to add to a round's cost before it has been measured
LOOK_AROUND = 48  # every so many rounds a neighbouring width is tried
PATIENCE = 0.015  # share of the time of late rounds that drafting may lose before it has to pause
FORGET = 0.998  # weight of the past in that account


@attrs.define(eq=False)
class Drafting:
    """``widest`` drafts a round at most; ``auto`` chooses below it."""

    widest: int
    auto: bool = False
    acceptance: float = 0.7
    rounds: int = 0
    _cost: dict[tuple[int, int], float] = attrs.field(factory=dict)  # (batch, width) -> seconds
    _spent: float = 0.0  # seconds of late rounds
    _lost: float = 0.0  # of these, what plain steps would have saved

    def width(self, rows: Rows[Sequence]) -> int:
        """Choose the width of the next round of these rows."""
        if not self.auto or not rows:
            return self.widest
        self.rounds += 1
        widest = self._tried(len(rows))
        if self._lost > PATIENCE * self._spent:
            return 0
        best = max(range(widest + 1), key=lambda width: self._yield(rows, width))
        if self.rounds % LOOK_AROUND == 0:
            return min(best + 1, widest)
        if self.rounds % LOOK_AROUND == LOOK_AROUND // 2:
            return max(best - 1, 0)
        return best

    def useful(self, seq: Sequence, width: int) -> int:
        """Bound ``width`` by what ``seq`` may still say and by its thinking budget."""
        left = seq.capacity - len(seq.outputs)
        plan = seq.job.thinking
        if plan is not None and seq.reasoning and not seq.steered[1]:
            left = min(left, max(plan.budget - seq.model_thinking_tokens, 1))
        return max(min(width, left - 1), 0)

    def learn(self, rows: Rows[Sequence], accepted: Rows[int], drafted: Rows[int], seconds: float) -> None:
        """Take in a round: what each row accepted of what it drafted, and what the batch cost."""
        for seq, got, asked in zip(rows, accepted, drafted, strict=True):
            if asked:
                seen = got / min(got + 1, asked)  # of the drafts that were judged at all
                seq.acceptance = _mean(self._of(seq), seen)
                self.acceptance = _mean(self.acceptance, seen)
        key = len(rows), max(drafted, default=0)
        if seconds > 0:
            self._cost[key] = _mean(self._cost.get(key, seconds), seconds)
            self._account(key, sum(accepted) + len(rows))

    def _account(self, key: tuple[int, int], tokens: int) -> None:
        """Book what a round cost beyond the plain steps that would have said as much."""
        batch, plain = key[0], self._cost.get((key[0], 0))
        lost = 0.0 if plain is None else self._cost[key] - plain * tokens / batch
        self._spent = FORGET * self._spent + self._cost[key]
        self._lost = max(FORGET * self._lost + lost, 0.0)

    def _tried(self, batch: int) -> int:
        """Return the widest width worth a look: plain steps first, then one wider than was measured."""
        widths = [width for size, width in self._cost if size == batch]
        return min(max(widths, default=-1) + 1, self.widest)

    def _of(self, seq: Sequence) -> float:
        return self.acceptance if seq.acceptance is None else seq.acceptance

    def _yield(self, rows: Rows[Sequence], width: int) -> float:
        """Return the expected tokens a second of a round this wide."""
        tokens = 0.0
        for seq in rows:
            chance, useful = self._of(seq), self.useful(seq, width)
            tokens += 1 + sum(chance**i for i in range(1, useful + 1))
        return tokens / self._seconds(len(rows), width)

    def _seconds(self, batch: int, width: int) -> float:
        """Return the cost of a round, measured or guessed from the nearest measurement."""
        known = [(abs(b - batch), abs(w - width), w, cost) for (b, w), cost in self._cost.items()]
        if not known:
            return 1 + SLOPE * width
        _, _, measured, cost = min(known)
        return cost * (1 + SLOPE * width) / (1 + SLOPE * measured)


def _mean(past: float, now: float) -> float:
    return MEMORY * past + (1 - MEMORY) * now
