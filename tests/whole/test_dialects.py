"""Promises that hold on all three endpoints at once, and in a crowd with and without tools."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest

from ninfer.settings import GenerationDefaults
from tests.sim.server import World, request
from tests.whole.kit import PATHS, ask, cached, model

STORY = {"role": "user", "content": "Tell me a short story about a fox."}
BODIES: dict[str, dict[str, Any]] = {
    "chat": {"messages": [STORY]},
    "responses": {"input": [STORY]},
    "messages": {"messages": [STORY]},
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        },
    },
}


@pytest.mark.parametrize("dialect", PATHS)
async def test_an_omitted_limit_is_the_servers_own(autojump_clock: Any, dialect: str) -> None:
    async with model(GenerationDefaults(max_tokens=16)) as world:
        answer = await ask(world, BODIES[dialect], dialect)
    usage = answer["usage"]
    assert usage.get("completion_tokens", usage.get("output_tokens")) == 16
    assert answer.get("max_output_tokens") is None


async def test_a_call_sent_back_alike_is_known_and_in_another_order_only_up_to_it(
    autojump_clock: Any,
) -> None:
    known = []
    for order in ('{"city":"Paris","days":2}', '{"days":2,"city":"Paris"}'):
        async with model(max_context=1024, device_state_slots=8) as world:
            call = {"id": "c", "type": "function"}
            said = {
                "role": "assistant",
                "content": None,
                "reasoning_content": "The user wants get_weather.",
            }
            asked = [{"role": "user", "content": "What is the weather in Paris?"}]
            history = [
                [{**said, "tool_calls": [{**call, "function": {"name": "get_weather", "arguments": text}}]}]
                for text in ('{"city":"Paris","days":2}', order)
            ]
            result = {"role": "tool", "tool_call_id": "c", "content": "sunny"}
            for turn in history:
                talk = {"messages": [*asked, *turn, result], "tools": [WEATHER], "max_tokens": 2}
                answer = await ask(world, talk)
            known.append(cached(answer) / answer["usage"]["prompt_tokens"])
    same, moved = known
    assert 0.5 < moved < same <= 1


def crowd() -> list[dict[str, Any]]:
    """Sixteen sums, no two alike; every other request has a tool."""
    return [
        {
            "messages": [{"role": "user", "content": f"What is {11 + i} + {30 + i}?"}],
            "max_tokens": 14,
            "reasoning_effort": "none",
            "stream": True,
            "stream_options": {"include_usage": True},
            **({"tools": [WEATHER]} if i % 2 else {}),
        }
        for i in range(16)
    ]


async def streamed(world: World, body: dict[str, Any]) -> tuple[set[str], str, dict[str, int]]:
    """Ids, everything said, and counts of usage."""
    raw = json.dumps({"model": "tiny", "temperature": 0, **body}).encode()
    answer = await world.connect().ask(request(PATHS["chat"], raw), "POST")
    lines = [line[6:] for line in answer.body.decode().split("\n") if line.startswith("data: ")]
    chunks = [json.loads(line) for line in lines if line != "[DONE]"]
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    text = "".join(delta.get(name) or "" for delta in deltas for name in ("reasoning_content", "content"))
    calls = json.dumps([delta["tool_calls"] for delta in deltas if "tool_calls" in delta])
    usage = chunks[-1]["usage"]
    counts = {name: usage[name] for name in ("prompt_tokens", "completion_tokens")}
    return {chunk["id"] for chunk in chunks}, text + calls, counts


@pytest.mark.slow
async def test_sixteen_at_once_say_what_each_says_alone(autojump_clock: Any) -> None:
    bodies = crowd()
    async with model(max_concurrency=3, kv_capacity=2048) as world:
        alone = [await streamed(world, body) for body in bodies]
    found: dict[int, Any] = {}
    async with model(max_concurrency=3, kv_capacity=2048) as world:

        async def one(index: int) -> None:
            found[index] = await streamed(world, bodies[index])

        async with anyio.create_task_group() as tasks:
            for index in range(len(bodies)):
                tasks.start_soon(one, index)
    for index, (ids, text, usage) in enumerate(alone):
        assert found[index][1:] == (text, usage)
        assert len(ids) == len(found[index][0]) == 1
    assert len(set().union(*(ids for ids, _, _ in found.values()))) == len(bodies)
