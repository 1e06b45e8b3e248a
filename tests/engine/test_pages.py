"""The counted pool: it never loses, doubles or shares a number by mistake."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ninfer.engine.pages import Pool
from ninfer.faults import Broken


class PoolLedger(RuleBasedStateMachine):
    """Random takers, sharers and a cache; the pool must agree with their books at every step."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = Pool(12)
        self.holds: list[int] = []
        self.keeps: list[int] = []

    @rule(count=st.integers(0, 14))
    def take(self, count: int) -> None:
        free = self.pool.free
        taken = self.pool.take(count)
        assert (taken is None) == (count > free)
        assert not set(taken or ()) & {*self.holds, *self.keeps}
        self.holds += taken or ()

    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        if live := sorted({*self.holds, *self.keeps}):
            number = data.draw(st.sampled_from(live))
            if data.draw(st.booleans()):
                self.pool.hold([number])
                self.holds.append(number)
            else:
                self.pool.keep([number])
                self.keeps.append(number)

    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        owners = [(self.holds, self.pool.release), (self.keeps, self.pool.forget)]
        claims, move = data.draw(st.sampled_from(owners))
        if claims:
            number = data.draw(st.sampled_from(claims))
            claims.remove(number)
            move([number])

    @invariant()
    def books_agree(self) -> None:
        self.pool.check(self.holds, self.keeps)
        stats = self.pool.statistics()
        assert stats.free + stats.idle + stats.held == stats.total
        assert stats.idle == len(set(self.keeps) - set(self.holds))


PoolLedger.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestPoolLedger = PoolLedger.TestCase


@pytest.mark.parametrize("move", ["release", "forget", "hold", "keep"])
def test_a_free_number_can_neither_be_shared_nor_given_up(move):
    with pytest.raises(Broken):
        getattr(Pool(2), move)([1])


def test_a_page_is_shared_as_soon_as_a_second_owner_has_it():
    pool = Pool(2)
    (page,) = pool.take(1) or ()
    assert not pool.shared(page)
    pool.keep([page])
    assert pool.shared(page)
    pool.release([page])
    assert not pool.shared(page)
    assert pool.idle == 1
