"""Conversations over HTTP on the bundled model: how much of the next prompt is known, to the token."""

from __future__ import annotations

from typing import Any

import pytest

from tests.sim.server import World
from tests.whole.kit import STOP, TURN, ask, cached, model

SYSTEM = "You are a helpful assistant. " + "Answer kindly, briefly and with care. " * 8
Message = dict[str, Any]


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def said(answer: Any, *, reasoning: bool = True) -> Message:
    """The assistant's message as a client sends it back."""
    message = answer["choices"][0]["message"]
    kept = {"role": "assistant", "content": message["content"]}
    if reasoning and message.get("reasoning_content"):
        kept["reasoning_content"] = message["reasoning_content"]
    return kept


def boundary(world: World, turn: int = 0) -> int:
    """Where the generation prologue of the ``turn``-th computed prompt begins."""
    prompt = world.device.prompts()[turn]
    return len(prompt) - 1 - prompt[::-1].index(TURN)


def spent(answer: Any) -> int:
    """Everything the first turn left behind: its prompt and its answer, the end-of-turn token included."""
    usage = answer["usage"]
    return int(usage["prompt_tokens"] + usage["completion_tokens"])


# The next turn


@pytest.mark.parametrize("spec", [{}, {"spec": "mtp", "draft_tokens": 3}], ids=["plain", "mtp"])
async def test_kept_thinking_is_known_to_its_last_token(autojump_clock: Any, spec: dict[str, Any]) -> None:
    async with model(**spec) as world:
        history = [user("What is 47 + 38?")]
        for question in ("What is 5 + 6?", "What is 7 + 1?"):
            answer = await ask(world, {"messages": history, "preserve_thinking": True})
            assert answer["choices"][0]["finish_reason"] == "stop"
            assert answer["choices"][0]["message"]["reasoning_content"]
            history = [*history, said(answer), user(question)]
            (*_, last) = (result.rows[0].tokens for result in world.device.results if result.rows)
        third = await ask(world, {"messages": history, "preserve_thinking": True})
        # A stop token that ends a round was never fed, so the state ends just before it.
        unfed = bool(spec) and last[-1] == STOP
        assert cached(third) == spent(answer) - unfed


@pytest.mark.parametrize("sends", [True, False], ids=["sent back", "stripped by the client"])
async def test_dropped_thinking_is_known_up_to_the_answer(autojump_clock: Any, sends: bool) -> None:
    async with model() as world:
        history = [user("What is 47 + 38?")]
        first = await ask(world, {"messages": history})
        second = [*history, said(first, reasoning=sends), user("What is 5 + 6?")]
        answer = await ask(world, {"messages": second})
        assert cached(answer) == boundary(world) > 10


async def test_an_answer_without_thinking_is_known_to_its_last_token(autojump_clock: Any) -> None:
    async with model() as world:
        plain = {"reasoning_effort": "none", "preserve_thinking": True}
        first = await ask(world, {"messages": [user("Count from 3 to 9.")], **plain})
        history = [user("Count from 3 to 9."), said(first), user("Count from 2 to 5.")]
        assert cached(await ask(world, {"messages": history, **plain})) == spent(first)


async def test_a_repeated_prompt_is_known_up_to_its_prologue(autojump_clock: Any) -> None:
    async with model() as world:
        texts = []
        for _ in range(3):
            answer = await ask(world, {"messages": [user("What is 47 + 38?")]})
            texts.append(answer["choices"][0]["message"])
        assert cached(answer) == boundary(world)
        assert texts[0] == texts[1] == texts[2]


# Relatives


async def test_siblings_share_their_system_prompt(autojump_clock: Any) -> None:
    async with model(device_state_slots=8) as world:
        system = {"role": "system", "content": SYSTEM}
        answers = [
            await ask(world, {"messages": [system, user(text)], "max_tokens": 4})
            for text in ("What is 47 + 38?", "Tell me about France.", "Count to ten.")
        ]
        one, two = world.device.prompts()[0], world.device.prompts()[1]
        common = next(i for i in range(len(one)) if one[i] != two[i])
        assert common > 64
        assert cached(answers[2]) >= common - 2  # what the first two have in common, which the third shares


async def test_another_order_of_tools_is_known_only_up_to_the_change(autojump_clock: Any) -> None:
    async with model(device_state_slots=8, max_context=1024) as world:
        tools = [tool(name) for name in ("weather", "mail", "clock", "notes")]
        for order in (tools, [tools[0], *tools[:0:-1]], [tools[0], *tools[:0:-1]]):
            body = {"messages": [user("What is 5 + 6?")], "tools": order, "max_tokens": 3}
            answer = await ask(world, body)
        first, second = world.device.prompts()[:2]
        change = next(i for i in range(len(first)) if first[i] != second[i])
        done = [event["result"] for event in world.events("request_done")]
        assert [one["prefix_cache_hit_tokens"] for one in done][:2] == [0, 0]
        assert f"first difference at token {change}" in done[1]["prefix_miss_reason"]
        assert cached(answer) == boundary(world, 1) > change  # the new order is known as a whole
        body["tools"] = [tools[0], tools[2], tools[1], tools[3]]
        assert 64 < cached(await ask(world, body)) <= change + 2


def tool(name: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"of": {"type": "string", "description": f"whose {name}"}}}
    text = f"Look at the {name} of somebody, and tell me what it says about the next few days."
    return {"type": "function", "function": {"name": name, "description": text, "parameters": schema}}


# The three dialects tell the same


def chat_known(answer: Any) -> tuple[int, int]:
    return answer["usage"]["prompt_tokens"], cached(answer)


def responses_known(answer: Any) -> tuple[int, int]:
    usage = answer["usage"]
    return usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"]


def messages_known(answer: Any) -> tuple[int, int]:
    usage = answer["usage"]
    read = usage["cache_read_input_tokens"]
    return usage["input_tokens"] + read, read


async def test_every_dialect_tells_how_much_was_known(autojump_clock: Any) -> None:
    async with model(device_state_slots=8) as world:
        talk = [{"role": "system", "content": SYSTEM}, user("What is 5 + 6?")]
        chat = {"messages": talk, "reasoning_effort": "none", "max_tokens": 4}
        first = await ask(world, chat)
        frontier = boundary(world)
        assert chat_known(first) == (first["usage"]["prompt_tokens"], 0)
        length = first["usage"]["prompt_tokens"]
        assert chat_known(await ask(world, chat)) == (length, frontier)
        responses = {
            "input": [user("What is 5 + 6?")],
            "instructions": SYSTEM,
            "reasoning": {"effort": "none"},
            "max_output_tokens": 4,
        }
        assert responses_known(await ask(world, responses, "responses")) == (length, frontier)
        messages = {
            "system": SYSTEM,
            "messages": [user("What is 5 + 6?")],
            "thinking": {"type": "disabled"},
            "max_tokens": 4,
        }
        assert messages_known(await ask(world, messages, "messages")) == (length, frontier)


async def test_a_chain_of_responses_goes_on_from_its_parent(autojump_clock: Any) -> None:
    async with model() as world:
        body = {"input": "Count from 3 to 9.", "reasoning": {"effort": "none"}, "preserve_thinking": True}
        first = await ask(world, body, "responses")
        more = {**body, "input": "Count from 2 to 5.", "previous_response_id": first["id"]}
        second = await ask(world, more, "responses")
        assert responses_known(second)[1] == first["usage"]["total_tokens"]
