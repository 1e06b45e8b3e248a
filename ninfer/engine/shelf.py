"""An order in which retained things are given up: least worth first, ageing as others go.

Owns one heap.  Worth is what losing a thing would cost per byte it occupies.  Each time a thing is
given up the floor rises to its value, and things put later start from the floor; so what is not asked
for again sinks, whatever it was worth once (GreedyDual).

The one thing a reader would get wrong: putting a thing again replaces its old entry, and stale heap
entries are skipped when they surface, so every move costs O(log n).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

import attrs

T = TypeVar("T", bound=Hashable)


@attrs.define(eq=False)
class Shelf(Generic[T]):
    """Things by value."""

    floor: float = 0.0
    _heap: list[tuple[float, int, T]] = attrs.field(factory=list)
    _live: dict[T, int] = attrs.field(factory=dict)
    _serial: int = 0

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, thing: T) -> bool:
        return thing in self._live

    def __iter__(self) -> Iterator[T]:
        return iter(self._live)

    def put(self, thing: T, worth: float) -> None:
        """Add a thing, or move it to where its worth now puts it."""
        self._serial += 1
        self._live[thing] = self._serial
        heapq.heappush(self._heap, (self.floor + worth, self._serial, thing))
        if len(self._heap) > 64 + 2 * len(self._live):
            self._heap = [entry for entry in self._heap if self._live.get(entry[2]) == entry[1]]
            heapq.heapify(self._heap)

    def drop(self, thing: T) -> None:
        """Forget a thing, if it is here."""
        self._live.pop(thing, None)

    def lowest(self, accept: Callable[[T], bool], below: float | None = None) -> T | None:
        """Take off the least valuable acceptable thing, if a newcomer worth ``below`` outweighs it."""
        refused = []
        found: T | None = None
        while self._heap and found is None:
            value, serial, thing = entry = heapq.heappop(self._heap)
            if self._live.get(thing) != serial:
                continue
            if below is not None and value >= self.floor + below:
                refused.append(entry)
                break
            if accept(thing):
                del self._live[thing]
                self.floor, found = max(self.floor, value), thing
            else:
                refused.append(entry)
        for entry in refused:
            heapq.heappush(self._heap, entry)
        return found
