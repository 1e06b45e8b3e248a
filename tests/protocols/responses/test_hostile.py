"""Bodies made to hurt: random mutations, huge requests, deep values, long chains."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer.faults import Kind, Refused
from ninfer.protocols.responses.handler import responses_routes
from ninfer.protocols.responses.lower import Plan, lower_create
from ninfer.protocols.responses.schema import CreateRequest
from ninfer.protocols.responses.store import Link, Stored
from tests.cost import grows_linearly, least_cost
from tests.protocols.fakes import READER, RecordingExchange, ScriptedService, kit, read_json, request
from tests.protocols.mutation import ACTS, Path, changed, places
from tests.protocols.responses.cases import TYPES
from tests.protocols.responses.desk import GOOD, LOOK, called, result, said, thought, user
from tests.protocols.responses.test_clients import AGENTS, BODIES

T = TypeVar("T")
KIT = kit(ScriptedService())


def lower(body: object, parent: Stored | None = None) -> Plan:
    return lower_create(READER.read(body, CreateRequest), parent, "tiny", "req_1", KIT)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just("\ud800"),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(sorted(TYPES)), inner, max_size=3)
    ),
    max_leaves=6,
)
NAMES = (
    "type",
    "role",
    "content",
    "text",
    "name",
    "namespace",
    "arguments",
    "call_id",
    "output",
    "id",
    "mode",
)
WORDS = st.sampled_from(NAMES)
PLACES = [(body, place) for body in BODIES for place in places(body)]


@settings(max_examples=400)
@given(
    st.sampled_from(PLACES),
    st.sampled_from(ACTS),
    JSON,
    WORDS,
    st.data(),
)
def test_a_mutated_body_is_taken_or_refused_and_never_breaks(
    where: tuple[dict[str, Any], Path], act: str, new: Any, word: str, data: st.DataObject
) -> None:
    body = changed(where[0], where[1], act, new, word)
    if isinstance(body, dict) and data.draw(st.booleans()):
        body = changed(body, data.draw(st.sampled_from(places(body))), "replace", new, word)
    try:
        lower(body)
    except Refused as refused:
        fault = refused.fault
        assert fault.kind is Kind.INVALID and fault.code
        assert fault.message.startswith(fault.param or "the request body")


ITEMS = st.lists(
    st.sampled_from(
        [
            user(),
            {"role": "developer", "content": "d"},
            said(),
            thought(),
            *[called(id) for id in "ab"],
            *[result(id) for id in "ab"],
        ]
    ),
    max_size=8,
)


@settings(max_examples=300)
@given(ITEMS, ITEMS)
def test_any_items_are_lowered_or_refused_and_a_chain_is_lowered_as_one_list(
    before: list[dict[str, Any]], after: list[dict[str, Any]]
) -> None:
    """Cutting a history into a stored part and a new one changes nothing."""
    try:
        whole = lower({**GOOD, "input": [user(), *before, *after]})
    except Refused:
        return
    spelled = lower({**GOOD, "input": [user(), *before]}).input
    stored = Stored("resp_1", {}, Link(None, spelled, (), 1), "resp_1", None, 1)
    cut = lower({**GOOD, "input": after}, stored)
    assert cut.ask.conversation.messages == whole.ask.conversation.messages


@settings(max_examples=200)
@given(ITEMS)
def test_items_spelled_again_are_the_same_items(given_items: list[dict[str, Any]]) -> None:
    try:
        first = lower({**GOOD, "input": [user(), *given_items]})
    except Refused:
        return
    again = lower({**GOOD, "input": list(first.input)})
    assert again.input == first.input
    assert again.ask.conversation == first.ask.conversation


@given(
    st.binary(max_size=200) | st.sampled_from([b"{}", b"[" * 2000, b'{"a":1,"a":2}', b'{"model":1e999}'])
)
def test_any_bytes_are_taken_or_refused(raw: bytes) -> None:
    with pytest.raises(Refused) as caught:
        lower(read_json(raw))
    assert caught.value.fault.kind is Kind.INVALID


@pytest.mark.parametrize("where", ["parameters", "kwargs", "client_metadata"])
def test_free_json_is_bounded_in_depth(where: str) -> None:
    def body(depth: int) -> dict[str, Any]:
        free: dict[str, Any] = {}
        for _ in range(depth - 1):
            free = {"a": free}
        if where == "parameters":
            return {**GOOD, "tools": [{**LOOK, "parameters": free}]}
        return {**GOOD, "chat_template_kwargs" if where == "kwargs" else where: free}

    lower(body(60))
    with pytest.raises(Refused) as caught:
        lower(body(66))
    assert "is nested too deeply" in caught.value.fault.message


async def test_a_large_body_and_a_large_history_are_worked_on_aside() -> None:
    seen: list[int] = []

    async def run_blocking(work: Callable[[], T]) -> T:
        seen.append(1)
        return work()

    service = ScriptedService()
    routes = responses_routes(attrs.evolve(kit(service), run_blocking=run_blocking))
    create = next(route.handler for route in routes if route.pattern == "/v1/responses")

    async def post(body: dict[str, Any]) -> Any:
        exchange = RecordingExchange()
        await create(request(body), exchange)
        return exchange.json

    await post(AGENTS)
    assert seen == []
    big = await post({**GOOD, "input": "x" * 1_000_000})
    assert len(seen) == 2  # reading, then lowering
    await post({**GOOD, "previous_response_id": big["id"]})
    assert len(seen) == 3 and len(service.asks) == 3


def test_time_grows_with_the_length_of_a_history_and_not_with_its_square() -> None:
    def lowering(turns: int) -> Callable[[], object]:
        body = {**GOOD, "input": [user(), *[called(), result()] * turns]}
        return lambda: lower(body)

    assert grows_linearly(lowering, 600)


@pytest.mark.slow
def test_ten_megabytes_in_ten_thousand_items_are_lowered_within_a_second_and_a_half() -> None:
    raw = json.dumps({**GOOD, "input": [user("x" * 900)] * 10_000}).encode()
    assert len(raw) > 9 << 20
    assert len(lower(read_json(raw)).ask.conversation.messages) == 10_000
    assert least_cost(lambda: lower(read_json(raw))) < 1.5
