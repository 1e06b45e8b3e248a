"""The memory account against a plain model, and whatever order its clients come and go in."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ninfer.faults import Broken
from ninfer.media.account import Account

SIZES = {bytes([n]): 3 * n + 1 for n in range(8)}
NEEDS = st.lists(st.sampled_from(sorted(SIZES)), min_size=1, max_size=4, unique=True)


class Dealings(RuleBasedStateMachine):
    """Requests hold, build and release; the model is a list of who holds what."""

    LIMIT, KEEP = 40, 25

    def __init__(self) -> None:
        super().__init__()
        self.account = Account(self.LIMIT, self.KEEP)
        self.holders: list[dict[bytes, int]] = []
        self.built: set[bytes] = set()

    @property
    def referred(self) -> set[bytes]:
        return {key for needs in self.holders for key in needs}

    @rule(keys=NEEDS)
    def hold(self, keys: list[bytes]) -> None:
        needs = {key: SIZES[key] for key in keys}
        before = self.account.statistics()
        fits = sum(SIZES[key] for key in self.referred | set(needs)) <= self.LIMIT
        assert self.account.hold(needs) == fits  # what is only cached never stands in the way
        if fits:
            self.holders.append(needs)
        else:
            assert self.account.statistics() == before

    @rule(data=st.data())
    def build(self, data: st.DataObject) -> None:
        if self.referred:
            key = data.draw(st.sampled_from(sorted(self.referred)))
            self.account.entry(key).value = key

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        if self.holders:
            self.account.release(self.holders.pop(data.draw(st.integers(0, len(self.holders) - 1))))

    @invariant()
    def it_adds_up(self) -> None:
        self.account.check()
        told = self.account.statistics()
        referred = sum(SIZES[key] for key in self.referred)
        assert told.live_bytes == referred + told.cached_bytes
        for key in self.referred:
            entry = self.account.entry(key)
            assert entry.size == SIZES[key] and entry.value in (None, key)
            assert entry.refs == sum(key in needs for needs in self.holders)

    def teardown(self) -> None:
        while self.holders:
            self.account.release(self.holders.pop())
        told = self.account.statistics()
        assert told.live_bytes == told.cached_bytes <= self.KEEP


class Uncached(Dealings):
    """The same without a cache: nothing is alive that nobody refers to."""

    KEEP = 0

    @invariant()
    def nothing_is_kept(self) -> None:
        assert self.account.cached == 0


TestDealings = Dealings.TestCase
TestUncached = Uncached.TestCase
TestDealings.settings = TestUncached.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, derandomize=True
)


def hold_built(account: Account, *keys: bytes) -> None:
    """Hold and build ten bytes under each key."""
    assert account.hold(dict.fromkeys(keys, 10))
    for key in keys:
        account.entry(key).value = key


def test_the_least_recently_used_goes_first() -> None:
    account = Account(limit=30, keep=30)
    for key in (b"a", b"b", b"c", b"a"):
        hold_built(account, key)
        account.release([key])
    hold_built(account, b"d")
    assert account.hold({b"a": 10, b"c": 10}) and account.hits == 3
    account.check()


def test_what_is_wanted_is_not_evicted_for_what_else_is_wanted() -> None:
    account = Account(limit=30, keep=30)
    for key in (b"a", b"b", b"c"):
        hold_built(account, key)
        account.release([key])
    assert account.hold({b"a": 10, b"new": 10})
    assert account.entry(b"a").value == b"a"


def test_what_was_never_built_is_not_kept() -> None:
    account = Account(limit=30, keep=30)
    assert account.hold({b"a": 10})
    account.release([b"a"])
    assert account.statistics().live_bytes == 0


def test_a_second_release_is_our_mistake() -> None:
    account = Account(limit=30, keep=30)
    hold_built(account, b"a")
    account.release([b"a"])
    with pytest.raises(Broken):
        account.release([b"a"])


def test_a_cache_of_ten_thousand_payloads_empties_at_once() -> None:
    account = Account(limit=10**9, keep=10**9)
    keys = [n.to_bytes(4, "big") for n in range(10_000)]
    for key in keys:
        hold_built(account, key)
        account.release([key])
    account.keep = 0
    account.release([])
    account.check()
    assert account.statistics().entries == 0
