"""Numbered device resources (KV pages, StateImage slots), counted so that nothing can leak.

Owns the free list and two counts for each number: *holds* by running requests and *keeps* by the
prefix cache.  A number is free (neither), idle (kept only: the cache may give it back) or held.
Promises that free + idle + held is always the whole and that every move costs O(1) a number.

The one thing a reader would get wrong: a page that is held once and kept once is shared, so
writing to it needs a copy first; ``shared`` says so, the pool itself copies nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from ninfer.faults import Broken


@attrs.frozen
class PoolStatistics:
    """Where every number of a pool is; free + idle + held == total."""

    total: int
    free: int
    idle: int
    held: int


@attrs.define(eq=False)
class Pool:
    """``total`` numbers 0..total-1, each counted."""

    total: int
    _free: list[int] = attrs.field(init=False)
    _holds: list[int] = attrs.field(init=False)
    _keeps: list[int] = attrs.field(init=False)
    _idle: int = 0

    def __attrs_post_init__(self) -> None:
        self._free = list(range(self.total - 1, -1, -1))
        self._holds = [0] * self.total
        self._keeps = [0] * self.total

    @property
    def free(self) -> int:
        """How many numbers nobody has."""
        return len(self._free)

    @property
    def idle(self) -> int:
        """How many numbers the cache alone keeps."""
        return self._idle

    def take(self, count: int) -> tuple[int, ...] | None:
        """Hold ``count`` free numbers, or take none and return None."""
        if count > len(self._free):
            return None
        taken = tuple(self._free.pop() for _ in range(count))
        for number in taken:
            self._holds[number] = 1
        return taken

    def hold(self, numbers: Iterable[int]) -> None:
        """Add a hold to numbers that are held or kept already."""
        for number in numbers:
            self._must_live(number)
            if not self._holds[number]:
                self._idle -= 1
            self._holds[number] += 1

    def release(self, numbers: Iterable[int]) -> None:
        """Give up one hold of each number."""
        for number in numbers:
            if not self._holds[number]:
                raise Broken(f"release of {number}, which nobody holds")
            self._holds[number] -= 1
            if not self._holds[number]:
                self._rest(number)

    def keep(self, numbers: Iterable[int]) -> None:
        """Add a keep of the cache to numbers that are held or kept already."""
        for number in numbers:
            self._must_live(number)
            self._keeps[number] += 1

    def forget(self, numbers: Iterable[int]) -> None:
        """Give up one keep of each number."""
        for number in numbers:
            if not self._keeps[number]:
                raise Broken(f"forget of {number}, which the cache does not keep")
            self._keeps[number] -= 1
            if not self._keeps[number] and not self._holds[number]:
                self._idle -= 1
                self._free.append(number)

    def shared(self, number: int) -> bool:
        """Whether more than one owner has this number."""
        return self._holds[number] + self._keeps[number] > 1

    def held(self, number: int) -> bool:
        """Whether any running request has this number."""
        return self._holds[number] > 0

    def lives(self, number: int) -> bool:
        """Whether anyone has this number."""
        return self._holds[number] + self._keeps[number] > 0

    def statistics(self) -> PoolStatistics:
        """Say where every number is."""
        free = len(self._free)
        return PoolStatistics(self.total, free, self._idle, self.total - free - self._idle)

    def check(self, holds: Iterable[int], keeps: Iterable[int] = ()) -> None:
        """Raise ``Broken`` unless the counts are exactly what the owners claim to have."""
        claims = [[0, 0] for _ in range(self.total)]
        for number in holds:
            claims[number][0] += 1
        for number in keeps:
            claims[number][1] += 1
        for number, claim in enumerate(claims):
            if claim != [self._holds[number], self._keeps[number]]:
                raise Broken(
                    f"{number}: claimed {claim}, counted {self._holds[number], self._keeps[number]}"
                )
        if sorted(self._free) != [number for number, claim in enumerate(claims) if claim == [0, 0]]:
            raise Broken("the free list is not the numbers that nobody claims")
        if self._idle != sum(not held and kept > 0 for held, kept in claims):
            raise Broken("the idle count drifted")

    def _must_live(self, number: int) -> None:
        if not self.lives(number):
            raise Broken(f"{number} is free and cannot be shared")

    def _rest(self, number: int) -> None:
        if self._keeps[number]:
            self._idle += 1
        else:
            self._free.append(number)
