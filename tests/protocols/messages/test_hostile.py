"""Messages bodies made to hurt: random mutations, huge requests, deep values, slow histories."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer.faults import Kind, Refused
from ninfer.protocols.messages.lower import Report, lower_prompt, lower_request
from ninfer.protocols.messages.schema import Output, Prompt
from tests.cost import grows_linearly, least_cost
from tests.protocols.fakes import READER, ScriptedService, read_json
from tests.protocols.messages.cases import BLOCKS, GOOD, OUTPUT_TYPES, PROMPT_TYPES, result, turns, use
from tests.protocols.messages.reader import post
from tests.protocols.messages.test_clients import BODIES
from tests.protocols.mutation import ACTS, Path, changed, places

T = TypeVar("T")


def lower(body: object) -> None:
    prompt, output = READER.read(body, Prompt), READER.read(body, Output)
    lower_request(prompt, output, Report("msg_1", prompt.model), "req_1")


NAMES = sorted({*PROMPT_TYPES, *OUTPUT_TYPES, "type", "text", "content", "input", "ttl", "cache_control"})
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["\ud800", *BLOCKS, "user", "assistant", "system", "ephemeral"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=3),
    max_leaves=6,
)
PLACES = [(body, place) for body in BODIES for place in places(body)]


@settings(max_examples=400)
@given(st.sampled_from(PLACES), st.sampled_from(ACTS), JSON, st.sampled_from(NAMES), st.data())
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


ANY_BLOCK = st.fixed_dictionaries(
    {"type": st.sampled_from(BLOCKS)},
    optional={
        "text": st.text(max_size=3),
        "thinking": st.text(max_size=3),
        "data": st.text(max_size=3),
        "id": st.sampled_from(["a", "b"]),
        "tool_use_id": st.sampled_from(["a", "b"]),
        "name": st.just("look"),
        "input": st.just({}),
        "is_error": st.booleans(),
        "content": st.text(max_size=3),
        "cache_control": st.sampled_from([{"type": "ephemeral"}, {"type": "ephemeral", "ttl": "1h"}]),
        "source": st.just({"type": "url", "url": "https://x/y"}),
    },
)
ANY_MESSAGE = st.fixed_dictionaries(
    {
        "role": st.sampled_from(["user", "assistant", "system"]),
        "content": st.text(max_size=3) | st.lists(ANY_BLOCK, max_size=3),
    }
)


@settings(max_examples=400)
@given(st.lists(ANY_MESSAGE, max_size=5), st.booleans())
def test_any_arrangement_of_blocks_is_taken_or_refused(messages: list[Any], cached: bool) -> None:
    body = {**GOOD, "messages": messages, **({"cache_control": {"type": "ephemeral"}} if cached else {})}
    try:
        prompt = READER.read(body, Prompt)
        conversation, _ = lower_prompt(prompt)
    except Refused as refused:
        assert refused.fault.message.startswith(refused.fault.param or "?")
        return
    roles = [message.role for message in conversation.messages]
    for first, second in pairwise(roles):
        assert (first, second) not in {("user", "user"), ("assistant", "assistant"), ("user", "tool")}
    marks: list[Any] = [part for message in conversation.messages for part in message.parts if part.mark]
    marks += [call for message in conversation.messages for call in message.calls if call.mark]
    assert len(marks) <= 4


@given(
    st.binary(max_size=200) | st.sampled_from([b"{}", b"[" * 2000, b'{"a":1,"a":2}', b'{"top_k":1e999}'])
)
def test_any_bytes_are_taken_or_refused(raw: bytes) -> None:
    with pytest.raises(Refused) as caught:
        lower(read_json(raw))
    assert caught.value.fault.kind is Kind.INVALID


@pytest.mark.parametrize("where", ["input_schema", "input", "chat_template_kwargs", "input_examples"])
def test_free_json_is_bounded_in_depth(where: str) -> None:
    def body(depth: int) -> dict[str, Any]:
        free: dict[str, Any] = {}
        for _ in range(depth - 1):
            free = {"a": free}
        tool = {"name": "f", "input_schema": {}}
        changes: dict[str, Any] = {
            "input_schema": {"tools": [{**tool, "input_schema": free}]},
            "input_examples": {"tools": [{**tool, "input_examples": [free]}]},
            "input": turns(("assistant", [use(input=free)]), ("user", [result()])),
            "chat_template_kwargs": {"chat_template_kwargs": free},
        }
        return {**GOOD, **changes[where]}

    lower(body(60))
    with pytest.raises(Refused) as caught:
        lower(body(66))
    assert "is nested too deeply" in caught.value.fault.message


def big_body() -> bytes:
    image = {"type": "base64", "media_type": "image/png", "data": "A" * 1500}
    parts = [{"type": "text", "text": "x" * 500}, {"type": "image", "source": image}] * 5_000
    return json.dumps({**GOOD, "messages": [{"role": "user", "content": parts}]}).encode()


@pytest.mark.slow
def test_ten_megabytes_in_ten_thousand_blocks_are_lowered_within_a_second_and_a_half() -> None:
    raw = big_body()
    assert len(raw) > 10 << 20
    assert least_cost(lambda: lower(read_json(raw))) < 1.5


async def test_a_large_body_is_read_on_a_worker_and_a_small_one_in_place() -> None:
    import attrs

    from ninfer.protocols.messages.handler import messages_routes
    from tests.protocols.fakes import RecordingExchange, kit, request

    seen: list[int] = []

    async def run_blocking(work: Callable[[], T]) -> T:
        seen.append(1)
        return work()

    service = ScriptedService()
    create, count = messages_routes(attrs.evolve(kit(service), run_blocking=run_blocking))
    await create.handler(request(GOOD), RecordingExchange())
    assert seen == []
    await create.handler(request(big_body()), RecordingExchange())
    await count.handler(request(big_body()), RecordingExchange())
    assert seen == [1, 1] and len(service.asks) == 2


@pytest.mark.parametrize("shape", ["many turns", "many calls", "many blocks"])
def test_time_grows_with_the_length_of_a_history_and_not_with_its_square(shape: str) -> None:
    def history(size: int) -> dict[str, Any]:
        if shape == "many blocks":
            return turns(("user", [{"type": "text", "text": "a"}] * (4 * size)))
        if shape == "many calls":
            names = [str(number) for number in range(size)]
            return turns(("assistant", [*map(use, names)]), ("user", [*map(result, names)]))
        return turns(*[("assistant", [use()]), ("user", [result()])] * size)

    def lowering(size: int) -> Callable[[], object]:
        body = {**GOOD, **history(size)}
        return lambda: lower(body)

    assert grows_linearly(lowering, 600)


async def test_a_mutated_body_never_answers_500() -> None:
    for index, (body, place) in enumerate(PLACES):
        if place:
            act = ACTS[index % len(ACTS)]
            changed_body = changed(body, place, act, [None, 5, "x", {}, []][index % 5], "type")
            assert (await post(changed_body)).status in (200, 400)
