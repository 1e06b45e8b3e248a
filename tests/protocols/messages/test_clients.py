"""Request shapes that coding agents and SDKs send, as recorded, and what becomes of them."""

from __future__ import annotations

from typing import Any

import pytest

from ninfer.prompt.conversation import TextPart
from ninfer.protocols.service import Ask, ToolCallsDelta
from tests.protocols.fakes import ScriptedService, answer, call, content, reasoning, timings
from tests.protocols.messages.reader import COUNT, post

BILLING = "x-anthropic-billing-header: cc_version=2.1.15; cc_entrypoint=cli; cch=0a1b2;"
EPHEMERAL = {"type": "ephemeral"}

READ: dict[str, Any] = {
    "name": "Read",
    "description": "Reads a file.",
    "input_schema": {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {"file_path": {"type": "string"}, "limit": {"type": "number"}},
        "required": ["file_path"],
        "additionalProperties": False,
    },
    "eager_input_streaming": True,
}
BASH: dict[str, Any] = {
    "name": "Bash",
    "description": "Runs a command.",
    "input_schema": {
        "type": "object",
        "properties": {"command": {"type": "string"}, "run_in_background": {"type": "boolean"}},
        "required": ["command"],
    },
    "cache_control": EPHEMERAL,
}

# A terminal coding agent: a billing header first, markers on system, tools and the latest message.
CLAUDE_CODE: dict[str, Any] = {
    "model": "claude-opus-4-6",
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "<system-reminder>\nToday is a day.\n</system-reminder>"},
                {"type": "text", "text": "What is in a.py?"},
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Look first.", "signature": "sig_0123456789abcdef"},
                {"type": "text", "text": "I will look."},
                {
                    "type": "tool_use",
                    "id": "toolu_01",
                    "name": "Read",
                    "input": {"file_path": "/tmp/a.py"},
                    "caller": {"type": "direct"},
                },
                {"type": "tool_use", "id": "toolu_02", "name": "Bash", "input": {"command": "ls"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "tool_use_id": "toolu_02",
                    "type": "tool_result",
                    "content": "Exit code 1",
                    "is_error": True,
                },
                {
                    "tool_use_id": "toolu_01",
                    "type": "tool_result",
                    "content": [{"type": "text", "text": "1\tprint(1)"}],
                },
                {
                    "type": "text",
                    "text": "<system-reminder>\nGo on.\n</system-reminder>",
                    "cache_control": EPHEMERAL,
                },
            ],
        },
    ],
    "system": [
        {"type": "text", "text": BILLING},
        {"type": "text", "text": "You are an agent.", "cache_control": {**EPHEMERAL, "ttl": "1h"}},
        {
            "type": "text",
            "text": "Do the work.",
            "cache_control": {**EPHEMERAL, "ttl": "1h", "scope": "global"},
        },
    ],
    "tools": [READ, BASH],
    "metadata": {"user_id": '{"device_id":"d","account_uuid":"","session_id":"s"}'},
    "max_tokens": 32000,
    "thinking": {"type": "adaptive"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "output_config": {"effort": "medium"},
    "stream": True,
}

# The same agent asking for a title: no tools, thinking off.
TITLE: dict[str, Any] = {
    "model": "claude-haiku-4-5-20251001",
    "messages": [{"role": "user", "content": [{"type": "text", "text": "Fix the build"}]}],
    "system": [
        {"type": "text", "text": BILLING},
        {"type": "text", "text": "Name the conversation."},
    ],
    "tools": [],
    "metadata": {"user_id": "u"},
    "max_tokens": 21333,
    "thinking": {"type": "disabled"},
    "temperature": 1,
    "stream": True,
}

# An older agent: a fixed budget, a string system, a prefill on its helper calls.
OLDER: dict[str, Any] = {
    "model": "claude-3-7-sonnet-latest",
    "system": "You are an agent.",
    "messages": [{"role": "user", "content": "hi"}],
    "max_tokens": 16000,
    "thinking": {"type": "enabled", "budget_tokens": 8000},
    "tool_choice": {"type": "auto"},
    "tools": [{**READ, "type": "custom"}],
    "stop_sequences": ["</done>"],
    "top_k": 20,
    "top_p": 0.95,
}
PREFILL: dict[str, Any] = {
    "model": "claude-3-5-haiku-latest",
    "messages": [{"role": "user", "content": "Is it new?"}, {"role": "assistant", "content": "{"}],
    "max_tokens": 512,
    "temperature": 0,
}

BODIES = [CLAUDE_CODE, TITLE, OLDER, PREFILL]


async def ask(body: dict[str, Any]) -> Ask:
    service = ScriptedService()
    exchange = await post(body, service)
    assert exchange.status == 200, exchange.json
    assert exchange.streamed == bool(body.get("stream"))
    return service.asks[0]


@pytest.mark.parametrize("body", BODIES, ids=["agent", "title", "older", "prefill"])
async def test_an_agents_request_is_taken_and_counted(body: dict[str, Any]) -> None:
    asked = await ask(body)
    service = ScriptedService()
    counted = {name: value for name, value in body.items() if name not in ("max_tokens", "stream")}
    assert (await post(counted, service, COUNT)).json == {"input_tokens": 10}
    assert service.counted == [asked.conversation]


async def test_an_agents_history_arrives_whole() -> None:
    asked = await ask(CLAUDE_CODE)
    found = asked.conversation.messages
    assert [message.role for message in found] == ["system", "user", "assistant", "tool", "tool", "user"]
    assert "billing" not in str(asked.conversation)
    assert [part.mark for part in found[0].parts] == [True, True]
    assert (found[2].reasoning, [made.id for made in found[2].calls]) == (
        "Look first.",
        ["toolu_01", "toolu_02"],
    )
    assert [(message.call_id, message.is_error) for message in found[3:5]] == [
        ("toolu_01", False),
        ("toolu_02", True),
    ]
    assert [tool.mark for tool in asked.conversation.tools] == [False, True]
    assert "eager" not in str(asked.conversation.tools)
    options = asked.conversation.options
    assert (options.enable_thinking, options.reasoning_effort, asked.max_tokens) == (True, "medium", 32000)


async def test_an_agent_asks_for_a_title_without_thinking() -> None:
    asked = await ask(TITLE)
    assert (asked.conversation.options.enable_thinking, asked.sampling.temperature) == (False, 1)


async def test_an_older_agents_budget_and_stops_arrive() -> None:
    asked = await ask(OLDER)
    assert (asked.thinking_budget, asked.stop) == (8000, ("</done>",))


async def test_a_billing_header_that_changes_every_turn_changes_nothing() -> None:
    header, *rest = CLAUDE_CODE["system"]
    other = {**header, "text": header["text"].replace("0a1b2", "ffff9"), "cache_control": EPHEMERAL}
    bare = await ask({**CLAUDE_CODE, "system": rest})
    assert await ask(CLAUDE_CODE) == bare == await ask({**CLAUDE_CODE, "system": [other, *rest]})


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"output_config": {"format": {"type": "json_schema", "schema": {}}}}, "output_config.format"),
    ({"tools": [READ, {"type": "web_search_20250305", "name": "web_search"}]}, "tools[1].type"),
    ({"tools": [READ, {**BASH, "defer_loading": True}]}, "tools[1].defer_loading"),
    ({"tools": [{**READ, "strict": True}]}, "tools[0].strict"),
    ({"tool_choice": {"type": "tool", "name": "Read"}}, "tool_choice.type"),
    ({"tool_choice": {"type": "any"}}, "tool_choice.type"),
    ({"thinking": {"type": "adaptive", "display": "omitted"}}, "thinking.display"),
    ({"mcp_servers": [{"type": "url", "url": "https://x", "name": "x"}]}, "mcp_servers"),
    ({"max_tokens": 0}, "max_tokens"),
]


@pytest.mark.parametrize("change, path", REFUSED)
async def test_an_agents_request_is_refused_where_it_asks_too_much(
    change: dict[str, Any], path: str
) -> None:
    service = ScriptedService()
    exchange = await post({**CLAUDE_CODE, **change}, service)
    assert (exchange.status, service.asks) == (400, [])
    assert exchange.json["error"]["message"].startswith(f"{path} asks for ")


async def test_an_answer_sent_back_becomes_the_same_turn() -> None:
    made = call("Read", zeta=1, alpha=[1.5, {"b": None, "a": "ü"}])
    script = answer(reasoning("Hm."), content("I look."), ToolCallsDelta((made,), timings(3)))
    blocks = (await post(OLDER, ScriptedService([script]))).json["content"]
    done = {"type": "tool_result", "tool_use_id": blocks[-1]["id"], "content": "1"}
    history = [
        *OLDER["messages"],
        {"role": "assistant", "content": blocks},
        {"role": "user", "content": [done]},
    ]
    turn = (await ask({**OLDER, "messages": history})).conversation.messages[2]
    assert (turn.reasoning, turn.parts[0]) == ("Hm.", TextPart("I look."))
    assert (turn.calls[0].id, str(turn.calls[0].arguments)) == (blocks[-1]["id"], str(made.arguments))
