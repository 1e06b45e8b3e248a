"""Every refusal of a Messages request that we know, as data.

A row is (change to a good body, the field, what the message says after it).  ``TYPES`` gives the JSON
type of each plain field; every other type is refused there.
"""

from __future__ import annotations

from typing import Any

Row = tuple[dict[str, Any], str, str]

USER: dict[str, Any] = {"role": "user", "content": "hi"}
TOOL: dict[str, Any] = {"name": "look", "description": "Look.", "input_schema": {"type": "object"}}
GOOD: dict[str, Any] = {"model": "any-label", "max_tokens": 64, "messages": [USER]}
EPHEMERAL: dict[str, Any] = {"type": "ephemeral"}


def lacks(what: str) -> str:
    return f"asks for {what}, which NInfer cannot guarantee"


def text(words: str = "hi", **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **more}


def image(**source: Any) -> dict[str, Any]:
    good = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
    return {"type": "image", "source": source or good}


def use(id: str = "t1", **more: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": "look", "input": {}, **more}


def result(id: str = "t1", **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id, **more}


def thinking(words: str = "Hm.", **more: Any) -> dict[str, Any]:
    return {"type": "thinking", "thinking": words, "signature": "s", **more}


def block(value: Any, role: str = "user") -> dict[str, Any]:
    return {"messages": [{"role": role, "content": [value]}, USER]}


def turns(*messages: tuple[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": content} for role, content in messages]}


def shown(value: Any) -> dict[str, Any]:
    """A block inside a tool result."""
    return block(result(content=[value]))


def tool(**change: Any) -> dict[str, Any]:
    return {"tools": [{**TOOL, **change}]}


def marked(count: int) -> list[dict[str, Any]]:
    return [text(f"{number}", cache_control=EPHEMERAL) for number in range(count)]


B0 = "messages[0].content[0]"
REQUIRED = "is required"
NO_OBJECTS: list[Any] = ["{}", [], None, 5]
NO_CONTENT: list[Any] = [None, 5, {}, True]
STRING, OBJECT, ARRAY = "must be a string", "must be an object", "must be an array"
BOOLEAN, INTEGER = "must be a boolean", "must be an integer"
BLOCKS = (
    "text",
    "image",
    "thinking",
    "redacted_thinking",
    "tool_use",
    "tool_result",
    "document",
    "search_result",
    "server_tool_use",
    "web_search_tool_result",
    "web_fetch_tool_result",
    "code_execution_tool_result",
    "bash_code_execution_tool_result",
    "text_editor_code_execution_tool_result",
    "tool_search_tool_result",
    "advisor_tool_result",
    "container_upload",
    "mcp_tool_use",
    "mcp_tool_result",
    "compaction",
    "tool_reference",
    "browser_state",
)
KNOWN_BLOCKS = "must be one of " + ", ".join(f'"{name}"' for name in BLOCKS)
INNER = 'must be one of "text", "image", "document", "search_result", "tool_reference", "browser_state"'
ROLES = 'must be one of "user", "assistant", "system", "developer"'
TTL = 'must be one of "5m", "1h"'
EFFORTS = 'must be one of "low", "medium", "high", "xhigh", "max"'
TOKENS = "must be between 1 and 2147483647 tokens"
BUDGET = "must be between 1024 and 2147483647 tokens"
NAME = "must match [A-Za-z0-9_-]{1,128}"
FORCED = lacks("a forced tool call")
TOOL_TYPE = lacks("tools other than client-executed functions")
FORMAT = lacks("output that follows a schema")
HIDDEN = lacks("reasoning that is hidden and restored later")
URL = "must be an http, https or data URL"
KWARGS = "chat_template_kwargs"

ENVELOPE: list[Row] = [
    ({"model": ""}, "model", "must hold at least 1 character"),
    ({"messages": []}, "messages", "must hold at least 1 message"),
    ({"messages": [5]}, "messages[0]", OBJECT),
    ({"messages": [USER, None]}, "messages[1]", OBJECT),
    ({"messages": [{"content": "x"}]}, "messages[0].role", REQUIRED),
    ({"messages": [{"role": None, "content": "x"}]}, "messages[0].role", STRING),
    *[
        ({"messages": [{"role": role, "content": "x"}]}, "messages[0].role", ROLES)
        for role in ("tool", "User", "function", "")
    ],
    ({"messages": [{"role": "user"}]}, "messages[0].content", REQUIRED),
    *[(turns(("user", bad)), "messages[0].content", "must be a string or an array") for bad in NO_CONTENT],
    (turns(("user", "\ud83d")), "messages[0].content", "holds a lone surrogate"),
]

NUMBERS: list[Row] = [
    ({"max_tokens": 0}, "max_tokens", lacks("a prompt that is prepared without output")),
    ({"max_tokens": -1}, "max_tokens", TOKENS),
    ({"max_tokens": 2**31}, "max_tokens", TOKENS),
    ({"temperature": -0.1}, "temperature", "must be between 0 and 2"),
    ({"temperature": 2.1}, "temperature", "must be between 0 and 2"),
    ({"top_p": -0.1}, "top_p", "must be between 0 and 1"),
    ({"top_p": 1.1}, "top_p", "must be between 0 and 1"),
    ({"top_k": -1}, "top_k", "must be between 0 and 20 candidates"),
    ({"top_k": 21}, "top_k", "must be between 0 and 20 candidates"),
    ({"stop_sequences": [""]}, "stop_sequences[0]", "must hold between 1 and 4096 characters"),
    ({"stop_sequences": ["a", "x" * 4097]}, "stop_sequences[1]", "must hold between 1 and 4096 characters"),
    ({"stop_sequences": ["a", 5]}, "stop_sequences[1]", STRING),
    ({"stop_sequences": ["a"] * 65}, "stop_sequences", "must hold at most 64 stop sequences"),
]

THINKING: list[Row] = [
    ({"thinking": {}}, "thinking.type", REQUIRED),
    ({"thinking": {"type": 1}}, "thinking.type", STRING),
    (
        {"thinking": {"type": "on"}},
        "thinking.type",
        'must be one of "enabled", "adaptive", "disabled", "between_tools"',
    ),
    ({"thinking": {"type": "between_tools"}}, "thinking.type", lacks("thinking between tool calls alone")),
    ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens", REQUIRED),
    ({"thinking": {"type": "enabled", "budget_tokens": "1"}}, "thinking.budget_tokens", INTEGER),
    ({"thinking": {"type": "enabled", "budget_tokens": 1023}}, "thinking.budget_tokens", BUDGET),
    ({"thinking": {"type": "enabled", "budget_tokens": -1}}, "thinking.budget_tokens", BUDGET),
    *[
        (
            {"max_tokens": limit, "thinking": {"type": "enabled", "budget_tokens": 2048}},
            "thinking.budget_tokens",
            "must be less than max_tokens",
        )
        for limit in (1, 1024, 2047, 2048)
    ],
    ({"thinking": {"type": "adaptive", "display": "omitted"}}, "thinking.display", HIDDEN),
    (
        {
            "max_tokens": 4096,
            "thinking": {"type": "enabled", "budget_tokens": 1024, "display": "omitted"},
        },
        "thinking.display",
        HIDDEN,
    ),
    (
        {"thinking": {"type": "adaptive", "display": "full"}},
        "thinking.display",
        'must be one of "summarized", "omitted"',
    ),
    ({"output_config": {"effort": "none"}}, "output_config.effort", EFFORTS),
    ({"output_config": {"effort": "minimal"}}, "output_config.effort", EFFORTS),
    ({"output_config": {"effort": 5}}, "output_config.effort", STRING),
    (
        {"thinking": {"type": "disabled"}, KWARGS: {"enable_thinking": True}},
        "thinking.type",
        f"contradicts {KWARGS}",
    ),
    (
        {"thinking": {"type": "adaptive"}, KWARGS: {"enable_thinking": False}},
        "thinking.type",
        f"contradicts {KWARGS}",
    ),
    (
        {"thinking": {"type": "adaptive"}, KWARGS: {"reasoning_effort": "none"}},
        "output_config.effort",
        "contradicts thinking.type",
    ),
    (
        {"output_config": {"effort": "low"}, KWARGS: {"reasoning_effort": "high"}},
        "output_config.effort",
        f"contradicts {KWARGS}",
    ),
    (
        {"preserve_thinking": True, KWARGS: {"preserve_thinking": False}},
        "preserve_thinking",
        f"contradicts {KWARGS}",
    ),
    ({KWARGS: {"enable_thinking": 1}}, f"{KWARGS}.enable_thinking", BOOLEAN),
    *[
        ({KWARGS: {name: None}}, f"{KWARGS}.{name}", "belongs to the server and cannot be set")
        for name in ("messages", "tools", "add_generation_prompt", "eos_token")
    ],
]

CAPABILITIES: list[Row] = [
    ({"output_config": {"format": {"type": "json_schema", "schema": {}}}}, "output_config.format", FORMAT),
    ({"output_format": {"type": "json_schema"}}, "output_format", FORMAT),
    ({"mcp_servers": [{"type": "url"}]}, "mcp_servers", lacks("tools behind MCP servers")),
    ({"container": "c1"}, "container", lacks("containers")),
    ({"container": {"skills": []}}, "container", lacks("containers")),
    (block({"type": "document", "source": {}}), f"{B0}.type", lacks("document input")),
    (block({"type": "search_result"}), f"{B0}.type", lacks("cited search results")),
    (block({"type": "container_upload", "file_id": "f"}), f"{B0}.type", lacks("containers")),
    (block({"type": "compaction"}, "assistant"), f"{B0}.type", lacks("server-side compaction")),
    *[
        (block({"type": name}, "assistant"), f"{B0}.type", lacks("tools behind MCP servers"))
        for name in ("mcp_tool_use", "mcp_tool_result")
    ],
    *[
        (block({"type": name}, "assistant"), f"{B0}.type", lacks("tools that the server runs"))
        for name in BLOCKS[8:16]
    ],
    (block(image(type="file", file_id="f")), f"{B0}.source.type", lacks("uploaded files")),
    (shown({"type": "document"}), f"{B0}.content[0].type", lacks("document input")),
    (shown({"type": "search_result"}), f"{B0}.content[0].type", lacks("cited search results")),
    (shown({"type": "tool_reference"}), f"{B0}.content[0].type", lacks("tool search")),
    (shown({"type": "browser_state"}), f"{B0}.content[0].type", lacks("a browser toolset")),
    (shown(image(type="file", file_id="f")), f"{B0}.content[0].source.type", lacks("uploaded files")),
]

CONTENT: list[Row] = [
    (block(5), B0, OBJECT),
    (block("text"), B0, OBJECT),
    (block({}), f"{B0}.type", REQUIRED),
    (block({"type": 5}), f"{B0}.type", STRING),
    (block({"type": "input_text"}), f"{B0}.type", KNOWN_BLOCKS),
    (block({"type": "text"}), f"{B0}.text", REQUIRED),
    (block({"type": "text", "text": 5}), f"{B0}.text", STRING),
    (block(text("\udc00")), f"{B0}.text", "holds a lone surrogate"),
    (block({"type": "image"}), f"{B0}.source", REQUIRED),
    (block({"type": "image", "source": 5}), f"{B0}.source", OBJECT),
    (block({"type": "image", "source": {}}), f"{B0}.source.type", REQUIRED),
    (block(image(type="x")), f"{B0}.source.type", 'must be one of "base64", "url", "file"'),
    (block(image(type="base64", data="a")), f"{B0}.source.media_type", REQUIRED),
    (
        block(image(type="base64", media_type="image/tiff", data="a")),
        f"{B0}.source.media_type",
        'must be one of "image/jpeg", "image/png", "image/gif", "image/webp"',
    ),
    (block(image(type="base64", media_type="image/png")), f"{B0}.source.data", REQUIRED),
    (block(image(type="base64", media_type="image/png", data=5)), f"{B0}.source.data", STRING),
    (block(image(type="url")), f"{B0}.source.url", REQUIRED),
    *[
        (block(image(type="url", url=url)), f"{B0}.source.url", URL)
        for url in ("", "/etc/passwd", "file:///etc/passwd", "ftp://x/a", "a.png")
    ],
    (shown(image(type="url", url="a.png")), f"{B0}.content[0].source.url", URL),
    *[
        (block(image(), role), f"{B0}.type", lacks(f"images in {role} messages"))
        for role in ("system", "assistant", "developer")
    ],
    *[
        (block(value, role), f"{B0}.type", f'may not be "{value["type"]}" in {role} messages')
        for role, value in [
            ("user", thinking()),
            ("user", {"type": "redacted_thinking", "data": "x"}),
            ("user", use()),
            ("assistant", result()),
            ("system", thinking()),
            ("system", use()),
            ("system", result()),
            ("developer", result()),
        ]
    ],
    (block({"type": "thinking"}, "assistant"), f"{B0}.thinking", REQUIRED),
    (block({"type": "thinking", "thinking": None}, "assistant"), f"{B0}.thinking", STRING),
    (block(thinking(signature=5), "assistant"), f"{B0}.signature", STRING),
    (block({"type": "redacted_thinking"}, "assistant"), f"{B0}.data", REQUIRED),
    (turns(("user", [text(), {"type": "x"}])), "messages[0].content[1].type", KNOWN_BLOCKS),
    (shown({"type": "tool_use"}), f"{B0}.content[0].type", INNER),
    (block(result(content=5)), f"{B0}.content", "must be a string or an array"),
    (block(result(is_error="yes")), f"{B0}.is_error", BOOLEAN),
    (block({"type": "tool_result", "content": "x"}), f"{B0}.tool_use_id", REQUIRED),
    (block(result(id="")), f"{B0}.tool_use_id", "must hold at least 1 character"),
    (block({"type": "tool_use", "name": "a", "input": {}}, "assistant"), f"{B0}.id", REQUIRED),
    (block(use(id=""), "assistant"), f"{B0}.id", "must hold at least 1 character"),
    *[
        (block(use(name=name), "assistant"), f"{B0}.name", NAME)
        for name in ("", "a b", "a>b", "é", "x" * 129)
    ],
    (block({"type": "tool_use", "id": "a", "name": "a"}, "assistant"), f"{B0}.input", REQUIRED),
    *[(block(use(input=bad), "assistant"), f"{B0}.input", OBJECT) for bad in NO_OBJECTS],
    ({"system": [{"type": "image", "source": {}}]}, "system[0].type", 'must be one of "text"'),
    ({"system": [{"text": "x"}]}, "system[0].type", REQUIRED),
    ({"system": [{"type": "text"}]}, "system[0].text", REQUIRED),
    ({"system": ["x"]}, "system[0]", OBJECT),
]

AFTER_CALL = "names no tool call of the assistant turn before it"
HISTORY: list[Row] = [
    (
        turns(("user", "a"), ("assistant", [use()]), ("user", "b")),
        "messages[2]",
        'must begin with the result of tool call "t1"',
    ),
    (
        turns(("assistant", [use("t1"), use("t2")]), ("user", [result("t1")])),
        "messages[1]",
        'must begin with the result of tool call "t2"',
    ),
    (
        turns(("assistant", [use()]), ("user", [text(), result()])),
        "messages[1].content[1].type",
        "must stand before the other blocks of its user turn",
    ),
    (
        turns(("assistant", [use()]), ("user", "x"), ("user", [result()])),
        "messages[2].content[0].type",
        "must stand before the other blocks of its user turn",
    ),
    (
        turns(("assistant", [use()]), ("user", [result("t2")])),
        "messages[1].content[0].tool_use_id",
        AFTER_CALL,
    ),
    (
        turns(("assistant", [use()]), ("user", [result(), result("t2")])),
        "messages[1].content[1].tool_use_id",
        AFTER_CALL,
    ),
    (
        turns(("assistant", [use()]), ("user", [result(), result()])),
        "messages[1].content[1].tool_use_id",
        "has a result already",
    ),
    (
        turns(("user", [result(), result()])),
        "messages[0].content[1].tool_use_id",
        "has a result already",
    ),
    (
        turns(("user", "a"), ("assistant", "b"), ("user", [result()])),
        "messages[2].content[0].tool_use_id",
        AFTER_CALL,
    ),
    (
        turns(("user", "a"), ("system", "b"), ("user", [result()])),
        "messages[2].content[0].tool_use_id",
        AFTER_CALL,
    ),
    (
        turns(("assistant", [use(), use()]), ("user", [result()])),
        "messages[0].content[1].id",
        "is the id of another call of this turn",
    ),
    (
        turns(("assistant", [use()]), ("assistant", [use()]), ("user", [result()])),
        "messages[1].content[0].id",
        "is the id of another call of this turn",
    ),
    *[
        (
            turns(("user", "a"), ("assistant", [use()]), ("system", "s"), *after),
            "messages[1]",
            "calls tools, so the user turn that follows must begin with their results",
        )
        for after in ([], [("assistant", "b"), ("user", "c")])
    ],
]

PREFILLED = "in the final assistant turn, whose text is continued"
PREFILL: list[Row] = [
    *[
        (
            turns(("user", "a"), ("assistant", [text(), value])),
            "messages[1].content[1].type",
            f'may not be "{value["type"]}" {PREFILLED}',
        )
        for value in (thinking(), {"type": "redacted_thinking", "data": "x"}, use())
    ],
    (
        turns(("user", "a"), ("assistant", [thinking(), text()]), ("assistant", "b")),
        "messages[1].content[0].type",
        f'may not be "thinking" {PREFILLED}',
    ),
    (
        turns(("user", "a"), ("assistant", [image()])),
        "messages[1].content[0].type",
        lacks("images in assistant messages"),
    ),
    *[
        (
            {**turns(("user", "a"), ("assistant", "b")), "max_tokens": 4096, "thinking": mode},
            "thinking.type",
            "may not switch thinking on when a final assistant message is continued",
        )
        for mode in ({"type": "adaptive"}, {"type": "enabled", "budget_tokens": 1024})
    ],
    (
        {**turns(("user", "a"), ("assistant", "b")), KWARGS: {"enable_thinking": True}},
        f"{KWARGS}.enable_thinking",
        "may not switch thinking on when a final assistant message is continued",
    ),
]

T0 = "tools[0]"
TOOLS: list[Row] = [
    ({"tools": [5]}, T0, OBJECT),
    ({"tools": [{}]}, f"{T0}.name", REQUIRED),
    ({"tools": [{"name": "a"}]}, f"{T0}.input_schema", REQUIRED),
    *[
        ({"tools": [{"type": kind, "name": "x"}]}, f"{T0}.type", TOOL_TYPE)
        for kind in (
            "bash_20250124",
            "text_editor_20250728",
            "web_search_20250305",
            "web_fetch_20250910",
            "code_execution_20250825",
            "memory_20250818",
            "tool_search_tool_bm25_20251119",
            "computer_toolset_20260801",
            "mcp_toolset",
            "function",
            "",
        )
    ],
    ({"tools": [TOOL, {"type": "web_search_20250305"}]}, "tools[1].type", TOOL_TYPE),
    (tool(type=5), f"{T0}.type", STRING),
    *[(tool(name=name), f"{T0}.name", NAME) for name in ("", "a.b", "a b", "x" * 129)],
    (tool(name=5), f"{T0}.name", STRING),
    (tool(description=5), f"{T0}.description", STRING),
    *[(tool(input_schema=bad), f"{T0}.input_schema", OBJECT) for bad in NO_OBJECTS],
    (tool(input_schema={"type": "string"}), f"{T0}.input_schema.type", 'must be "object"'),
    (tool(input_schema={"a": "\ud800"}), f"{T0}.input_schema.a", "holds a lone surrogate"),
    (tool(input_examples={}), f"{T0}.input_examples", ARRAY),
    (tool(input_examples=[{}, "x"]), f"{T0}.input_examples[1]", OBJECT),
    (tool(strict=True), f"{T0}.strict", lacks("input that follows the schema strictly")),
    (tool(strict="no"), f"{T0}.strict", BOOLEAN),
    (tool(defer_loading=True), f"{T0}.defer_loading", lacks("tools that are loaded later")),
    *[
        (
            tool(allowed_callers=callers),
            f"{T0}.allowed_callers",
            lacks("tools that the model does not call directly"),
        )
        for callers in ([], ["code_execution_20250825"])
    ],
    ({"tool_choice": {}}, "tool_choice.type", REQUIRED),
    ({"tool_choice": {"type": "any"}}, "tool_choice.type", FORCED),
    ({"tools": [TOOL], "tool_choice": {"type": "any"}}, "tool_choice.type", FORCED),
    ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "look"}}, "tool_choice.type", FORCED),
    (
        {"tool_choice": {"type": "required"}},
        "tool_choice.type",
        'must be one of "auto", "none", "any", "tool"',
    ),
    (
        {"tools": [TOOL], "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
        "tool_choice.disable_parallel_tool_use",
        lacks("at most one tool call"),
    ),
    (
        {"tool_choice": {"type": "auto", "disable_parallel_tool_use": 1}},
        "tool_choice.disable_parallel_tool_use",
        BOOLEAN,
    ),
]

FIFTH = "is one marker too many; a request may set at most 4"
OTHER_TTL = "differs from that of another marker at the same place"
HOUR = {"type": "ephemeral", "ttl": "1h"}
CACHING: list[Row] = [
    ({"cache_control": {}}, "cache_control.type", REQUIRED),
    ({"cache_control": {"type": "forever"}}, "cache_control.type", 'must be one of "ephemeral"'),
    *[
        ({"cache_control": {"type": "ephemeral", "ttl": ttl}}, "cache_control.ttl", TTL)
        for ttl in ("10m", "", "1H")
    ],
    ({"cache_control": {"type": "ephemeral", "ttl": 5}}, "cache_control.ttl", STRING),
    (tool(cache_control={"type": "x"}), f"{T0}.cache_control.type", 'must be one of "ephemeral"'),
    (tool(cache_control=True), f"{T0}.cache_control", OBJECT),
    *[
        (change, f"{path}.cache_control.ttl", TTL)
        for change, path in [
            ({"system": [text(cache_control={"type": "ephemeral", "ttl": "1d"})]}, "system[0]"),
            (block(text(cache_control={"type": "ephemeral", "ttl": "1d"})), B0),
            (block({**image(), "cache_control": {"type": "ephemeral", "ttl": "1d"}}), B0),
            (block(use(cache_control={"type": "ephemeral", "ttl": "1d"}), "assistant"), B0),
            (block(result(cache_control={"type": "ephemeral", "ttl": "1d"})), B0),
        ]
    ],
    (turns(("user", marked(5))), "messages[0].content[4].cache_control", FIFTH),
    (
        {**tool(cache_control=EPHEMERAL), "system": marked(3), **turns(("user", marked(1)))},
        "messages[0].content[0].cache_control",
        FIFTH,
    ),
    (
        {"cache_control": EPHEMERAL, "system": marked(4)},
        "cache_control",
        FIFTH,
    ),
    (
        {"cache_control": HOUR, **turns(("user", marked(1)))},
        "cache_control.ttl",
        OTHER_TTL,
    ),
    (
        {"cache_control": EPHEMERAL, **turns(("user", [text(cache_control=HOUR)]))},
        "cache_control.ttl",
        OTHER_TTL,
    ),
    (
        block(result(content=marked(1), cache_control=HOUR)),
        f"{B0}.cache_control.ttl",
        OTHER_TTL,
    ),
]

ROWS: list[Row] = [
    *ENVELOPE,
    *NUMBERS,
    *THINKING,
    *CAPABILITIES,
    *CONTENT,
    *HISTORY,
    *PREFILL,
    *TOOLS,
    *CACHING,
]

PROMPT_TYPES: dict[str, str] = {
    "model": "a string",
    "messages": "an array",
    "system": "a string or an array",
    "tools": "an array",
    "tool_choice": "an object",
    "thinking": "an object",
    "output_config": "an object",
    "cache_control": "an object",
    "preserve_thinking": "a boolean",
    "chat_template_kwargs": "an object",
    "mcp_servers": "an array",
}
OUTPUT_TYPES: dict[str, str] = {
    "max_tokens": "an integer",
    "stream": "a boolean",
    "stop_sequences": "an array",
    "temperature": "a number",
    "top_p": "a number",
    "top_k": "an integer",
    "metadata": "an object",
    "service_tier": "a string",
    "inference_geo": "a string",
}
SAMPLES: dict[str, Any] = {
    "a string": "x",
    "a boolean": True,
    "an integer": 1,
    "a number": 1.5,
    "an array": [],
    "an object": {},
}


def wrong_types(types: dict[str, str]) -> list[Row]:
    """Every plain field with every JSON type that it does not take."""
    rows: list[Row] = []
    for field, nouns in types.items():
        taken = set(nouns.split(" or ")) | ({"an integer"} if "a number" in nouns else set())
        rows += [
            ({field: sample}, field, f"must be {nouns}")
            for noun, sample in SAMPLES.items()
            if noun not in taken
        ]
    return rows
