"""Every refusal of a Chat request that we know, as data.

A row is (change to a good body, param, code, what the message says after the param).  ``TYPES`` gives
the JSON type of each plain field; every other type is refused there.
"""

from __future__ import annotations

from typing import Any

Row = tuple[dict[str, Any], str, str, str]

USER: dict[str, Any] = {"role": "user", "content": "hi"}
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "look", "description": "Look.", "parameters": {"type": "object"}},
}
GOOD: dict[str, Any] = {"model": "tiny", "messages": [USER]}


def lacks(what: str) -> str:
    return f"asks for {what}, which NInfer cannot guarantee"


def call(**change: Any) -> dict[str, Any]:
    return {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}, **change}


def assistant(**members: Any) -> dict[str, Any]:
    return {"messages": [USER, {"role": "assistant", **members}]}


def part(value: Any, role: str = "user", **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": [value], **more}]}


def turn(**members: Any) -> dict[str, Any]:
    return {"messages": [members]}


def tool(**function: Any) -> dict[str, Any]:
    return {"tools": [{"type": "function", "function": {"name": "look", **function}}]}


def allowed(*entries: Any, mode: Any = "auto") -> dict[str, Any]:
    chosen = {"mode": mode, "tools": list(entries)}
    return {"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "allowed_tools": chosen}}


P0 = "messages[0].content[0]"
CONSTRAINED = ("constrained_decoding_not_supported", lacks("constrained decoding"))
FORCED = ("tool_choice_not_supported", lacks("a forced tool call"))
TOOL_TYPE = ("tool_type_not_supported", lacks("tools other than client-executed functions"))
NAME = ("message_name_not_supported", lacks("a participant's identity"))
MODALITY = "modality_not_supported"
CONFLICT = "conflicting_template_option"
MISSING = ("missing_required_parameter", "is required")
ROLES = 'must be one of "system", "developer", "user", "assistant", "tool", "function"'
PARTS = 'must be one of "text", "refusal", "image_url", "video_url", "input_audio", "file"'
FUNCTION_NAME = ("invalid_value", "must match [A-Za-z0-9_-]{1,64}")
TOKENS = "must be between 0 and 2147483647 tokens"
SEED = "must be between -9223372036854775808 and 9223372036854775807"
EFFORTS = 'must be one of "none", "minimal", "low", "medium", "high", "xhigh", "max"'
KWARGS = "chat_template_kwargs"
OVERRIDE = (
    "reserved_template_option",
    "belongs to the server and cannot be set",
)
ONLY_ASSISTANT = ("invalid_value", "belongs to assistant messages only")
ONLY_TOOL = ("invalid_value", "belongs to tool messages only")
ARGUMENTS = ("invalid_prompt", "must be the text of a JSON object")
MEDIA_URL = ("invalid_media", "must be an http, https or data URL")

ENVELOPE: list[Row] = [
    ({"model": ""}, "model", "invalid_value", "must hold at least 1 character"),
    ({"messages": []}, "messages", "invalid_value", "must hold at least 1 message"),
    ({"messages": [5]}, "messages[0]", "invalid_type", "must be an object"),
    ({"messages": [USER, None]}, "messages[1]", "invalid_type", "must be an object"),
    (
        {"stream_options": {"include_usage": 1}},
        "stream_options.include_usage",
        "invalid_type",
        "must be a boolean",
    ),
    (
        {"stream_options": {"include_obfuscation": "no"}},
        "stream_options.include_obfuscation",
        "invalid_type",
        "must be a boolean",
    ),
]

NUMBERS: list[Row] = [
    ({"max_tokens": -1}, "max_tokens", "invalid_value", TOKENS),
    ({"max_tokens": 2**31}, "max_tokens", "invalid_value", TOKENS),
    ({"max_completion_tokens": -1}, "max_completion_tokens", "invalid_value", TOKENS),
    ({"max_completion_tokens": 10**30}, "max_completion_tokens", "invalid_value", TOKENS),
    ({"temperature": -0.1}, "temperature", "invalid_value", "must be between 0 and 2"),
    ({"temperature": 2.1}, "temperature", "invalid_value", "must be between 0 and 2"),
    ({"temperature": 10**64}, "temperature", "invalid_json", "holds a number of more than 64 characters"),
    ({"top_p": -0.1}, "top_p", "invalid_value", "must be between 0 and 1"),
    ({"top_p": 1.5}, "top_p", "invalid_value", "must be between 0 and 1"),
    ({"min_p": -1}, "min_p", "invalid_value", "must be between 0 and 1"),
    ({"min_p": 1.1}, "min_p", "invalid_value", "must be between 0 and 1"),
    ({"top_k": -1}, "top_k", "invalid_value", "must be between 0 and 20 candidates"),
    ({"top_k": 21}, "top_k", "invalid_value", "must be between 0 and 20 candidates"),
    ({"presence_penalty": -2.5}, "presence_penalty", "invalid_value", "must be between -2 and 2"),
    ({"presence_penalty": 2.5}, "presence_penalty", "invalid_value", "must be between -2 and 2"),
    ({"frequency_penalty": -3}, "frequency_penalty", "invalid_value", "must be between -2 and 2"),
    ({"frequency_penalty": 3}, "frequency_penalty", "invalid_value", "must be between -2 and 2"),
    ({"seed": 2**63}, "seed", "invalid_value", SEED),
    ({"seed": -(2**63) - 1}, "seed", "invalid_value", SEED),
    ({"n": 0}, "n", "invalid_value", "must be at least 1"),
    ({"n": -2}, "n", "invalid_value", "must be at least 1"),
    ({"top_logprobs": 21}, "top_logprobs", "invalid_value", "must be between 0 and 20"),
    ({"top_logprobs": -1}, "top_logprobs", "invalid_value", "must be between 0 and 20"),
    ({"logit_bias": {"5": 101}}, 'logit_bias["5"]', "invalid_value", "must be between -100 and 100"),
    ({"logit_bias": {"5": "1"}}, 'logit_bias["5"]', "invalid_type", "must be a number"),
]

STOPS: list[Row] = [
    ({"stop": ""}, "stop", "invalid_value", "must hold between 1 and 4096 characters"),
    ({"stop": "x" * 4097}, "stop", "invalid_value", "must hold between 1 and 4096 characters"),
    ({"stop": ["a", ""]}, "stop[1]", "invalid_value", "must hold between 1 and 4096 characters"),
    ({"stop": ["a", 5]}, "stop[1]", "invalid_type", "must be a string"),
    ({"stop": [None]}, "stop[0]", "invalid_type", "must be a string"),
    ({"stop": list("abcde")}, "stop", "invalid_value", "must hold at most 4 stop strings"),
]

CAPABILITIES: list[Row] = [
    ({"n": 2}, "n", "n_not_supported", lacks("several choices")),
    (
        {"logit_bias": {"12": 1}},
        "logit_bias",
        "logit_bias_not_supported",
        lacks("a change of single logits"),
    ),
    (
        {"logit_bias": {"1": 0, "2": -100}},
        "logit_bias",
        "logit_bias_not_supported",
        lacks("a change of single logits"),
    ),
    ({"logprobs": True}, "logprobs", "logprobs_not_supported", lacks("log probabilities")),
    ({"top_logprobs": 2}, "top_logprobs", "logprobs_not_supported", lacks("log probabilities")),
    ({"modalities": ["text", "audio"]}, "modalities[1]", MODALITY, lacks("output other than text")),
    ({"modalities": ["image"]}, "modalities[0]", MODALITY, lacks("output other than text")),
    ({"modalities": []}, "modalities", "invalid_value", "must hold at least 1 item"),
    ({"modalities": [1]}, "modalities[0]", "invalid_type", "must be a string"),
    ({"verbosity": "low"}, "verbosity", "verbosity_not_supported", lacks("a chosen verbosity")),
    ({"verbosity": "high"}, "verbosity", "verbosity_not_supported", lacks("a chosen verbosity")),
    ({"verbosity": "loud"}, "verbosity", "invalid_value", 'must be one of "low", "medium", "high"'),
    ({"store": True}, "store", "store_not_supported", lacks("a stored completion")),
    (
        {"functions": [{"name": "f"}]},
        "functions",
        "legacy_tools_not_supported",
        lacks("legacy functions (use tools)"),
    ),
    (
        {"function_call": {"name": "f"}},
        "function_call",
        "legacy_tools_not_supported",
        lacks("a forced function call"),
    ),
    ({"function_call": "always"}, "function_call", "invalid_value", 'must be one of "none", "auto"'),
    (
        {"repetition_penalty": 1.1},
        "repetition_penalty",
        "repetition_penalty_not_supported",
        lacks("a repetition penalty other than 1"),
    ),
    (
        {"repetition_penalty": 0},
        "repetition_penalty",
        "repetition_penalty_not_supported",
        lacks("a repetition penalty other than 1"),
    ),
    (
        {"mm_processor_kwargs": {"max_pixels": 5}},
        "mm_processor_kwargs",
        "mm_processor_kwargs_not_supported",
        lacks("a changed media preprocessing"),
    ),
    (
        {"response_format": {"type": "json_object"}},
        "response_format.type",
        "response_format_not_supported",
        lacks("constrained JSON output"),
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {}}}},
        "response_format.type",
        "response_format_not_supported",
        lacks("constrained JSON output"),
    ),
    (
        {"response_format": {"type": "xml"}},
        "response_format.type",
        "invalid_value",
        'must be one of "text", "json_object", "json_schema"',
    ),
    ({"response_format": {}}, "response_format.type", *MISSING),
    ({"grammar": "root ::= x"}, "grammar", *CONSTRAINED),
    ({"grammar": {}}, "grammar", *CONSTRAINED),
    ({"structured_outputs": {"json": {}}}, "structured_outputs", *CONSTRAINED),
    ({"guided_json": {"type": "object"}}, "guided_json", *CONSTRAINED),
    ({"guided_json": "{}"}, "guided_json", *CONSTRAINED),
    ({"guided_regex": ".*"}, "guided_regex", *CONSTRAINED),
    ({"guided_choice": ["a", "b"]}, "guided_choice", *CONSTRAINED),
    ({"guided_grammar": "x"}, "guided_grammar", *CONSTRAINED),
    ({"web_search_options": {}}, "web_search_options", "web_search_not_supported", lacks("web search")),
    ({"moderation": {"on": True}}, "moderation", "moderation_not_supported", lacks("moderation")),
]

HINTS: list[Row] = [
    (
        {"prompt_cache_options": {"mode": "never"}},
        "prompt_cache_options.mode",
        "invalid_value",
        'must be one of "implicit", "explicit"',
    ),
    (
        {"prompt_cache_options": {"ttl": "long"}},
        "prompt_cache_options.ttl",
        "invalid_value",
        "must match [0-9]{1,6}[smhd]",
    ),
    (
        {"prompt_cache_retention": "1y"},
        "prompt_cache_retention",
        "invalid_value",
        'must be one of "in_memory", "in-memory", "24h"',
    ),
    (
        part({"type": "text", "text": "a", "prompt_cache_breakpoint": {"mode": "implicit"}}),
        f"{P0}.prompt_cache_breakpoint.mode",
        "invalid_value",
        'must be one of "explicit"',
    ),
    (
        part({"type": "text", "text": "a", "prompt_cache_breakpoint": {}}),
        f"{P0}.prompt_cache_breakpoint.mode",
        *MISSING,
    ),
    (
        part({"type": "text", "text": "a", "prompt_cache_breakpoint": True}),
        f"{P0}.prompt_cache_breakpoint",
        "invalid_type",
        "must be an object",
    ),
]

TEMPLATE: list[Row] = [
    ({"reasoning_effort": "extreme"}, "reasoning_effort", "invalid_value", EFFORTS),
    ({KWARGS: {"reasoning_effort": "extreme"}}, f"{KWARGS}.reasoning_effort", "invalid_value", EFFORTS),
    ({KWARGS: {"reasoning_effort": 1}}, f"{KWARGS}.reasoning_effort", "invalid_type", "must be a string"),
    ({KWARGS: {"enable_thinking": "no"}}, f"{KWARGS}.enable_thinking", "invalid_type", "must be a boolean"),
    (
        {KWARGS: {"preserve_thinking": 1}},
        f"{KWARGS}.preserve_thinking",
        "invalid_type",
        "must be a boolean",
    ),
    ({KWARGS: {"messages": []}}, f"{KWARGS}.messages", *OVERRIDE),
    ({KWARGS: {"tools": None}}, f"{KWARGS}.tools", *OVERRIDE),
    ({KWARGS: {"chat_template": "x"}}, f"{KWARGS}.chat_template", *OVERRIDE),
    ({KWARGS: {"add_generation_prompt": False}}, f"{KWARGS}.add_generation_prompt", *OVERRIDE),
    ({KWARGS: {"eos_token": "x"}}, f"{KWARGS}.eos_token", *OVERRIDE),
    (
        {"enable_thinking": True, KWARGS: {"enable_thinking": False}},
        "enable_thinking",
        CONFLICT,
        f"contradicts {KWARGS}",
    ),
    (
        {"preserve_thinking": True, KWARGS: {"preserve_thinking": False}},
        "preserve_thinking",
        CONFLICT,
        f"contradicts {KWARGS}",
    ),
    (
        {"reasoning_effort": "low", KWARGS: {"reasoning_effort": "high"}},
        "reasoning_effort",
        CONFLICT,
        f"contradicts {KWARGS}",
    ),
    (
        {"reasoning_effort": "none", "enable_thinking": True},
        "reasoning_effort",
        CONFLICT,
        "contradicts enable_thinking",
    ),
    (
        {"reasoning_effort": "high", "enable_thinking": False},
        "reasoning_effort",
        CONFLICT,
        "contradicts enable_thinking",
    ),
    (
        {"reasoning_effort": "none", KWARGS: {"enable_thinking": True}},
        "reasoning_effort",
        CONFLICT,
        "contradicts enable_thinking",
    ),
    (
        {KWARGS: {"reasoning_effort": "medium", "enable_thinking": False}},
        "reasoning_effort",
        CONFLICT,
        "contradicts enable_thinking",
    ),
    ({KWARGS: {"x": "\ud800"}}, f"{KWARGS}.x", "invalid_json", "holds a lone surrogate"),
]

MESSAGES: list[Row] = [
    (turn(content="x"), "messages[0].role", *MISSING),
    (turn(role=None, content="x"), "messages[0].role", "invalid_type", "must be a string"),
    (turn(role="robot", content="x"), "messages[0].role", "invalid_value", ROLES),
    (turn(role="User", content="x"), "messages[0].role", "invalid_value", ROLES),
    *[(turn(role=role), "messages[0].content", *MISSING) for role in ("system", "developer", "user")],
    *[
        (
            turn(role=role, content=None),
            "messages[0].content",
            "invalid_type",
            "must be a string or an array",
        )
        for role in ("system", "developer", "user")
    ],
    *[
        (turn(role=role, content=5), "messages[0].content", "invalid_type", "must be a string or an array")
        for role in ("system", "user", "assistant")
    ],
    (turn(role="user", content={}), "messages[0].content", "invalid_type", "must be a string or an array"),
    *[
        (turn(role=role, content="x", name="Ann"), "messages[0].name", *NAME)
        for role in ("system", "developer", "user", "assistant")
    ],
    (turn(role="user", content="x", name=5), "messages[0].name", "invalid_type", "must be a string"),
    *[
        (turn(role=role, content="x", tool_calls=[call()]), "messages[0].tool_calls", *ONLY_ASSISTANT)
        for role in ("system", "user")
    ],
    (turn(role="user", content="x", function_call={}), "messages[0].function_call", *ONLY_ASSISTANT),
    (turn(role="user", content="x", reasoning="y"), "messages[0].reasoning", *ONLY_ASSISTANT),
    (
        turn(role="system", content="x", reasoning_content="y"),
        "messages[0].reasoning_content",
        *ONLY_ASSISTANT,
    ),
    (turn(role="user", content="x", tool_call_id="c"), "messages[0].tool_call_id", *ONLY_TOOL),
    (assistant(content="x", tool_call_id="c"), "messages[1].tool_call_id", *ONLY_TOOL),
    (
        turn(role="user", content="\ud83d"),
        "messages[0].content",
        "invalid_json",
        "holds a lone surrogate",
    ),
]

CONTENT: list[Row] = [
    (part(5), P0, "invalid_type", "must be an object"),
    (part("text"), P0, "invalid_type", "must be an object"),
    (part({}), f"{P0}.type", *MISSING),
    (part({"type": 5}), f"{P0}.type", "invalid_type", "must be a string"),
    (part({"type": "input_image"}), f"{P0}.type", "invalid_value", PARTS),
    (part({"type": "text"}), f"{P0}.text", *MISSING),
    (part({"type": "text", "text": 5}), f"{P0}.text", "invalid_type", "must be a string"),
    (
        part({"type": "text", "text": "\udc00"}),
        f"{P0}.text",
        "invalid_json",
        "holds a lone surrogate",
    ),
    (part({"type": "input_audio", "input_audio": {}}), f"{P0}.type", MODALITY, lacks("audio input")),
    (part({"type": "file", "file": {"file_id": "f"}}), f"{P0}.type", MODALITY, lacks("file input")),
    (part({"type": "image_url"}), f"{P0}.image_url", *MISSING),
    (
        part({"type": "image_url", "image_url": 5}),
        f"{P0}.image_url",
        "invalid_type",
        "must be an object or a string",
    ),
    (part({"type": "image_url", "image_url": {}}), f"{P0}.image_url.url", *MISSING),
    (
        part({"type": "image_url", "image_url": {"url": 5}}),
        f"{P0}.image_url.url",
        "invalid_type",
        "must be a string",
    ),
    *[
        (
            part({"type": "image_url", "image_url": {"url": "https://x/a", "detail": detail}}),
            f"{P0}.image_url.detail",
            "image_detail_not_supported",
            lacks("an explicit image detail"),
        )
        for detail in ("low", "high")
    ],
    (
        part({"type": "image_url", "image_url": {"url": "https://x/a", "detail": "best"}}),
        f"{P0}.image_url.detail",
        "invalid_value",
        'must be one of "auto", "low", "high"',
    ),
    (part({"type": "video_url"}), f"{P0}.video_url", *MISSING),
    (
        part({"type": "video_url", "video_url": {"url": None}}),
        f"{P0}.video_url.url",
        "invalid_type",
        "must be a string",
    ),
    *[
        (part({"type": "image_url", "image_url": url}), f"{P0}.image_url", *MEDIA_URL)
        for url in ("", "/etc/passwd", "file:///etc/passwd", "ftp://x/a.png", "a.png", "javascript:1")
    ],
    (part({"type": "image_url", "image_url": {"url": "file:///x"}}), f"{P0}.image_url.url", *MEDIA_URL),
    (part({"type": "video_url", "video_url": {"url": "clip.mp4"}}), f"{P0}.video_url.url", *MEDIA_URL),
    *[
        (
            part({"type": "image_url", "image_url": "https://x/a"}, role),
            f"{P0}.type",
            MODALITY,
            lacks(f"media in a {role} message"),
        )
        for role in ("system", "developer", "assistant")
    ],
    (
        part({"type": "video_url", "video_url": "https://x/a"}, "tool", tool_call_id="c"),
        f"{P0}.type",
        MODALITY,
        lacks("media in a tool message"),
    ),
    (
        part({"type": "image_url", "image_url": "https://x/a"}, "function", name="f"),
        f"{P0}.type",
        MODALITY,
        lacks("media in a function message"),
    ),
    *[
        (
            part({"type": "refusal", "refusal": "no"}, role),
            f"{P0}.type",
            "invalid_value",
            'may be "refusal" in assistant messages only',
        )
        for role in ("system", "developer", "user")
    ],
    (part({"type": "refusal"}, "assistant"), f"{P0}.refusal", *MISSING),
    (
        {"messages": [USER, {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "x"}]}]},
        "messages[1].content[1].type",
        "invalid_value",
        PARTS,
    ),
]

C0 = "messages[1].tool_calls[0]"
HISTORY: list[Row] = [
    (assistant(tool_calls={}), "messages[1].tool_calls", "invalid_type", "must be an array"),
    (assistant(tool_calls=["c"]), C0, "invalid_type", "must be an object"),
    (assistant(tool_calls=[{"id": "c"}]), f"{C0}.function", *MISSING),
    (assistant(tool_calls=[call(id=5)]), f"{C0}.id", "invalid_type", "must be a string"),
    (assistant(tool_calls=[call(type="custom")]), f"{C0}.type", *TOOL_TYPE),
    (assistant(tool_calls=[call(function={"arguments": "{}"})]), f"{C0}.function.name", *MISSING),
    (assistant(tool_calls=[call(function={"name": "a"})]), f"{C0}.function.arguments", *MISSING),
    *[
        (
            assistant(tool_calls=[call(function={"name": name, "arguments": "{}"})]),
            f"{C0}.function.name",
            *FUNCTION_NAME,
        )
        for name in ("", "a b", "a.b", "é", "a>b", "x" * 65, "a\n")
    ],
    (
        assistant(tool_calls=[call(function={"name": "a", "arguments": {}})]),
        f"{C0}.function.arguments",
        "invalid_type",
        "must be a string",
    ),
    *[
        (
            assistant(tool_calls=[call(function={"name": "a", "arguments": text})]),
            f"{C0}.function.arguments",
            *ARGUMENTS,
        )
        for text in ("[]", "5", '"x"', "null", "{", "{'a':1}", '{"a":NaN}', '{"a":1,"a":2}', "not-json-yet")
    ],
    (
        assistant(tool_calls=[call(), call(function={"name": "a", "arguments": "["})]),
        "messages[1].tool_calls[1].function.arguments",
        *ARGUMENTS,
    ),
    (
        assistant(function_call={"name": "a", "arguments": "["}),
        "messages[1].function_call.arguments",
        *ARGUMENTS,
    ),
    (assistant(function_call={"arguments": "{}"}), "messages[1].function_call.name", *MISSING),
    (assistant(audio={"id": "a"}), "messages[1].audio", MODALITY, lacks("audio history")),
    (assistant(refusal=5), "messages[1].refusal", "invalid_type", "must be a string"),
    (assistant(reasoning_content=5), "messages[1].reasoning_content", "invalid_type", "must be a string"),
    (assistant(reasoning=[]), "messages[1].reasoning", "invalid_type", "must be a string"),
    (
        assistant(reasoning="a", reasoning_content="b"),
        "messages[1].reasoning",
        CONFLICT,
        "contradicts reasoning_content",
    ),
    (turn(role="tool", content="x"), "messages[0].tool_call_id", *MISSING),
    (
        turn(role="tool", content="x", tool_call_id=5),
        "messages[0].tool_call_id",
        "invalid_type",
        "must be a string",
    ),
    (turn(role="tool", tool_call_id="c"), "messages[0].content", *MISSING),
    (
        turn(role="tool", tool_call_id="c", content=None),
        "messages[0].content",
        "invalid_type",
        "must be a string or an array",
    ),
    (
        turn(role="tool", tool_call_id="c", content="x", name=[]),
        "messages[0].name",
        "invalid_type",
        "must be a string",
    ),
    (
        turn(role="tool", tool_call_id="c", content="x", tool_calls=[call()]),
        "messages[0].tool_calls",
        *ONLY_ASSISTANT,
    ),
    (turn(role="function", content="x"), "messages[0].name", *MISSING),
    (turn(role="function", name="", content="x"), "messages[0].name", *FUNCTION_NAME),
]

T0 = "tools[0]"
TOOLS: list[Row] = [
    ({"tools": [5]}, T0, "invalid_type", "must be an object"),
    ({"tools": [{}]}, f"{T0}.type", *MISSING),
    ({"tools": [{"type": "function"}]}, f"{T0}.function", *MISSING),
    ({"tools": [{"type": "custom", "custom": {"name": "a"}}]}, f"{T0}.type", *TOOL_TYPE),
    ({"tools": [TOOL, {"type": "web_search"}]}, "tools[1].type", *TOOL_TYPE),
    ({"tools": [{"type": "function", "name": "a", "parameters": {}}]}, f"{T0}.function", *MISSING),
    ({"tools": [{"type": "function", "function": {}}]}, f"{T0}.function.name", *MISSING),
    *[(tool(name=name), f"{T0}.function.name", *FUNCTION_NAME) for name in ("", "a.b", "x" * 65, "a b")],
    (tool(name=5), f"{T0}.function.name", "invalid_type", "must be a string"),
    (tool(description=5), f"{T0}.function.description", "invalid_type", "must be a string"),
    (tool(parameters=[]), f"{T0}.function.parameters", "invalid_type", "must be an object"),
    (tool(parameters="{}"), f"{T0}.function.parameters", "invalid_type", "must be an object"),
    (tool(strict="no"), f"{T0}.function.strict", "invalid_type", "must be a boolean"),
    (
        tool(strict=True),
        f"{T0}.function.strict",
        "strict_tools_not_supported",
        lacks("arguments that follow the schema strictly"),
    ),
    (
        tool(parameters={"a": {"b": "\ud800"}}),
        f"{T0}.function.parameters.a.b",
        "invalid_json",
        "holds a lone surrogate",
    ),
    ({"tool_choice": "required"}, "tool_choice", *FORCED),
    ({"tools": [TOOL], "tool_choice": "required"}, "tool_choice", *FORCED),
    ({"tool_choice": "any"}, "tool_choice", "invalid_value", 'must be one of "auto", "none", "required"'),
    ({"tool_choice": {}}, "tool_choice.type", *MISSING),
    (
        {"tool_choice": {"type": "mcp"}},
        "tool_choice.type",
        "invalid_value",
        'must be one of "function", "custom", "allowed_tools"',
    ),
    (
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "look"}}},
        "tool_choice.type",
        *FORCED,
    ),
    ({"tool_choice": {"type": "custom", "custom": {"name": "look"}}}, "tool_choice.type", *TOOL_TYPE),
    (
        {"tools": [TOOL], "parallel_tool_calls": False},
        "parallel_tool_calls",
        "parallel_tool_calls_not_supported",
        lacks("at most one tool call"),
    ),
    (
        {**allowed({"type": "function", "name": "look"}), "parallel_tool_calls": False},
        "parallel_tool_calls",
        "parallel_tool_calls_not_supported",
        lacks("at most one tool call"),
    ),
]

A = "tool_choice.allowed_tools"
ALLOWED: list[Row] = [
    ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice.mode", *MISSING),
    ({"tool_choice": {"type": "allowed_tools", "mode": "auto"}}, "tool_choice.tools", *MISSING),
    ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {}}}, f"{A}.mode", *MISSING),
    ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto"}}}, f"{A}.tools", *MISSING),
    (allowed(), f"{A}.tools", "invalid_value", "must hold at least 1 tool"),
    (allowed({"type": "function", "name": "look"}, mode="required"), f"{A}.mode", *FORCED),
    (allowed(mode="maybe"), f"{A}.mode", "invalid_value", 'must be one of "auto", "required"'),
    (allowed({"type": "function"}), f"{A}.tools[0].name", *MISSING),
    (allowed({"type": "custom", "name": "look"}), f"{A}.tools[0].type", *TOOL_TYPE),
    (
        allowed({"type": "function", "name": "jump"}),
        f"{A}.tools[0].name",
        "invalid_tool_choice",
        "is not the name of a declared tool",
    ),
    (
        allowed({"type": "function", "name": "look"}, {"type": "function", "function": {"name": "jump"}}),
        f"{A}.tools[1].function.name",
        "invalid_tool_choice",
        "is not the name of a declared tool",
    ),
    (
        {
            "tool_choice": {
                "type": "allowed_tools",
                "mode": "auto",
                "tools": [{"type": "function", "name": "x"}],
            }
        },
        "tool_choice.tools[0].name",
        "invalid_tool_choice",
        "is not the name of a declared tool",
    ),
]

ROWS: list[Row] = [
    *ENVELOPE,
    *NUMBERS,
    *STOPS,
    *CAPABILITIES,
    *HINTS,
    *TEMPLATE,
    *MESSAGES,
    *CONTENT,
    *HISTORY,
    *TOOLS,
    *ALLOWED,
]

TYPES: dict[str, str] = {
    "model": "a string",
    "messages": "an array",
    "stream": "a boolean",
    "stream_options": "an object",
    "max_completion_tokens": "an integer",
    "max_tokens": "an integer",
    "temperature": "a number",
    "top_p": "a number",
    "top_k": "an integer",
    "min_p": "a number",
    "presence_penalty": "a number",
    "frequency_penalty": "a number",
    "seed": "an integer",
    "stop": "a string or an array",
    "tools": "an array",
    "tool_choice": "a string or an object",
    "parallel_tool_calls": "a boolean",
    "reasoning_effort": "a string",
    "enable_thinking": "a boolean",
    "preserve_thinking": "a boolean",
    "chat_template_kwargs": "an object",
    "prompt_cache_options": "an object",
    "timings_per_token": "a boolean",
    "return_progress": "a boolean",
    "n": "an integer",
    "response_format": "an object",
    "logit_bias": "an object",
    "logprobs": "a boolean",
    "top_logprobs": "an integer",
    "modalities": "an array",
    "verbosity": "a string",
    "store": "a boolean",
    "functions": "an array",
    "function_call": "a string or an object",
    "repetition_penalty": "a number",
    "mm_processor_kwargs": "an object",
    "audio": "an object",
    "prediction": "an object",
    "metadata": "an object",
    "user": "a string",
    "safety_identifier": "a string",
    "service_tier": "a string",
    "prompt_cache_key": "a string",
    "prompt_cache_retention": "a string",
}
SAMPLES: dict[str, Any] = {
    "a string": "x",
    "a boolean": True,
    "an integer": 1,
    "a number": 1.5,
    "an array": [],
    "an object": {},
}


def wrong_types() -> list[Row]:
    """Every plain field with every JSON type that it does not take."""
    rows: list[Row] = []
    for field, nouns in TYPES.items():
        taken = set(nouns.split(" or ")) | ({"an integer"} if "a number" in nouns else set())
        for noun, sample in SAMPLES.items():
            if noun not in taken:
                rows.append(({field: sample}, field, "invalid_type", f"must be {nouns}"))
    return rows
