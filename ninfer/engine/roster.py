"""Who is where: the waiting line, the residents and the paused, each in order of arrival.

Owns the three lists; a request is in at most one of them.  The one thing a reader would get wrong:
requests keep the order in which they arrived, so a list stays sorted although they come back at will.
"""

from __future__ import annotations

from bisect import insort

import attrs

from ninfer.engine.sequence import Sequence


@attrs.frozen
class News:
    """A step of a pause or a recovery; ``route`` is "snapshot", "replay" or None."""

    seq: Sequence
    transition: str
    route: str | None = None


@attrs.define(eq=False)
class Roster:
    """The three groups, and what happened to their members since it was last told."""

    waiting: list[Sequence] = attrs.field(factory=list)
    residents: list[Sequence] = attrs.field(factory=list)
    paused: list[Sequence] = attrs.field(factory=list)
    news: list[News] = attrs.field(factory=list)

    def settle_in(self, seq: Sequence) -> None:
        """Add a resident."""
        insort(self.residents, seq, key=_age)

    def lay_off(self, seq: Sequence) -> None:
        """Turn a resident into a paused request."""
        self.residents.remove(seq)
        insort(self.paused, seq, key=_age)

    def remove(self, seq: Sequence) -> None:
        """Forget a request wherever it is."""
        for group in (self.waiting, self.residents, self.paused):
            if seq in group:
                group.remove(seq)

    def older(self, seq: Sequence) -> list[Sequence]:
        """Return the residents older than ``seq``."""
        return [other for other in self.residents if other.order < seq.order]

    def tell(self, seq: Sequence, transition: str, route: str | None = None) -> None:
        """Note a step of a pause or a recovery."""
        self.news.append(News(seq, transition, route))


def _age(seq: Sequence) -> int:
    return seq.order
