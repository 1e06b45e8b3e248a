"""The OpenAI client chats with a real server on the bundled model."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import trio
from openai import AsyncOpenAI, BadRequestError, NotFoundError, OpenAI

from tests.e2e.server import Live

pytestmark = [pytest.mark.sdk, pytest.mark.slow]
# The async client leaves its own generators unfinished; trio remarks on it, and it is not ours to mend.
abandons_generators = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
QUESTION = [{"role": "user", "content": "What is 12 + 30?"}]


@pytest.fixture
def client(live: Live) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def test_the_log_says_where_it_computes(live: Live) -> None:
    assert re.search(r"INFO (numpy on the CPU|NVIDIA [^|]+) \| weights \d", "".join(live.log))


def test_the_model_is_listed(client: OpenAI, live: Live) -> None:
    assert [model.id for model in client.models.list()] == [live.model]
    assert client.models.retrieve(live.model).id == live.model


def test_an_aggregate_answer_reasons_and_is_right(client: OpenAI, live: Live) -> None:
    answer = client.chat.completions.create(model=live.model, messages=QUESTION, temperature=0)
    message = answer.choices[0].message
    assert message.content == "12 + 30 = 42"
    assert message.reasoning_content  # type: ignore[attr-defined]
    assert answer.choices[0].finish_reason == "stop"
    usage = answer.usage
    assert usage is not None and usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.completion_tokens_details is not None
    assert 0 < usage.completion_tokens_details.reasoning_tokens < usage.completion_tokens


def test_thinking_off_answers_at_once(client: OpenAI, live: Live) -> None:
    answer = client.chat.completions.create(
        model=live.model, messages=QUESTION, temperature=0, reasoning_effort="none"
    )
    assert answer.choices[0].message.content == "12 + 30 = 42"
    assert answer.usage is not None and answer.usage.completion_tokens_details is not None
    assert answer.usage.completion_tokens_details.reasoning_tokens == 0


def test_a_stream_adds_up_to_the_aggregate_and_reports_usage(client: OpenAI, live: Live) -> None:
    whole = client.chat.completions.create(model=live.model, messages=QUESTION, temperature=0)
    text, reasoning, usages = "", "", []
    stream = client.chat.completions.create(
        model=live.model,
        messages=QUESTION,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    with stream:
        for chunk in stream:
            usages.append(chunk.usage)
            for choice in chunk.choices:
                text += choice.delta.content or ""
                reasoning += getattr(choice.delta, "reasoning_content", None) or ""
    assert text == whole.choices[0].message.content
    assert reasoning == whole.choices[0].message.reasoning_content  # type: ignore[attr-defined]
    assert usages[:-1] == [None] * (len(usages) - 1)
    assert usages[-1] is not None and whole.usage is not None
    assert usages[-1].completion_tokens == whole.usage.completion_tokens


@abandons_generators
async def test_eight_concurrent_streams_equal_the_lone_one(live: Live) -> None:
    async with AsyncOpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0) as client:

        async def ask() -> str:
            text = ""
            stream = await client.chat.completions.create(
                model=live.model,
                messages=[{"role": "user", "content": "Tell me a short story."}],
                temperature=0,
                max_tokens=80,
                stream=True,
            )
            async with stream:
                async for chunk in stream:
                    delta = chunk.choices[0].delta
                    text += getattr(delta, "reasoning_content", None) or delta.content or ""
            return text

        lone = await ask()
        answers: list[str] = []

        async def record() -> None:
            answers.append(await ask())

        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(record)
    assert lone and answers == [lone] * 8


def test_refusals_reach_the_client_with_their_field(client: OpenAI, live: Live) -> None:
    with pytest.raises(BadRequestError) as bad:
        client.chat.completions.create(model=live.model, messages=QUESTION, logit_bias={"5": 3})
    assert bad.value.param == "logit_bias" and bad.value.request_id
    with pytest.raises(NotFoundError):
        client.chat.completions.create(model="another", messages=QUESTION)
    with pytest.raises(BadRequestError) as long:
        client.chat.completions.create(
            model=live.model, messages=[{"role": "user", "content": "word " * 9000}]
        )
    assert long.value.code == "context_length_exceeded"


def test_a_tool_loop_of_two_steps_completes(client: OpenAI, live: Live) -> None:
    weather = {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Current weather of a city",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    }
    messages: list[dict[str, object]] = [{"role": "user", "content": "What is the weather in Paris?"}]
    first = client.chat.completions.create(
        model=live.model, messages=messages, tools=[weather], temperature=0
    )
    call = first.choices[0].message.tool_calls[0]  # type: ignore[index]
    assert first.choices[0].finish_reason == "tool_calls"
    assert (call.function.name, call.function.arguments) == ("get_weather", '{"city":"Paris"}')
    messages += [
        first.choices[0].message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": '{"temp": 21, "sky": "sunny"}'},
    ]
    second = client.chat.completions.create(
        model=live.model, messages=messages, tools=[weather], temperature=0
    )
    assert second.choices[0].finish_reason == "stop"
    assert second.choices[0].message.content == "It is 21 degrees and sunny in Paris."
