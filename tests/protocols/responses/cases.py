"""Every refusal of a Responses request that we know, as data.

A row is (change to a good body, param, code, what the message says after the param).  ``TYPES`` gives
the JSON type of each plain field; every other type is refused there.
"""

from __future__ import annotations

from typing import Any

from tests.protocols.responses.desk import LOOK, called, result, said, thought, user

Row = tuple[dict[str, Any], str, str, str]


def lacks(what: str) -> str:
    return f"asks for {what}, which NInfer cannot guarantee"


def item(**members: Any) -> dict[str, Any]:
    return {"input": [members]}


def after(*items: dict[str, Any]) -> dict[str, Any]:
    return {"input": [user(), *items]}


def part(value: Any, role: str = "user") -> dict[str, Any]:
    return {"input": [{"role": role, "content": [value]}]}


def output(value: Any) -> dict[str, Any]:
    return after(called(), result(output=[value]))


def tool(**members: Any) -> dict[str, Any]:
    return {"tools": [{"type": "function", "name": "look", **members}]}


def member(**members: Any) -> dict[str, Any]:
    inner = {"type": "function", "name": "look", **members}
    return {"tools": [{"type": "namespace", "name": "ns", "tools": [inner]}]}


def allowed(*entries: Any, mode: Any = "auto") -> dict[str, Any]:
    return {"tools": [LOOK], "tool_choice": {"type": "allowed_tools", "mode": mode, "tools": list(entries)}}


I0, P0 = "input[0]", "input[0].content[0]"
MISSING = ("missing_required_parameter", "is required")
EMPTY = ("missing_required_parameter", "is required where no user message precedes it")
MODALITY = "modality_not_supported"
TOOL_TYPE = ("tool_type_not_supported", lacks("tools other than client-executed functions"))
FORCED = ("tool_choice_not_supported", lacks("a forced tool call"))
OPTION = "tool_option_not_supported"
STRICT = ("strict_tools_not_supported", lacks("arguments that follow the schema strictly"))
PARTIAL = ("partial_items_not_supported", lacks("a tool item that is not complete"))
NAME = ("invalid_value", "must match [A-Za-z0-9_-]{1,64}")
ARGUMENTS = ("invalid_prompt", "must be the text of a JSON object")
MEDIA_URL = ("invalid_media", "must be an http, https or data URL")
RAW = ("reasoning_text_required", lacks("reasoning without its raw text"))
TOOLS_HISTORY, ASSISTANT_HISTORY = "invalid_tool_history", "invalid_assistant_history"
UNKNOWN = ("unknown_parameter", "is not a known parameter")
NO_CALL = (TOOLS_HISTORY, "names no call of the assistant turn before it")
ROLES = 'must be one of "user", "assistant", "system", "developer"'
KWARGS = "chat_template_kwargs"
CONFLICT = "conflicting_template_option"
TOKENS = "must be between 0 and 2147483647 tokens"
ONE = "must hold at least 1 character"
HOSTED_ITEMS = ("item_type_not_supported", lacks("hosted or custom items"))

ENVELOPE: list[Row] = [
    ({"model": ""}, "model", "invalid_value", ONE),
    ({"input": ""}, "input", *EMPTY),
    ({"input": []}, "input", *EMPTY),
    ({"input": None}, "input", *EMPTY),
    ({"previous_response_id": ""}, "previous_response_id", "invalid_value", ONE),
    *[
        ({name: value}, name, *UNKNOWN)
        for name, value in {
            "messages": [],
            "max_tokens": 5,
            "stop": ["x"],
            "seed": 1,
            "top_k": 5,
            "min_p": 0.1,
            "n": 1,
            "frequency_penalty": 0,
            "presence_penalty": 0,
            "logit_bias": {},
            "response_format": {"type": "text"},
            "reasoning_effort": "low",
            "enable_thinking": False,
            "functions": [],
            "timings_per_token": False,
            "frobnicate": None,
            "Model": "x",
        }.items()
    ],
]

NUMBERS: list[Row] = [
    ({"max_output_tokens": -1}, "max_output_tokens", "invalid_value", TOKENS),
    ({"max_output_tokens": 2**31}, "max_output_tokens", "invalid_value", TOKENS),
    ({"temperature": -0.1}, "temperature", "invalid_value", "must be between 0 and 2"),
    ({"temperature": 2.01}, "temperature", "invalid_value", "must be between 0 and 2"),
    ({"top_p": -0.1}, "top_p", "invalid_value", "must be between 0 and 1"),
    ({"top_p": 1.1}, "top_p", "invalid_value", "must be between 0 and 1"),
    ({"max_tool_calls": -1}, "max_tool_calls", "invalid_value", "must be at least 0"),
    ({"top_logprobs": 21}, "top_logprobs", "invalid_value", "must be between 0 and 20"),
    ({"top_logprobs": -1}, "top_logprobs", "invalid_value", "must be between 0 and 20"),
]

METADATA: list[Row] = [
    (
        {"metadata": {str(n): "x" for n in range(17)}},
        "metadata",
        "invalid_value",
        "must hold at most 16 pairs",
    ),
    (
        {"metadata": {"k" * 65: "x"}},
        f'metadata["{"k" * 64}"]',
        "invalid_value",
        "must hold at most 64 characters",
    ),
    ({"metadata": {"k": "x" * 513}}, "metadata.k", "invalid_value", "must hold at most 512 characters"),
    ({"metadata": {"k": 5}}, "metadata.k", "invalid_type", "must be a string"),
    ({"metadata": {"k": None}}, "metadata.k", "invalid_type", "must be a string"),
]

CAPABILITIES: list[Row] = [
    ({"background": True}, "background", "background_not_supported", lacks("background execution")),
    (
        {"background_options": {"completion_window": "2h"}},
        "background_options",
        "background_not_supported",
        lacks("background execution"),
    ),
    (
        {"conversation": "conv_1"},
        "conversation",
        "conversation_not_supported",
        lacks("a stored conversation"),
    ),
    (
        {"conversation": {"id": "conv_1"}},
        "conversation",
        "conversation_not_supported",
        lacks("a stored conversation"),
    ),
    ({"prompt": {"id": "p"}}, "prompt", "prompt_not_supported", lacks("a prompt template")),
    (
        {"context_management": [{"type": "compaction"}]},
        "context_management",
        "context_management_not_supported",
        lacks("context management"),
    ),
    ({"moderation": {"model": "m"}}, "moderation", "moderation_not_supported", lacks("moderation")),
    *[
        ({"include": [value]}, "include", "include_not_supported", lacks("additional output data"))
        for value in (
            "reasoning.encrypted_content",
            "message.output_text.logprobs",
            "message.input_image.image_url",
            "file_search_call.results",
        )
    ],
    ({"include": [5]}, "include[0]", "invalid_type", "must be a string"),
    ({"top_logprobs": 1}, "top_logprobs", "logprobs_not_supported", lacks("log probabilities")),
    ({"truncation": "auto"}, "truncation", "truncation_not_supported", lacks("a prompt that may be cut")),
    ({"truncation": "middle"}, "truncation", "invalid_value", 'must be one of "auto", "disabled"'),
    *[
        (
            {"service_tier": tier},
            "service_tier",
            "service_tier_not_supported",
            lacks("a chosen service tier"),
        )
        for tier in ("flex", "priority", "scale", "fast")
    ],
    (
        {"service_tier": "gold"},
        "service_tier",
        "invalid_value",
        'must be one of "auto", "default", "flex", "scale", "priority", "fast", "ultrafast"',
    ),
    *[
        (
            {"text": {"format": {"type": kind, "name": "x", "schema": {}}}},
            "text.format.type",
            "response_format_not_supported",
            lacks("constrained JSON output"),
        )
        for kind in ("json_object", "json_schema")
    ],
    (
        {"text": {"format": {"type": "grammar"}}},
        "text.format.type",
        "invalid_value",
        'must be one of "text", "json_object", "json_schema"',
    ),
    ({"text": {"format": {}}}, "text.format.type", *MISSING),
    ({"text": {"format": "text"}}, "text.format", "invalid_type", "must be an object"),
    *[
        (
            {"text": {"verbosity": word}},
            "text.verbosity",
            "verbosity_not_supported",
            lacks("a chosen verbosity"),
        )
        for word in ("low", "high")
    ],
    (
        {"text": {"verbosity": "loud"}},
        "text.verbosity",
        "invalid_value",
        'must be one of "low", "medium", "high"',
    ),
    (
        {"stream_options": {"include_obfuscation": 1}},
        "stream_options.include_obfuscation",
        "invalid_type",
        "must be a boolean",
    ),
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
]

EFFORTS = 'must be one of "none", "minimal", "low", "medium", "high", "xhigh", "max"'
SUMMARIES = 'must be one of "auto", "concise", "detailed"'
REASONING = "reasoning_option_not_supported"
TEMPLATE: list[Row] = [
    ({"reasoning": {"effort": "huge"}}, "reasoning.effort", "invalid_value", EFFORTS),
    ({"reasoning": {"effort": 3}}, "reasoning.effort", "invalid_type", "must be a string"),
    *[
        ({"reasoning": {name: value}}, f"reasoning.{name}", code, complaint)
        for name in ("summary", "generate_summary")
        for value, code, complaint in (
            ("none", "invalid_value", SUMMARIES),
            (True, "invalid_type", "must be a string"),
        )
    ],
    (
        {"reasoning": {"context": "all_turns"}},
        "reasoning.context",
        REASONING,
        lacks("a chosen reasoning context"),
    ),
    ({"reasoning": {"mode": "pro"}}, "reasoning.mode", REASONING, lacks("a chosen reasoning mode")),
    (
        {"reasoning": {"effort": "low"}, KWARGS: {"reasoning_effort": "high"}},
        "reasoning.effort",
        CONFLICT,
        f"contradicts {KWARGS}",
    ),
    (
        {"reasoning": {"effort": "none"}, KWARGS: {"enable_thinking": True}},
        "reasoning.effort",
        CONFLICT,
        "contradicts enable_thinking",
    ),
    (
        {"preserve_thinking": True, KWARGS: {"preserve_thinking": False}},
        "preserve_thinking",
        CONFLICT,
        f"contradicts {KWARGS}",
    ),
    ({KWARGS: {"enable_thinking": 1}}, f"{KWARGS}.enable_thinking", "invalid_type", "must be a boolean"),
    *[
        (
            {KWARGS: {name: None}},
            f"{KWARGS}.{name}",
            "reserved_template_option",
            "belongs to the server and cannot be set",
        )
        for name in ("messages", "tools", "add_generation_prompt", "eos_token", "chat_template")
    ],
]

ITEMS: list[Row] = [
    ({"input": [5]}, I0, "invalid_type", "must be an object"),
    ({"input": ["hi"]}, I0, "invalid_type", "must be an object"),
    ({"input": {}}, "input", "invalid_type", "must be a string or an array"),
    (item(), f"{I0}.role", *MISSING),
    (item(type=5), f"{I0}.type", "invalid_type", "must be a string"),
    (item(type=None), f"{I0}.type", "invalid_type", "must be a string"),
    (item(role="user"), f"{I0}.content", *MISSING),
    (item(role="tool", content="x"), f"{I0}.role", "invalid_value", ROLES),
    (item(role="critic", content="x"), f"{I0}.role", "invalid_value", ROLES),
    (item(role="user", content=None), f"{I0}.content", "invalid_type", "must be a string or an array"),
    (item(role="user", content={}), f"{I0}.content", "invalid_type", "must be a string or an array"),
    (item(role="user", content="x", id=5), f"{I0}.id", "invalid_type", "must be a string"),
    (item(role="user", content="x", id=""), f"{I0}.id", "invalid_value", ONE),
    (item(role="user", content="x", status=5), f"{I0}.status", "invalid_type", "must be a string"),
    (item(role="user", content="x", phase=5), f"{I0}.phase", "invalid_type", "must be a string"),
    (item(role="user", content="\ud800"), f"{I0}.content", "invalid_json", "holds a lone surrogate"),
    *[
        (item(type=kind, id="x"), f"{I0}.type", *HOSTED_ITEMS)
        for kind in (
            "item_reference",
            "web_search_call",
            "file_search_call",
            "computer_call",
            "computer_call_output",
            "code_interpreter_call",
            "image_generation_call",
            "local_shell_call",
            "local_shell_call_output",
            "shell_call",
            "apply_patch_call",
            "mcp_call",
            "mcp_list_tools",
            "mcp_approval_request",
            "custom_tool_call",
            "custom_tool_call_output",
            "tool_search_call",
            "compaction",
        )
    ],
    (after(user(id="a"), user(id="a")), "input[2].id", "duplicate_item_id", "is the id of an earlier item"),
    (
        after(thought(id="x"), called(id="x")),
        "input[2].id",
        "duplicate_item_id",
        "is the id of an earlier item",
    ),
]

PARTS: list[Row] = [
    (part(5), P0, "invalid_type", "must be an object"),
    (part({}), f"{P0}.type", *MISSING),
    (
        part({"type": "text", "text": "x"}),
        f"{P0}.type",
        "invalid_value",
        'must be one of "input_text", "output_text", "refusal", "input_image", "input_video", '
        '"input_file", "input_audio"',
    ),
    (part({"type": "input_text"}), f"{P0}.text", *MISSING),
    (part({"type": "input_text", "text": None}), f"{P0}.text", "invalid_type", "must be a string"),
    (part({"type": "input_file", "file_id": "f"}), f"{P0}.type", MODALITY, lacks("file input")),
    (part({"type": "input_audio", "data": "x"}), f"{P0}.type", MODALITY, lacks("audio input")),
    (part({"type": "input_image"}), f"{P0}.image_url", *MISSING),
    (part({"type": "input_image", "image_url": 5}), f"{P0}.image_url", "invalid_type", "must be a string"),
    (
        part({"type": "input_image", "image_url": {"url": "https://x/a"}}),
        f"{P0}.image_url",
        "invalid_type",
        "must be a string",
    ),
    (
        part({"type": "input_image", "file_id": "file_1"}),
        f"{P0}.file_id",
        "files_not_supported",
        lacks("files"),
    ),
    *[
        (
            part({"type": "input_image", "image_url": "https://x/a", "detail": detail}),
            f"{P0}.detail",
            "image_detail_not_supported",
            lacks("an explicit image detail"),
        )
        for detail in ("low", "high", "original")
    ],
    *[
        (part({"type": "input_image", "image_url": url}), f"{P0}.image_url", *MEDIA_URL)
        for url in ("", "/etc/passwd", "file:///etc/passwd", "ftp://x/a")
    ],
    (part({"type": "input_video"}), f"{P0}.video_url", *MISSING),
    (part({"type": "input_video", "video_url": "clip.mp4"}), f"{P0}.video_url", *MEDIA_URL),
    *[
        (
            part({"type": kind, **text}, role),
            f"{P0}.type",
            "invalid_value",
            f'may be "{kind}" in assistant messages only',
        )
        for role in ("user", "system", "developer")
        for kind, text in (("output_text", {"text": "x"}), ("refusal", {"refusal": "x"}))
    ],
    *[
        (
            part({"type": f"input_{kind}", f"{kind}_url": "https://x/a"}, role),
            f"{P0}.type",
            MODALITY,
            lacks(f"media in a {role} message"),
        )
        for role in ("system", "developer")
        for kind in ("image", "video")
    ],
    (
        part({"type": "input_text", "text": "x", "prompt_cache_breakpoint": {"mode": "implicit"}}),
        f"{P0}.prompt_cache_breakpoint.mode",
        "invalid_value",
        'must be one of "explicit"',
    ),
    (
        part({"type": "input_text", "text": "x", "prompt_cache_breakpoint": {}}),
        f"{P0}.prompt_cache_breakpoint.mode",
        *MISSING,
    ),
    (
        part({"type": "input_text", "text": "x", "prompt_cache_breakpoint": True}),
        f"{P0}.prompt_cache_breakpoint",
        "invalid_type",
        "must be an object",
    ),
]

I1, I2 = "input[1]", "input[2]"
HISTORY: list[Row] = [
    (after(thought(content=None)), f"{I1}.content", *RAW),
    (after(thought(content=[])), f"{I1}.content", *RAW),
    (
        after({"type": "reasoning", "summary": [{"type": "summary_text", "text": "x"}]}),
        f"{I1}.content",
        *RAW,
    ),
    (after({"type": "reasoning", "summary": [], "encrypted_content": "gAAA"}), f"{I1}.content", *RAW),
    (after(thought(content="Hm.")), f"{I1}.content", "invalid_type", "must be an array"),
    (
        after(thought(content=[{"type": "text", "text": "x"}])),
        f"{I1}.content[0].type",
        "invalid_value",
        'must be one of "reasoning_text"',
    ),
    (after(thought(summary="x")), f"{I1}.summary", "invalid_type", "must be an array"),
    (after(thought(encrypted_content=5)), f"{I1}.encrypted_content", "invalid_type", "must be a string"),
    (after({"type": "function_call", "name": "a", "arguments": "{}"}), f"{I1}.call_id", *MISSING),
    (after({"type": "function_call", "call_id": "c", "arguments": "{}"}), f"{I1}.name", *MISSING),
    (after({"type": "function_call", "call_id": "c", "name": "a"}), f"{I1}.arguments", *MISSING),
    (after(called(call_id="")), f"{I1}.call_id", "invalid_value", ONE),
    *[(after(called(name=name)), f"{I1}.name", *NAME) for name in ("", "a b", "a.b", "é", "x" * 65)],
    *[(after(called(namespace=name)), f"{I1}.namespace", *NAME) for name in ("", "a b", "x" * 65)],
    *[
        (after(called(arguments=text)), f"{I1}.arguments", *ARGUMENTS)
        for text in ("[]", "5", "null", "{", '{"a":NaN}', '{"a":1,"a":2}', "no")
    ],
    (after({**called(), "arguments": {}}), f"{I1}.arguments", "invalid_type", "must be a string"),
    *[(after(called(status=status)), f"{I1}.status", *PARTIAL) for status in ("in_progress", "incomplete")],
    *[
        (after(called(), result(status=status)), f"{I2}.status", *PARTIAL)
        for status in ("in_progress", "incomplete")
    ],
    (
        after(called(status="done")),
        f"{I1}.status",
        "invalid_value",
        'must be one of "in_progress", "completed", "incomplete"',
    ),
    (after(called(), {"type": "function_call_output", "output": "x"}), f"{I2}.call_id", *MISSING),
    (after(called(), {"type": "function_call_output", "call_id": "call_1"}), f"{I2}.output", *MISSING),
    (after(called(), result(output=None)), f"{I2}.output", "invalid_type", "must be a string or an array"),
    (after(called(), result(output={})), f"{I2}.output", "invalid_type", "must be a string or an array"),
    (after(called(), result(output=[])), f"{I2}.output", "invalid_value", "must hold at least 1 part"),
    (output({"type": "input_file", "file_id": "x"}), f"{I2}.output[0].type", MODALITY, lacks("file input")),
    (
        output({"type": "output_text", "text": "x"}),
        f"{I2}.output[0].type",
        "invalid_value",
        'must be one of "input_text", "input_image", "input_file", "input_audio"',
    ),
    (output({"type": "input_image"}), f"{I2}.output[0].image_url", *MISSING),
    (output({"type": "input_image", "image_url": "x"}), f"{I2}.output[0].image_url", *MEDIA_URL),
    # The order of an assistant turn.
    (
        after(said(), thought()),
        I2,
        ASSISTANT_HISTORY,
        "is reasoning after message of the same assistant turn",
    ),
    (
        after(called(), said()),
        I2,
        ASSISTANT_HISTORY,
        "is message after calls of the same assistant turn",
    ),
    (
        after(called(), thought()),
        I2,
        ASSISTANT_HISTORY,
        "is reasoning after calls of the same assistant turn",
    ),
    (
        after(thought(), said(), called(), said()),
        "input[4]",
        ASSISTANT_HISTORY,
        "is message after calls of the same assistant turn",
    ),
    # Results and their calls.
    (after(result()), f"{I1}.call_id", *NO_CALL),
    (item(**result()), f"{I0}.call_id", *NO_CALL),
    (after(called("a"), result("b")), f"{I2}.call_id", *NO_CALL),
    (after(called(), user(), result()), "input[3].call_id", *NO_CALL),
    (after(called(), result(), said(), result()), "input[4].call_id", *NO_CALL),
    (
        after(called(), result(), result()),
        "input[3].call_id",
        TOOLS_HISTORY,
        "names a call that has its result",
    ),
    (after(called(), called()), f"{I2}.call_id", TOOLS_HISTORY, "names two calls of one turn"),
    (
        after(called("a"), called("b"), result("b")),
        "input[3].call_id",
        TOOLS_HISTORY,
        "has a result while a call before it has none",
    ),
    (
        after(called("a"), called("b"), called("c"), result("c"), result("a"), user()),
        "input[4].call_id",
        TOOLS_HISTORY,
        "has a result while a call before it has none",
    ),
    (after(called(), result(name="leap")), f"{I2}.name", TOOLS_HISTORY, "is not the name of the call"),
    (
        after(called(), result(namespace="ns")),
        f"{I2}.namespace",
        TOOLS_HISTORY,
        "is not the namespace of the call",
    ),
    (
        after(called(namespace="a"), result(namespace="b")),
        f"{I2}.namespace",
        TOOLS_HISTORY,
        "is not the namespace of the call",
    ),
]

T0 = "tools[0]"
M0 = "tools[0].tools[0]"
TOOLS: list[Row] = [
    ({"tools": [5]}, T0, "invalid_type", "must be an object"),
    ({"tools": [{}]}, f"{T0}.type", *MISSING),
    ({"tools": [{"type": "function"}]}, f"{T0}.name", *MISSING),
    (
        {"tools": [{"type": "function", "function": {"name": "a"}}]},
        f"{T0}.name",
        *MISSING,
    ),
    *[
        ({"tools": [LOOK, {"type": kind}]}, "tools[1].type", *TOOL_TYPE)
        for kind in (
            "custom",
            "web_search",
            "web_search_preview",
            "file_search",
            "code_interpreter",
            "computer_use_preview",
            "image_generation",
            "local_shell",
            "shell",
            "apply_patch",
            "mcp",
            "tool_search",
        )
    ],
    *[(tool(name=name), f"{T0}.name", *NAME) for name in ("", "a.b", "x" * 65, "a b")],
    (tool(description=5), f"{T0}.description", "invalid_type", "must be a string"),
    (tool(parameters=[]), f"{T0}.parameters", "invalid_type", "must be an object"),
    (tool(parameters={"a": "\ud800"}), f"{T0}.parameters.a", "invalid_json", "holds a lone surrogate"),
    (tool(strict="yes"), f"{T0}.strict", "invalid_type", "must be a boolean"),
    (tool(strict=True), f"{T0}.strict", *STRICT),
    (tool(defer_loading=True), f"{T0}.defer_loading", OPTION, lacks("deferred loading")),
    (tool(output_schema={}), f"{T0}.output_schema", OPTION, lacks("an output schema")),
    (
        tool(allowed_callers=["programmatic"]),
        f"{T0}.allowed_callers",
        OPTION,
        lacks("callers other than direct"),
    ),
    (tool(allowed_callers=[]), f"{T0}.allowed_callers", OPTION, lacks("callers other than direct")),
    ({"tools": [{"type": "namespace", "tools": [LOOK]}]}, f"{T0}.name", *MISSING),
    ({"tools": [{"type": "namespace", "name": "ns"}]}, f"{T0}.tools", *MISSING),
    (
        {"tools": [{"type": "namespace", "name": "ns", "tools": []}]},
        f"{T0}.tools",
        "invalid_value",
        "must hold at least 1 tool",
    ),
    ({"tools": [{"type": "namespace", "name": "a b", "tools": [LOOK]}]}, f"{T0}.name", *NAME),
    (
        {"tools": [{"type": "namespace", "name": "ns", "tools": [{"type": "custom", "name": "x"}]}]},
        f"{M0}.type",
        *TOOL_TYPE,
    ),
    (
        {"tools": [{"type": "namespace", "name": "ns", "tools": [{"type": "namespace"}]}]},
        f"{M0}.type",
        "invalid_value",
        'must be one of "function", "custom"',
    ),
    (member(name="a.b"), f"{M0}.name", *NAME),
    (member(strict=True), f"{M0}.strict", *STRICT),
    (member(defer_loading=True), f"{M0}.defer_loading", OPTION, lacks("deferred loading")),
    (
        member(allowed_callers=["programmatic"]),
        f"{M0}.allowed_callers",
        OPTION,
        lacks("callers other than direct"),
    ),
    ({"tool_choice": "required"}, "tool_choice", *FORCED),
    ({"tool_choice": "any"}, "tool_choice", "invalid_value", 'must be one of "auto", "none", "required"'),
    ({"tool_choice": {}}, "tool_choice.type", *MISSING),
    *[
        ({"tools": [LOOK], "tool_choice": {"type": kind, "name": "look"}}, "tool_choice.type", *FORCED)
        for kind in (
            "function",
            "custom",
            "mcp",
            "web_search_preview",
            "file_search",
            "shell",
            "apply_patch",
        )
    ],
    (
        {"tools": [LOOK], "parallel_tool_calls": False},
        "parallel_tool_calls",
        "parallel_tool_calls_not_supported",
        lacks("at most one tool call"),
    ),
    (
        {**member(), "parallel_tool_calls": False},
        "parallel_tool_calls",
        "parallel_tool_calls_not_supported",
        lacks("at most one tool call"),
    ),
    (allowed(), "tool_choice.tools", "invalid_value", "must hold at least 1 tool"),
    (allowed({"type": "function", "name": "look"}, mode="required"), "tool_choice.mode", *FORCED),
    (
        allowed(mode="maybe"),
        "tool_choice.mode",
        "invalid_value",
        'must be one of "auto", "required"',
    ),
    ({"tool_choice": {"type": "allowed_tools", "tools": []}}, "tool_choice.mode", *MISSING),
    ({"tool_choice": {"type": "allowed_tools", "mode": "auto"}}, "tool_choice.tools", *MISSING),
    (allowed({"type": "function"}), "tool_choice.tools[0].name", *MISSING),
    (allowed({"type": "mcp", "name": "look"}), "tool_choice.tools[0].type", *TOOL_TYPE),
    (
        allowed({"type": "function", "name": "leap"}),
        "tool_choice.tools[0].name",
        "invalid_tool_choice",
        "is not the name of a declared tool",
    ),
    (
        allowed({"type": "function", "name": "look", "namespace": "ns"}),
        "tool_choice.tools[0].name",
        "invalid_tool_choice",
        "is not the name of a declared tool",
    ),
]

ROWS: list[Row] = [
    *ENVELOPE,
    *NUMBERS,
    *METADATA,
    *CAPABILITIES,
    *TEMPLATE,
    *ITEMS,
    *PARTS,
    *HISTORY,
    *TOOLS,
]

TYPES: dict[str, str] = {
    "model": "a string",
    "input": "a string or an array",
    "instructions": "a string",
    "previous_response_id": "a string",
    "stream": "a boolean",
    "store": "a boolean",
    "max_output_tokens": "an integer",
    "temperature": "a number",
    "top_p": "a number",
    "reasoning": "an object",
    "chat_template_kwargs": "an object",
    "preserve_thinking": "a boolean",
    "tools": "an array",
    "tool_choice": "a string or an object",
    "parallel_tool_calls": "a boolean",
    "prompt_cache_options": "an object",
    "metadata": "an object",
    "max_tool_calls": "an integer",
    "user": "a string",
    "safety_identifier": "a string",
    "prompt_cache_key": "a string",
    "text": "an object",
    "truncation": "a string",
    "top_logprobs": "an integer",
    "service_tier": "a string",
    "background": "a boolean",
    "include": "an array",
    "stream_options": "an object",
    "client_metadata": "an object",
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
            if noun not in taken and (field, noun) != ("input", "an object"):  # stands in ITEMS
                rows.append(({field: sample}, field, "invalid_type", f"must be {nouns}"))
    return rows
