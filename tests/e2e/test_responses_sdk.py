"""The OpenAI client keeps a conversation through Responses on a real server and the bundled model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from openai import AsyncOpenAI, BadRequestError, NotFoundError, OpenAI
from openai.types.responses import Response, ResponseFunctionToolCall, ResponseReasoningItem

from tests.e2e.server import Live
from tests.e2e.test_chat_sdk import abandons_generators

pytestmark = [pytest.mark.sdk, pytest.mark.slow]
QUESTION = "What is 12 + 30?"
WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "get_weather",
    "description": "Current weather of a city",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
    "strict": False,
}


@pytest.fixture
def client(live: Live) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture
def asked(live: Live) -> dict[str, Any]:
    return {"model": live.model, "temperature": 0}


def test_an_answer_reasons_is_right_and_can_be_retrieved(client: OpenAI, asked: dict[str, Any]) -> None:
    made = client.responses.create(input=QUESTION, **asked)
    assert made.output_text == "12 + 30 = 42" and made.status == "completed"
    thought = made.output[0]
    assert isinstance(thought, ResponseReasoningItem) and thought.summary == []
    assert thought.content and thought.content[0].text
    usage = made.usage
    assert usage is not None and usage.total_tokens == usage.input_tokens + usage.output_tokens
    assert 0 < usage.output_tokens_details.reasoning_tokens < usage.output_tokens
    assert client.responses.retrieve(made.id).to_dict() == made.to_dict()


def test_a_stream_adds_up_to_the_stored_response(client: OpenAI, asked: dict[str, Any]) -> None:
    text, thought, names, last = "", "", [], None
    with client.responses.create(input=QUESTION, stream=True, **asked) as stream:
        for number, event in enumerate(stream):
            assert event.sequence_number == number
            names.append(event.type)
            if event.type == "response.output_text.delta":
                text += event.delta
            elif event.type == "response.reasoning_text.delta":
                thought += event.delta
            elif event.type == "response.completed":
                last = event.response
    assert names[0] == "response.created" and last is not None
    assert text == last.output_text == "12 + 30 = 42"
    assert last.output[0].content[0].text == thought
    assert client.responses.retrieve(last.id).to_dict() == last.to_dict()


def test_the_clients_own_accumulator_follows_the_stream(client: OpenAI, asked: dict[str, Any]) -> None:
    with client.responses.stream(input=QUESTION, **asked) as stream:
        for _ in stream:
            pass
        final = stream.get_final_response()
    assert final.output_text == "12 + 30 = 42"


def test_a_chain_of_three_survives_its_first(client: OpenAI, asked: dict[str, Any]) -> None:
    chain: list[Response] = []
    for words in "My name is Ann.", "What is 2 + 3?", "And what is 12 + 30?":
        before: dict[str, Any] = {"previous_response_id": chain[-1].id} if chain else {}
        chain.append(client.responses.create(input=words, **before, **asked))
    client.responses.delete(chain[0].id)
    with pytest.raises(NotFoundError) as gone:
        client.responses.retrieve(chain[0].id)
    assert gone.value.code == "response_not_found"
    with pytest.raises(NotFoundError):
        client.responses.create(input="x", previous_response_id=chain[0].id, **asked)
    after = client.responses.create(input=QUESTION, previous_response_id=chain[2].id, **asked)
    sizes = [made.usage.input_tokens for made in (*chain, after) if made.usage]
    assert sizes == sorted(sizes) and len(set(sizes)) == 4
    assert after.usage is not None and after.usage.input_tokens_details.cached_tokens > 0


def test_a_tool_loop_of_two_steps_completes(client: OpenAI, asked: dict[str, Any]) -> None:
    first = client.responses.create(input="What is the weather in Paris?", tools=[WEATHER], **asked)  # type: ignore[list-item]
    call = first.output[-1]
    assert isinstance(call, ResponseFunctionToolCall) and call.id != call.call_id
    assert (call.name, call.arguments) == ("get_weather", '{"city":"Paris"}')
    output = {
        "type": "function_call_output",
        "call_id": call.call_id,
        "output": '{"temp": 21, "sky": "sunny"}',
    }
    second = client.responses.create(
        input=[output],  # type: ignore[list-item]
        previous_response_id=first.id,
        tools=[WEATHER],  # type: ignore[list-item]
        **asked,
    )
    assert second.output_text == "It is 21 degrees and sunny in Paris."
    replayed = client.responses.create(
        input=[
            {"role": "user", "content": "What is the weather in Paris?"},
            *[item.to_dict() for item in first.output],  # type: ignore[list-item]
            output,  # type: ignore[list-item]
        ],
        tools=[WEATHER],  # type: ignore[list-item]
        store=False,
        **asked,
    )
    assert replayed.output_text == second.output_text
    assert replayed.usage is not None and second.usage is not None
    assert replayed.usage.input_tokens == second.usage.input_tokens


def test_input_items_come_in_pages(client: OpenAI, asked: dict[str, Any]) -> None:
    words = [{"role": "user", "content": str(n)} for n in range(7)]
    made = client.responses.create(input=words, max_output_tokens=1, **asked)  # type: ignore[arg-type]
    assert made.status == "incomplete" and made.completed_at is None
    listed = client.responses.input_items.list(made.id, order="asc", limit=3)
    texts = [item.content[0].text for item in listed]  # type: ignore[union-attr,index]
    assert texts == list("0123456")
    newest = client.responses.input_items.list(made.id).data[0]
    assert newest.content[0].text == "6"  # type: ignore[union-attr,index]


def test_a_count_is_the_usage_of_its_create(client: OpenAI, asked: dict[str, Any]) -> None:
    first = client.responses.create(input=QUESTION, **asked)
    body: dict[str, Any] = {
        "input": "And 2 + 3?",
        "instructions": "Be brief.",
        "previous_response_id": first.id,
        "tools": [WEATHER],
    }
    counted = client.responses.input_tokens.count(model=asked["model"], **body)
    made = client.responses.create(**body, **asked)
    assert made.usage is not None and counted.input_tokens == made.usage.input_tokens


def test_refusals_reach_the_client_with_their_field(client: OpenAI, asked: dict[str, Any]) -> None:
    with pytest.raises(BadRequestError) as bad:
        client.responses.create(input="x", include=["reasoning.encrypted_content"], **asked)
    assert (bad.value.param, bad.value.code) == (
        "include",
        "include_not_supported",
    ) and bad.value.request_id
    made = client.responses.create(input="x", max_output_tokens=1, **asked)
    with pytest.raises(BadRequestError):
        client.responses.cancel(made.id)
    with pytest.raises(BadRequestError) as compact:
        client.responses.compact(model=asked["model"], input="x")
    assert compact.value.code == "compaction_not_supported"
    with pytest.raises(BadRequestError) as long:
        client.responses.create(input="word " * 9000, **asked)
    assert long.value.code == "context_length_exceeded"


@abandons_generators
async def test_the_async_client_creates_streams_and_chains(live: Live, asked: dict[str, Any]) -> None:
    async with AsyncOpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0) as client:
        first = await client.responses.create(input="My name is Ann.", **asked)
        text, last = "", None
        stream = await client.responses.create(
            input=QUESTION, previous_response_id=first.id, stream=True, **asked
        )
        async with stream:
            async for event in stream:
                if event.type == "response.output_text.delta":
                    text += event.delta
                elif event.type == "response.completed":
                    last = event.response
        assert last is not None and text == last.output_text
        again = await client.responses.create(input=QUESTION, previous_response_id=first.id, **asked)
        assert again.output_text == text
        await client.responses.delete(first.id)
        with pytest.raises(NotFoundError):
            await client.responses.retrieve(first.id)
        third = await client.responses.create(input="Bye.", previous_response_id=last.id, **asked)
        items = await client.responses.input_items.list(third.id)
        assert len(items.data) == 1
        counted = await client.responses.input_tokens.count(model=live.model, input=QUESTION)
        assert counted.input_tokens > 0
