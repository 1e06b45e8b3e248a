"""Whole requests in the shapes that agent clients send, taken or refused as they stand."""

from __future__ import annotations

from typing import Any

import pytest

from ninfer.protocols.service import ToolCallsDelta
from tests.protocols.fakes import answer, call, content, reasoning, timings
from tests.protocols.responses.desk import LOOK, check_stream, desk

SHELL: dict[str, Any] = {
    "type": "function",
    "name": "exec_command",
    "description": "Runs a command in a PTY.",
    "strict": False,
    "parameters": {
        "type": "object",
        "properties": {
            "cmd": {"type": "string"},
            "yield_time_ms": {"type": "number"},
            "sandbox_permissions": {"type": "string"},
        },
        "required": ["cmd"],
        "additionalProperties": False,
    },
}
WEATHER: dict[str, Any] = {
    "type": "namespace",
    "name": "mcp__weather",
    "description": "Weather service",
    "tools": [
        {"type": "function", "name": "get_current", "strict": False, "parameters": {"type": "object"}},
        {"type": "function", "name": "get_forecast", "strict": False, "parameters": {"type": "object"}},
    ],
}

# A terminal coding agent that keeps no state on the server and replays everything it saw.
CODEX: dict[str, Any] = {
    "model": "tiny",
    "instructions": "You are a coding agent.",
    "input": [
        {
            "type": "message",
            "role": "developer",
            "content": [{"type": "input_text", "text": "<permissions instructions>"}],
        },
        {
            "type": "message",
            "role": "user",
            "content": [
                {"type": "input_text", "text": "<environment_context>"},
                {"type": "input_text", "text": "What is the weather, and what is here?"},
            ],
        },
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "Look at both."}],
            "encrypted_content": None,
        },
        {
            "type": "message",
            "role": "assistant",
            "id": "msg_1",
            "content": [{"type": "output_text", "text": "I look."}],
            "phase": "commentary",
        },
        {
            "type": "function_call",
            "id": "fc_1",
            "namespace": "mcp__weather",
            "name": "get_current",
            "arguments": '{"city":"Paris"}',
            "call_id": "call_1",
        },
        {
            "type": "function_call",
            "id": "fc_2",
            "name": "exec_command",
            "arguments": '{"cmd":"ls"}',
            "call_id": "call_2",
        },
        {"type": "function_call_output", "call_id": "call_2", "output": "a.py"},
        {
            "type": "function_call_output",
            "call_id": "call_1",
            "output": [{"type": "input_text", "text": "sunny"}],
        },
    ],
    "tools": [SHELL, WEATHER],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"effort": "medium", "summary": "auto"},
    "store": False,
    "stream": True,
    "include": [],
    "prompt_cache_key": "0199-thread",
    "client_metadata": {"x-codex-installation-id": "abc", "turn": {"id": 1}},
}

# The agents library of the official client: state on the server, everything else spelled out.
AGENTS: dict[str, Any] = {
    "model": "tiny",
    "input": [{"role": "user", "content": "hello"}],
    "instructions": "Help.",
    "include": [],
    "tools": [{**SHELL, "strict": None}],
    "prompt": None,
    "temperature": None,
    "top_p": None,
    "truncation": None,
    "max_output_tokens": None,
    "tool_choice": None,
    "parallel_tool_calls": None,
    "stream": False,
    "store": None,
    "reasoning": None,
    "metadata": {"trace": "1"},
    "previous_response_id": None,
    "conversation": None,
}

# An editor on a provider library: string output, temperature zero, no state.
EDITOR: dict[str, Any] = {
    "model": "tiny",
    "input": [
        {"role": "system", "content": "You edit."},
        {"role": "user", "content": [{"type": "input_text", "text": "Fix it."}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "Done."}], "id": "msg_1"},
        {"role": "user", "content": [{"type": "input_text", "text": "Again."}]},
    ],
    "temperature": 0,
    "max_output_tokens": 32000,
    "store": False,
    "text": {"verbosity": "medium"},
    "stream": True,
    "stream_options": {"include_obfuscation": False},
    "service_tier": "auto",
}
BODIES = [CODEX, AGENTS, EDITOR]


@pytest.mark.parametrize("body", BODIES)
async def test_an_agents_request_is_taken(body: dict[str, Any]) -> None:
    here = desk()
    exchange = await here.post(body)
    assert exchange.status == 200 and len(here.service.asks) == 1
    assert exchange.streamed == bool(body["stream"])


async def test_a_terminal_agents_replay_arrives_whole() -> None:
    here = desk()
    await here.post(CODEX)
    turns = here.ask.conversation.messages
    assert [turn.role for turn in turns] == ["developer", "developer", "user", "assistant", "tool", "tool"]
    assert turns[3].reasoning == "Look at both."
    assert [made.name for made in turns[3].calls] == ["mcp__weather__get_current", "exec_command"]
    assert [turn.call_id for turn in turns[4:]] == ["call_1", "call_2"]
    names = [tool.name for tool in here.ask.conversation.tools]
    assert names == ["exec_command", "mcp__weather__get_current", "mcp__weather__get_forecast"]
    assert here.ask.session is None and here.ask.conversation.options.reasoning_effort == "medium"


async def test_what_a_terminal_agent_was_told_it_can_send_back() -> None:
    made = call("mcp__weather__get_current", zeta=1, alpha=[1.5, {"b": None, "a": "ü"}])
    script = answer(reasoning("Hm."), content("I look."), ToolCallsDelta((made,), timings(3)))
    here = desk(script)
    output = check_stream((await here.post(CODEX)).events)["output"]
    back = {"type": "function_call_output", "call_id": output[2]["call_id"], "output": "x"}
    await here.post({**CODEX, "input": [*CODEX["input"], *output, back]})
    turn = here.ask.conversation.messages[-2]
    assert (turn.reasoning, turn.calls[0].name) == ("Hm.", made.name)
    assert str(turn.calls[0].arguments) == str(made.arguments)


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"include": ["reasoning.encrypted_content"]}, "include", "include_not_supported"),
    (
        {"text": {"format": {"type": "json_schema", "name": "plan", "schema": {}}}},
        "text.format.type",
        "response_format_not_supported",
    ),
    ({"text": {"verbosity": "low"}}, "text.verbosity", "verbosity_not_supported"),
    ({"tools": [SHELL, {"type": "web_search"}]}, "tools[1].type", "tool_type_not_supported"),
    (
        {"tools": [{"type": "custom", "name": "apply_patch", "format": {}}]},
        "tools[0].type",
        "tool_type_not_supported",
    ),
    ({"tools": [{"type": "mcp", "server_label": "x"}]}, "tools[0].type", "tool_type_not_supported"),
    ({"tools": [{**LOOK, "strict": True}]}, "tools[0].strict", "strict_tools_not_supported"),
    ({"tool_choice": "required"}, "tool_choice", "tool_choice_not_supported"),
    ({"parallel_tool_calls": False}, "parallel_tool_calls", "parallel_tool_calls_not_supported"),
    ({"service_tier": "priority"}, "service_tier", "service_tier_not_supported"),
    ({"truncation": "auto"}, "truncation", "truncation_not_supported"),
    ({"background": True}, "background", "background_not_supported"),
    ({"personality": "friendly"}, "personality", "unknown_parameter"),
]


@pytest.mark.parametrize("change, param, code", REFUSED)
async def test_an_agents_request_is_refused_where_it_asks_too_much(
    change: dict[str, Any], param: str, code: str
) -> None:
    here = desk()
    exchange = await here.post({**CODEX, **change})
    assert (exchange.status, here.service.asks) == (400, [])
    assert (exchange.json["error"]["param"], exchange.json["error"]["code"]) == (param, code)
