"""Tokens that the drafter has not been told of: plain steps leave them here, and it takes them in together.

Owns, for one lane, the tokens behind the drafter's memory and the hidden states before them, ``MOST`` at
most.  The rows are multiplied one by one as a step's are, to the same bits, but with matrices that stay in
the processor's cache: in a model larger than the cache that costs a fraction.

The one thing a reader would get wrong: that memory lies in the lane's pages.  Whoever keeps those pages, or
the slot, as they are has to have this paid first.
"""

from __future__ import annotations

import attrs
import numpy as np

from ninfer.ops.numpy_state import Floats, Ints
from ninfer.ops.verbs import Step
from ninfer.runtime.steps import int32

MOST = 64


@attrs.define(eq=False)
class Arrears:
    """What is missing from token ``start`` on; ``edges`` are positions of the tokens before."""

    lane: int
    slot: int
    start: int
    table: Ints
    ids: list[int] = attrs.field(factory=list)
    hidden: list[Floats] = attrs.field(factory=list)
    edges: list[Ints] = attrs.field(factory=list)

    def add(self, token: int, hidden: Floats, edge: Ints, table: Ints) -> None:
        """Note a token that is being forwarded, and the state before it."""
        self.ids.append(token)
        self.hidden.append(hidden.copy())
        self.edges.append(edge.copy())
        self.table = table

    @property
    def full(self) -> bool:
        """Whether no more may be left here."""
        return len(self.ids) >= MOST

    def step(self) -> Step:
        """The rows as a pass of the drafter, each at the position before its own."""
        count = len(self.ids)
        return Step(
            kind="verify",
            rows=count,
            sequences=1,
            ids=int32(self.ids),
            positions=np.stack(self.edges, axis=1),
            offsets=int32([0, count]),
            frontiers=int32([self.start]),
            tables=self.table[None],
            slots=int32([self.slot]),
            lanes=int32([self.lane]),
            first=1,
        )
