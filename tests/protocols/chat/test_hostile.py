"""Bodies made to hurt: random mutations, huge requests, deep values."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer.faults import Kind, Refused
from ninfer.protocols.chat.handler import chat_routes
from ninfer.protocols.chat.lower import Report, lower_chat
from ninfer.protocols.chat.schema import ChatRequest
from ninfer.protocols.service import Ask
from tests.cost import grows_linearly, least_cost
from tests.protocols.chat.cases import TOOL, TYPES, call
from tests.protocols.chat.test_clients import OPEN_CODE, QWEN_CODE, WEB_UI, WRAPPER
from tests.protocols.fakes import READER, RecordingExchange, ScriptedService, kit, read_json, request
from tests.protocols.mutation import ACTS, Path, changed, places

T = TypeVar("T")

REPORT = Report("chatcmpl-1", 0, "tiny")


def lower(body: object) -> None:
    lower_chat(READER.read(body, ChatRequest), REPORT, "req_1", read_json)


# Mutations: some place of a good body is replaced, dropped, doubled or renamed.

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just("\ud800"),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(sorted(TYPES)), inner, max_size=3)
    ),
    max_leaves=6,
)
WORDS = st.sampled_from(
    [
        "type",
        "role",
        "content",
        "text",
        "function",
        "name",
        "arguments",
        "allowed_tools",
        "mode",
        "tool_calls",
    ]
)


BODIES = [QWEN_CODE, OPEN_CODE, WEB_UI, WRAPPER]
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


@given(
    st.binary(max_size=200) | st.sampled_from([b"{}", b"[" * 2000, b'{"a":1,"a":2}', b'{"model":1e999}'])
)
def test_any_bytes_are_taken_or_refused(raw: bytes) -> None:
    with pytest.raises(Refused) as caught:
        lower(read_json(raw))
    assert caught.value.fault.kind is Kind.INVALID


# Depth


@pytest.mark.parametrize("where", ["parameters", "kwargs"])
def test_free_json_is_bounded_in_depth(where: str) -> None:
    def nested(depth: int) -> dict[str, Any]:
        value: dict[str, Any] = {}
        for _ in range(depth - 1):
            value = {"a": value}
        return value

    def body(depth: int) -> dict[str, Any]:
        free = nested(depth)
        if where == "kwargs":
            return {**WRAPPER, "chat_template_kwargs": free}
        return {**WRAPPER, "tools": [{"type": "function", "function": {"name": "f", "parameters": free}}]}

    lower(body(60))
    with pytest.raises(Refused) as caught:
        lower(body(66))
    assert "is nested too deeply" in caught.value.fault.message


# Size


def big_body() -> bytes:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 1500}}
    parts = [{"type": "text", "text": "x" * 500}, image] * 5_000
    body = {**WRAPPER, "messages": [{"role": "user", "content": parts}], "tools": [TOOL] * 100}
    return json.dumps(body).encode()


@pytest.mark.slow
def test_ten_megabytes_in_ten_thousand_parts_are_lowered_within_a_second_and_a_half() -> None:
    raw = big_body()
    assert len(raw) > 10 << 20

    def lowered() -> Ask:
        return lower_chat(READER.read(read_json(raw), ChatRequest), REPORT, "req_1", read_json)

    assert len(lowered().conversation.messages[0].parts) == 10_000
    assert least_cost(lowered) < 1.5


async def test_a_large_body_is_read_on_a_worker_and_a_small_one_in_place() -> None:
    seen: list[int] = []

    async def run_blocking(work: Callable[[], T]) -> T:
        seen.append(1)
        return work()

    service = ScriptedService()
    (route,) = chat_routes(attrs.evolve(kit(service), run_blocking=run_blocking))
    await route.handler(request(WRAPPER), RecordingExchange())
    assert seen == []
    await route.handler(request(big_body()), RecordingExchange())
    assert seen == [1] and len(service.asks) == 2


def test_time_grows_with_the_length_of_a_history_and_not_with_its_square() -> None:
    pair = [
        {"role": "assistant", "tool_calls": [call()]},
        {"role": "tool", "tool_call_id": "call_1", "content": "r"},
    ]

    def lowering(turns: int) -> Callable[[], object]:
        body = {**WRAPPER, "messages": pair * turns}
        return lambda: lower(body)

    assert grows_linearly(lowering, 600)
