"""Whole requests in the shapes that agent clients send, taken or refused as they stand."""

from __future__ import annotations

from typing import Any

import pytest

from ninfer.prompt.conversation import MediaPart
from ninfer.protocols.chat.handler import chat_routes
from ninfer.protocols.service import Ask
from tests.protocols.fakes import RecordingExchange, ScriptedService, kit, request

READ = {
    "type": "function",
    "function": {
        "name": "read_file",
        "description": "Read a file.",
        "parameters": {
            "type": "object",
            "properties": {"absolute_path": {"type": "string"}, "limit": {"type": "number"}},
            "required": ["absolute_path"],
        },
    },
}
SHELL = {
    "type": "function",
    "function": {
        "name": "run_shell_command",
        "description": "Run a command.",
        "parameters": {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "object",
            "properties": {
                "command": {"type": "string"},
                "is_background": {"type": ["boolean", "null"]},
                "timeout": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            },
            "required": ["command"],
            "additionalProperties": False,
        },
        "strict": False,
    },
}
CALLED = {
    "id": "call_00000000000000a1",
    "type": "function",
    "function": {"name": "read_file", "arguments": '{"absolute_path":"/tmp/a.py"}'},
}


# A terminal coding agent: content always an array, thinking kept in history, sampling spelled out.
QWEN_CODE: dict[str, Any] = {
    "model": "tiny",
    "messages": [
        {"role": "system", "content": [{"type": "text", "text": "You are an agent."}]},
        {"role": "user", "content": [{"type": "text", "text": "What is in a.py?"}]},
        {"role": "assistant", "content": None, "tool_calls": [CALLED], "reasoning_content": "Look first."},
        {"role": "tool", "tool_call_id": CALLED["id"], "content": "print(1)", "name": "read_file"},
        {"role": "assistant", "content": "It prints 1.", "refusal": None, "annotations": []},
        {"role": "user", "content": [{"type": "text", "text": "Run it."}]},
    ],
    "tools": [READ, SHELL],
    "temperature": 0.7,
    "top_p": 0.8,
    "top_k": 20,
    "repetition_penalty": 1.0,
    "max_tokens": 8192,
    "stream": True,
    "stream_options": {"include_usage": True},
    "metadata": {"sessionId": "a-b-c", "promptId": "x########1"},
    "vl_high_resolution_images": True,
}

# An editor agent on a provider SDK: string content, tool_choice auto, effort and a cache key.
OPEN_CODE: dict[str, Any] = {
    "model": "tiny",
    "max_tokens": 32000,
    "temperature": 0.55,
    "top_p": 1,
    "messages": [
        {"role": "system", "content": "You are an editor."},
        {"role": "system", "content": "Environment: linux"},
        {"role": "user", "content": "Fix it."},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [CALLED, {**CALLED, "id": "call_00000000000000a2"}],
        },
        {"role": "tool", "tool_call_id": "call_00000000000000a1", "content": "one"},
        {"role": "tool", "tool_call_id": "call_00000000000000a2", "content": "two"},
    ],
    "tools": [READ, SHELL],
    "tool_choice": "auto",
    "reasoning_effort": "medium",
    "prompt_cache_key": "ses_1",
    "stream": True,
    "stream_options": {"include_usage": True},
}

# A chat front end: images, null everywhere, penalties at zero, a llama.cpp style switch.
WEB_UI: dict[str, Any] = {
    "model": "tiny",
    "stream": True,
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "What is this?"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}},
            ],
        }
    ],
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "logit_bias": None,
    "stop": None,
    "seed": None,
    "user": None,
    "logprobs": None,
    "n": None,
    "timings_per_token": True,
    "return_progress": True,
    "reasoning_format": "auto",
    "chat_template_kwargs": {"enable_thinking": False},
    "cache_prompt": True,
    "samplers": ["top_k", "temperature"],
}

# A generic SDK wrapper that fills in every default it knows.
WRAPPER: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "hi"}],
    "n": 1,
    "logprobs": False,
    "top_logprobs": 0,
    "logit_bias": {},
    "response_format": {"type": "text"},
    "modalities": ["text"],
    "store": False,
    "service_tier": "auto",
    "parallel_tool_calls": True,
    "verbosity": "medium",
    "max_completion_tokens": 64,
    "functions": [],
    "tools": [],
    "stop": [],
}


async def post(body: dict[str, Any]) -> tuple[RecordingExchange, list[Ask]]:
    service, exchange = ScriptedService(), RecordingExchange()
    (route,) = chat_routes(kit(service))
    await route.handler(request(body), exchange)
    return exchange, service.asks


@pytest.mark.parametrize("body", [QWEN_CODE, OPEN_CODE, WEB_UI, WRAPPER])
async def test_an_agents_request_is_taken(body: dict[str, Any]) -> None:
    exchange, asks = await post(body)
    assert exchange.status == 200 and len(asks) == 1
    assert exchange.streamed == bool(body.get("stream"))


async def test_a_terminal_agents_history_arrives_whole() -> None:
    _, (ask,) = await post(QWEN_CODE)
    roles = [message.role for message in ask.conversation.messages]
    assert roles == ["system", "user", "assistant", "tool", "assistant", "user"]
    turn = ask.conversation.messages[2]
    assert (turn.reasoning, turn.calls[0].arguments) == ("Look first.", {"absolute_path": "/tmp/a.py"})
    assert [tool.name for tool in ask.conversation.tools] == ["read_file", "run_shell_command"]
    assert "strict" not in str(ask.conversation.tools[1].definition)
    assert ask.sampling.top_k == 20 and ask.max_tokens == 8192


async def test_an_editor_agents_parallel_calls_arrive_in_order() -> None:
    _, (ask,) = await post(OPEN_CODE)
    assert [call.id[-2:] for call in ask.conversation.messages[3].calls] == ["a1", "a2"]
    assert ask.conversation.options.reasoning_effort == "medium"


async def test_a_front_ends_image_is_media_and_its_switch_is_heard() -> None:
    _, (ask,) = await post(WEB_UI)
    assert isinstance(ask.conversation.messages[0].parts[1], MediaPart)
    assert ask.conversation.options.enable_thinking is False
    assert ask.progress


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    # Structured output of a planner.
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "plan", "schema": {}}}},
        "response_format.type",
        "response_format_not_supported",
    ),
    # A forced first step.
    ({"tool_choice": "required"}, "tool_choice", "tool_choice_not_supported"),
    (
        {"tool_choice": {"type": "function", "function": {"name": "read_file"}}},
        "tool_choice.type",
        "tool_choice_not_supported",
    ),
    # One call at a time.
    ({"parallel_tool_calls": False}, "parallel_tool_calls", "parallel_tool_calls_not_supported"),
    # Strict tools of an SDK that turns them on by itself.
    (
        {"tools": [{"type": "function", "function": {**READ["function"], "strict": True}}]},  # type: ignore[dict-item]
        "tools[0].function.strict",
        "strict_tools_not_supported",
    ),
    # A hosted tool among the functions.
    ({"tools": [READ, {"type": "web_search"}]}, "tools[1].type", "tool_type_not_supported"),
    # Several candidates, token probabilities, stored completions.
    ({"n": 3}, "n", "n_not_supported"),
    ({"logprobs": True, "top_logprobs": 5}, "logprobs", "logprobs_not_supported"),
    ({"store": True}, "store", "store_not_supported"),
    # Another server's sampler.
    ({"repetition_penalty": 1.05}, "repetition_penalty", "repetition_penalty_not_supported"),
    ({"top_k": 40}, "top_k", "invalid_value"),
    ({"top_k": -1}, "top_k", "invalid_value"),
    ({"guided_json": {"type": "object"}}, "guided_json", "constrained_decoding_not_supported"),
]


@pytest.mark.parametrize("change, param, code", REFUSED)
async def test_an_agents_request_is_refused_where_it_asks_too_much(
    change: dict[str, Any], param: str, code: str
) -> None:
    exchange, asks = await post({**QWEN_CODE, **change})
    assert (exchange.status, asks) == (400, [])
    assert (exchange.json["error"]["param"], exchange.json["error"]["code"]) == (param, code)


async def test_an_answer_sent_back_becomes_the_same_turn() -> None:
    from ninfer.protocols.service import ToolCallsDelta
    from tests.protocols.fakes import answer, call, content, reasoning, timings

    made = call("read_file", zeta=1, alpha=[1.5, {"b": None, "a": "ü"}])
    script = answer(reasoning("Hm."), content("I look."), ToolCallsDelta((made,), timings(3)))
    service, exchange = ScriptedService([script]), RecordingExchange()
    (route,) = chat_routes(kit(service))
    await route.handler(request({**WRAPPER, "tools": [READ]}), exchange)
    message = exchange.json["choices"][0]["message"]
    _, (ask,) = await post({**WRAPPER, "messages": [*WRAPPER["messages"], message]})
    turn = ask.conversation.messages[-1]
    assert (turn.reasoning, turn.calls[0].id) == ("Hm.", message["tool_calls"][0]["id"])
    assert str(turn.calls[0].arguments) == str(made.arguments)
