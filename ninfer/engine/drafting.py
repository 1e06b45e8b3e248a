"""How many tokens to draft in the next round: as asked, or what has paid best lately.

Owns the running estimates (acceptance by request and overall, seconds by batch and width) and the account
of what drafting has lost.  Promises that a round never drafts beyond what the request may still say, nor
beyond the thinking budget, and that estimates change no greedy text, only its speed.  Automatic drafting
stops while it has lost more than ``PATIENCE`` of the time against plain steps; where it doesn't pay, one
draft is tried whenever that can be expected to keep the losses below ``PROBING``.  No wrong measurement
decides for good: each is held to ``HICCUP`` of what is known, and plain time saves up for a try.

The one thing a reader would get wrong: all rows of a batch ask for the same width, because the batch
costs what its widest row costs; a row near its limit then asks for less.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from collections.abc import Sequence as Rows
from contextlib import contextmanager

import attrs

from ninfer.engine.sequence import Sequence

MEMORY = 0.9  # weight of the past in running means, once there is that much of it
SLOPE = 0.08  # what one more draft is taken to add to a round's cost before it has been measured
LOOK_AROUND = 48  # while drafting pays, every so many rounds a neighbouring width is tried
PATIENCE = 0.015  # share of the time of late rounds that drafting may lose before it has to pause
PROBING = 0.005  # share that it may lose by trying again
FORGET = 0.998  # weight of the past in that account
REST = 8  # for so long plain steps are not put in question
HICCUP = 3.0  # no round is taken to cost more than so many of its kind, nor its kind than so many of it


@attrs.define(eq=False)
class Drafting:
    """``widest`` drafts a round at most; ``auto`` chooses below it."""

    widest: int
    auto: bool = False
    acceptance: float = 0.7
    rounds: int = 0
    _measuring: bool = False
    _cost: dict[tuple[int, int], float] = attrs.field(factory=dict)  # (batch, width) -> seconds
    _seen: dict[tuple[int, int], int] = attrs.field(factory=dict)  # how many rounds that knows
    _spent: float = 0.0  # seconds of late rounds
    _lost: float = 0.0  # of these, what plain steps would have saved
    _plain: float = 0.0  # seconds of plain steps since the last draft
    _resting: tuple[int, ...] = ()  # the order of rows that were found to gain nothing
    _until: int = 0  # the round when that is asked again

    def width(self, rows: Rows[Sequence]) -> int:
        """Choose the width of the next round of these rows; asking again gives the same answer."""
        if not self.auto or not rows:
            return self.widest
        if self._measuring:
            return min(range(self.widest + 1), key=lambda width: self._seen.get((len(rows), width), 0))
        who = tuple(seq.order for seq in rows)
        if self.rounds < self._until and self._resting == who:
            return 0
        widest = self._tried(len(rows))
        best = self._best(rows, widest)
        if self._lost > PATIENCE * self._spent or (best == 0 and not self._affordable(rows)):
            self._resting, self._until = who, self.rounds + REST
            return 0
        if best == 0:
            return min(1, widest)
        if self.rounds % LOOK_AROUND == LOOK_AROUND - 1:
            return min(best + 1, widest)
        if self.rounds % LOOK_AROUND == LOOK_AROUND // 2:
            return best - 1
        return best

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Let every width take its turn, and keep nothing of it but what rounds cost."""
        before = self.acceptance
        self._measuring = True
        try:
            yield
        finally:
            self._measuring, self.acceptance, self._spent, self._lost = False, before, 0.0, 0.0

    def _affordable(self, rows: Rows[Sequence]) -> bool:
        """Whether one round of one draft is likely to keep the account within ``PROBING``."""
        batch, plain = len(rows), self._seconds(len(rows), 0)
        tokens = sum(1 + self._of(seq) * self.useful(seq, 1) for seq in rows)
        loss = self._seconds(batch, 1) - plain * tokens / batch
        return self._lost + loss <= PROBING * max(self._spent, self._plain)

    def _best(self, rows: Rows[Sequence], widest: int) -> int:
        return max(range(widest + 1), key=lambda width: self._yield(rows, width))

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
                share = max(1 / (seq.tally.spec_rounds + 3), 1 - MEMORY)
                seq.acceptance = self._of(seq) + share * (seen - self._of(seq))
                self.acceptance += (1 - MEMORY) * (seen - self.acceptance)
        self.rounds += 1
        if 0 < seconds < math.inf:
            self._measure((len(rows), max(drafted, default=0)), seconds)
            self._account((len(rows), max(drafted, default=0)), sum(accepted) + len(rows))

    def _measure(self, key: tuple[int, int], seconds: float) -> None:
        times = self._seen.get(key, 0)
        share = max(1 / (times + 1), 1 - MEMORY)
        known = self._seconds(*key) if self._cost else seconds
        if known > HICCUP * seconds:  # it was wrong, and with it what was booked
            known, self._spent, self._lost, self._plain = HICCUP * seconds, 0.0, 0.0, 0.0
        self._cost[key] = known + share * (min(seconds, HICCUP * known) - known)
        self._seen[key] = times + 1

    def _account(self, key: tuple[int, int], tokens: int) -> None:
        """Book what a round cost beyond the plain steps that would have said as much."""
        batch, plain = key[0], self._cost.get((key[0], 0))
        lost = 0.0 if plain is None else self._cost[key] - plain * tokens / batch
        self._spent = FORGET * self._spent + self._cost[key]
        self._plain = 0.0 if key[1] else self._plain + self._cost[key]
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
