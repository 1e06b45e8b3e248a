"""The Anthropic client talks with a real server on the bundled model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import trio
from anthropic import Anthropic, AsyncAnthropic, BadRequestError
from anthropic.types import Message

from tests.e2e.server import Live

pytestmark = [pytest.mark.sdk, pytest.mark.slow]
# The async client leaves its own generators unfinished; trio remarks on it, and it is not ours to mend.
abandons_generators = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
QUESTION: Any = [{"role": "user", "content": "What is 12 + 30?"}]
PLAIN: dict[str, Any] = {"model": "any-label", "max_tokens": 512, "messages": QUESTION}
# The client's types no longer name the sampling fields of older models; the wire has them.
GREEDY: dict[str, Any] = {**PLAIN, "extra_body": {"temperature": 0}}
WEATHER: Any = {
    "name": "get_weather",
    "description": "Current weather of a city",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}


@pytest.fixture
def client(live: Live) -> Iterator[Anthropic]:
    with Anthropic(base_url=live.url, api_key="none", max_retries=0) as made:
        yield made


def kinds(message: Message) -> list[str]:
    return [block.type for block in message.content]


def text_of(message: Message) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


def unsigned(message: Message) -> list[dict[str, Any]]:
    return [block.to_dict() | {"signature": "", "id": ""} for block in message.content]


def read_tokens(message: Message) -> int:
    return message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0)


def test_an_aggregate_answer_thinks_and_is_right(client: Anthropic) -> None:
    message = client.messages.create(**GREEDY)
    assert kinds(message) == ["thinking", "text"] and text_of(message) == "12 + 30 = 42"
    thought = message.content[0]
    assert thought.type == "thinking" and thought.thinking and thought.signature
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    assert message.id.startswith("msg_") and message.model == "any-label"
    assert message.usage.output_tokens > 0 and message.usage.cache_creation_input_tokens is None
    assert message._request_id


@pytest.mark.parametrize("mode", [{"type": "enabled", "budget_tokens": 1024}, {"type": "adaptive"}])
def test_thinking_can_be_asked_for(client: Anthropic, mode: Any) -> None:
    message = client.messages.create(**{**GREEDY, "max_tokens": 2048}, thinking=mode)
    assert kinds(message) == ["thinking", "text"]


def test_thinking_off_answers_at_once(client: Anthropic) -> None:
    message = client.messages.create(**GREEDY, thinking={"type": "disabled"})
    assert kinds(message) == ["text"] and text_of(message) == "12 + 30 = 42"


def test_a_stream_adds_up_to_the_aggregate(client: Anthropic) -> None:
    whole = client.messages.create(**GREEDY)
    with client.messages.stream(**GREEDY) as stream:
        events = [event.type for event in stream]
        message = stream.get_final_message()
    assert unsigned(message) == unsigned(whole)
    assert read_tokens(message) == read_tokens(whole)
    assert message.usage.output_tokens == whole.usage.output_tokens
    assert message.stop_reason == whole.stop_reason == "end_turn"
    raw = [name for name in events if name not in ("text", "thinking", "signature")]
    assert raw[0] == "message_start" and raw[-2:] == ["message_delta", "message_stop"]
    assert raw.count("content_block_start") == raw.count("content_block_stop") == 2


@abandons_generators
async def test_the_async_client_reads_both_forms_and_many_at_once(live: Live, client: Anthropic) -> None:
    lone = unsigned(client.messages.create(**GREEDY))
    answers: list[list[dict[str, Any]]] = []
    async with AsyncAnthropic(base_url=live.url, api_key="none", max_retries=0) as far:

        async def whole() -> None:
            answers.append(unsigned(await far.messages.create(**GREEDY)))

        async def streamed() -> None:
            async with far.messages.stream(**GREEDY) as stream:
                answers.append(unsigned(await stream.get_final_message()))

        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(whole)
                nursery.start_soon(streamed)
        count = await far.messages.count_tokens(model="m", messages=QUESTION)
    assert answers == [lone] * 8 and count.input_tokens > 0


COUNTED: list[dict[str, Any]] = [
    {},
    {"system": "Be brief."},
    {"system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]},
    {"tools": [WEATHER]},
    {"thinking": {"type": "disabled"}},
    {"messages": [*QUESTION, {"role": "assistant", "content": "12 + 30 ="}]},
]


@pytest.mark.parametrize("change", COUNTED)
def test_a_count_is_what_the_answer_says_it_read(client: Anthropic, change: dict[str, Any]) -> None:
    asked = {**GREEDY, **change, "max_tokens": 4}
    wanted = {"model", "messages", "system", "tools", "thinking"}
    counted = {name: value for name, value in asked.items() if name in wanted}
    assert client.messages.count_tokens(**counted).input_tokens == read_tokens(
        client.messages.create(**asked)
    )


def test_the_same_request_again_reads_the_cache(client: Anthropic) -> None:
    asked = {**GREEDY, "system": "Some instruction. " * 40, "max_tokens": 4}
    first, second = client.messages.create(**asked), client.messages.create(**asked)
    assert (second.usage.cache_read_input_tokens or 0) > 64
    assert read_tokens(first) == read_tokens(second)


def test_a_prefill_is_continued(client: Anthropic) -> None:
    asked = {**GREEDY, "messages": [*QUESTION, {"role": "assistant", "content": "12 + 30 ="}]}
    message = client.messages.create(**asked)
    assert kinds(message) == ["text"] and "42" in text_of(message) and "12" not in text_of(message)


def test_a_stop_sequence_is_named(client: Anthropic) -> None:
    message = client.messages.create(**GREEDY, thinking={"type": "disabled"}, stop_sequences=["= 4"])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "= 4")
    assert text_of(message) == "12 + 30 "


def test_a_limit_is_max_tokens(client: Anthropic) -> None:
    message = client.messages.create(**{**GREEDY, "max_tokens": 3})
    assert (message.stop_reason, message.usage.output_tokens) == ("max_tokens", 3)


@pytest.mark.parametrize("streamed", [False, True])
def test_a_tool_loop_of_two_steps_completes(client: Anthropic, streamed: bool) -> None:
    def ask(messages: Any) -> Message:
        asked = {**GREEDY, "messages": messages, "tools": [WEATHER]}
        if not streamed:
            whole: Message = client.messages.create(**asked)
            return whole
        with client.messages.stream(**asked) as stream:
            return stream.get_final_message()

    messages: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]
    first = ask(messages)
    call = first.content[-1]
    assert first.stop_reason == "tool_use" and call.type == "tool_use"
    assert (call.name, call.input) == ("get_weather", {"city": "Paris"})
    done = {"type": "tool_result", "tool_use_id": call.id, "content": '{"temp": 21, "sky": "sunny"}'}
    messages += [{"role": "assistant", "content": first.content}, {"role": "user", "content": [done]}]
    second = ask(messages)
    assert second.stop_reason == "end_turn"
    assert text_of(second) == "It is 21 degrees and sunny in Paris."
    assert (second.usage.cache_read_input_tokens or 0) > 0


def test_the_beta_client_is_served_alike(client: Anthropic) -> None:
    plain = client.messages.create(**GREEDY)
    beta = client.beta.messages.create(**GREEDY, betas=["interleaved-thinking-2025-05-14"])
    assert [block.to_dict() | {"signature": ""} for block in beta.content] == [
        block.to_dict() | {"signature": ""} for block in plain.content
    ]


def test_refusals_reach_the_client_with_their_field_and_id(client: Anthropic) -> None:
    with pytest.raises(BadRequestError) as bad:
        client.messages.create(**GREEDY, tool_choice={"type": "any"}, tools=[WEATHER])
    body: Any = bad.value.body
    assert body["error"]["message"].startswith("tool_choice.type asks for a forced tool call")
    assert body["request_id"] == bad.value.request_id
    with pytest.raises(BadRequestError) as long:
        client.messages.create(**{**GREEDY, "messages": [{"role": "user", "content": "word " * 9000}]})
    assert "9" in str(long.value) and "8192" in str(long.value)
