"""The store: bounded by count and by bytes, least recently used first, chains kept whole."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, precondition, rule

from ninfer.faults import Refused
from ninfer.protocols.responses.store import OVERHEAD, Link, ResponseStore, Stored, footprint
from ninfer.settings import ResponseStoreLimits


def item(size: int) -> dict[str, Any]:
    return {"id": "x", "text": "t" * size}


def stored(id: str, parent: Link | None = None, size: int = 100) -> Stored:
    made = (item(size),), (item(0),)
    link = Link(parent, *made, OVERHEAD + footprint(made))
    return Stored(id, {"id": id, "output": list(link.output)}, link, "session", None, OVERHEAD)


def store(records: int = 100, bytes: int = 1 << 20) -> ResponseStore:
    return ResponseStore(ResponseStoreLimits(records, bytes))


def ids(kept: ResponseStore) -> list[str]:
    return [one.id for one in kept]


def code(act: Any, *given: Any) -> str | None:
    with pytest.raises(Refused) as caught:
        act(*given)
    return caught.value.fault.code


def test_the_least_recently_used_goes_first() -> None:
    kept = store(records=3)
    for id in "abc":
        kept.put(stored(id))
    kept.find("a")
    kept.put(stored("d"))
    assert ids(kept) == ["c", "a", "d"]
    assert code(kept.find, "b") == "response_not_found"


def test_bytes_bound_what_is_kept() -> None:
    one = stored("00")
    kept = store(bytes=3 * (one.size + one.link.size))
    for n in range(20):
        kept.put(stored(f"{n:02}"))
        assert kept.bytes <= kept.limits.bytes
    assert ids(kept) == ["17", "18", "19"]


def test_what_could_never_be_kept_is_refused_and_costs_nothing() -> None:
    kept = store(bytes=20_000)
    kept.put(stored("a"))
    before = kept.bytes
    assert code(kept.put, stored("b", size=30_000)) == "response_store_capacity_exceeded"
    assert (ids(kept), kept.bytes) == (["a"], before)
    parent = stored("c", size=15_000)
    kept.put(parent)
    assert code(kept.put, stored("d", parent.link, 15_000)) == "response_store_capacity_exceeded"


def test_an_ancestors_items_stay_while_a_descendant_holds_them() -> None:
    kept = store()
    first = stored("a")
    second = stored("b", first.link)
    for one in first, second:
        kept.put(one)
    kept.delete("a")
    assert code(kept.find, "a") == "response_not_found"
    assert kept.find("b").link.line() == [first.link, second.link]
    assert kept.bytes == second.size + second.link.total
    kept.delete("b")
    assert kept.bytes == 0


def test_a_parent_that_was_evicted_meanwhile_is_held_again() -> None:
    kept = store()
    parent = stored("a")
    kept.put(parent)
    kept.delete("a")
    child = stored("b", parent.link)
    kept.put(child)
    assert kept.bytes == child.size + child.link.total


def test_a_long_chain_is_built_and_given_back() -> None:
    kept = store(records=1, bytes=1 << 30)
    link = None
    for n in range(20_000):
        one = Stored(str(n), {}, Link(link, (), (), 1), "s", None, 1)
        kept.put(one)
        link = one.link
    assert len(kept.find("19999").link.line()) == 20_000
    kept.delete("19999")
    assert kept.bytes == 0


def test_the_footprint_grows_with_every_byte_and_every_value() -> None:
    assert footprint({"a": "x" * 1000}) - footprint({"a": "x"}) == 999
    assert footprint("ü" * 1000) > 1000
    assert footprint([[] for _ in range(100)]) >= 100 * footprint([])


class Machine(RuleBasedStateMachine):
    """Random puts, finds and deletes against a plain model of what must be kept."""

    links = Bundle("links")

    def __init__(self) -> None:
        super().__init__()
        self.store = store(records=4, bytes=24_000)
        self.model: dict[str, Stored] = {}
        self.count = 0

    @rule(target=links, parent=st.none() | links, size=st.integers(0, 12_000))
    def put(self, parent: Link | None, size: int) -> Any:
        self.count += 1
        one = stored(str(self.count), parent, size)
        if one.size + one.link.total > self.store.limits.bytes:
            assert code(self.store.put, one) == "response_store_capacity_exceeded"
            return multiple()
        self.store.put(one)
        self.model[one.id] = one
        while len(self.model) > 4 or self.cost() > self.store.limits.bytes:
            del self.model[next(iter(self.model))]
        return one.link

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def find(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(sorted(self.model)))
        assert self.store.find(id) is self.model[id]
        self.model[id] = self.model.pop(id)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(sorted(self.model)))
        self.store.delete(id)
        del self.model[id]
        assert code(self.store.delete, id) == "response_not_found"

    def cost(self) -> int:
        held = {link for one in self.model.values() for link in one.link.line()}
        return sum(link.size for link in held) + sum(one.size for one in self.model.values())

    @invariant()
    def as_the_model_says(self) -> None:
        assert ids(self.store) == list(self.model)
        assert self.store.bytes == self.cost() <= self.store.limits.bytes


TestAnyUse = Machine.TestCase
TestAnyUse.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


def test_limits_are_values() -> None:
    assert attrs.astuple(ResponseStoreLimits()) == (1_024, 256 << 20)
