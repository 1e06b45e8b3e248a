"""What an accepted Messages request asks of the server."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from ninfer.prompt.conversation import Conversation, MediaPart, Message, TemplateOptions, TextPart, ToolCall
from ninfer.protocols.service import Ask, SamplingAsk
from tests.protocols.fakes import ScriptedService
from tests.protocols.messages.cases import (
    EPHEMERAL,
    GOOD,
    HOUR,
    TOOL,
    USER,
    image,
    marked,
    result,
    text,
    thinking,
    tool,
    turns,
    use,
)
from tests.protocols.messages.reader import COUNT, post

BILLING = "x-anthropic-billing-header: cc_version=2.1; cch=a1b2c;"
PNG = "data:image/png;base64,iVBORw0KGgo="


async def ask(**change: Any) -> Ask:
    service = ScriptedService()
    exchange = await post({**GOOD, **change}, service)
    assert exchange.status == 200, exchange.json
    return service.asks[0]


async def messages(**change: Any) -> tuple[Message, ...]:
    return (await ask(**change)).conversation.messages


def said(message: Message) -> list[str]:
    return [part.text if isinstance(part, TextPart) else part.source for part in message.parts]


# Everything unsaid


async def test_a_bare_request_decides_nothing() -> None:
    service = ScriptedService()
    await post({"model": "claude-x", "messages": [USER]}, service)
    (asked,) = service.asks
    assert asked == Ask(
        protocol="anthropic_messages",
        request_id="req_0001",
        stream=False,
        conversation=attrs.evolve(
            Conversation((Message("user", (TextPart("hi"),)),)),
            options=TemplateOptions(effort_apart=True),
            cache=attrs.evolve(Conversation(()).cache, implicit=False),
        ),
        model="claude-x",
        tool_name_limit=128,
        response_id="msg_0000000000000001",
    )


@pytest.mark.parametrize(
    "change, sampling",
    [
        ({"temperature": 0}, {"temperature": 0}),
        ({"temperature": 2}, {"temperature": 2}),
        ({"top_p": 0.5}, {"top_p": 0.5}),
        ({"top_k": 0}, {"top_k": 0}),
        ({"top_k": 20, "temperature": 0.3}, {"top_k": 20, "temperature": 0.3}),
    ],
)
async def test_sampling_fields_arrive(change: dict[str, Any], sampling: dict[str, Any]) -> None:
    assert (await ask(**change)).sampling == SamplingAsk(**sampling)


@pytest.mark.parametrize("limit", [1, 4096, None])
async def test_the_output_limit_arrives_and_may_be_left_out(limit: int | None) -> None:
    asked = await ask(max_tokens=limit)
    assert (asked.max_tokens, asked.max_tokens_param) == (limit, "max_tokens")


@pytest.mark.parametrize("stops", [[], None, ["END"], ["\n", "a b", "END", "x", "y"]])
async def test_stop_sequences_arrive_in_order(stops: Any) -> None:
    assert (await ask(stop_sequences=stops)).stop == tuple(stops or ())


NEUTRAL: dict[str, Any] = {
    "metadata": {"user_id": "user_1_account__session_2"},
    "service_tier": "standard_only",
    "inference_geo": "us",
    "speed": "fast",
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "mcp_servers": [],
    "container": None,
    "output_format": None,
    "output_config": {"effort": None, "format": None, "task_budget": {"total": 5}},
    "tools": [],
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    "stop_sequences": [],
    "system": "",
    "anthropic_beta": ["x"],
    "some_future_field": {"value": [1, 2, 3]},
}


@pytest.mark.parametrize("field", NEUTRAL)
async def test_a_neutral_field_changes_nothing(field: str) -> None:
    assert await ask(**{field: NEUTRAL[field]}) == await ask()


async def test_all_neutral_fields_together_change_nothing() -> None:
    assert await ask(**NEUTRAL) == await ask()


NULLABLE = (
    "system tools tool_choice thinking output_config cache_control preserve_thinking chat_template_kwargs"
    " output_format mcp_servers container max_tokens stream stop_sequences temperature top_p top_k metadata"
    " service_tier inference_geo"
)


@pytest.mark.parametrize("field", NULLABLE.split())
async def test_null_is_as_good_as_absent(field: str) -> None:
    bare = {name: value for name, value in GOOD.items() if name != field}
    service = ScriptedService()
    await post({**bare, field: None}, service)
    await post(bare, service)
    assert service.asks[0] == service.asks[1]


@pytest.mark.parametrize("label", ["claude-opus-4-6", "anything at all", "日本"])
async def test_any_label_is_taken_and_echoed(label: str) -> None:
    service = ScriptedService()
    exchange = await post({**GOOD, "model": label}, service)
    assert exchange.json["model"] == label == service.asks[0].model


# System text


@pytest.mark.parametrize(
    "system, expected",
    [
        ("Be brief.", ["Be brief."]),
        ([text("Be brief."), text(" And kind.")], ["Be brief.", " And kind."]),
        ([text("Be brief.", citations=None, cache_control=None)], ["Be brief."]),
        ([text(BILLING), text("Be brief.")], ["Be brief."]),
        ([text(BILLING + "\nmore of it"), text("Be brief.")], ["Be brief."]),
        ([text("x-anthropic-billing-header:")], []),
        # Everything else is prompt.
        (BILLING, [BILLING]),
        ([text("Be brief."), text(BILLING)], ["Be brief.", BILLING]),
        ([text(BILLING), text(BILLING)], [BILLING]),
        ([text(" " + BILLING)], [" " + BILLING]),
        ([text("X-Anthropic-Billing-Header: a")], ["X-Anthropic-Billing-Header: a"]),
        ([text("x-anthropic-billing-header")], ["x-anthropic-billing-header"]),
        ("", []),
        ([], []),
    ],
)
async def test_system_text_and_the_billing_header(system: Any, expected: list[str]) -> None:
    first, *rest = await messages(system=system)
    if expected:
        assert (first.role, said(first)) == ("system", expected)
    assert len(rest) == bool(expected)


async def test_an_inline_system_message_with_a_billing_header_is_prompt() -> None:
    found = await messages(**turns(("system", [text(BILLING)]), ("user", "a")))
    assert said(found[0]) == [BILLING]


async def test_the_marker_of_a_billing_header_goes_with_it() -> None:
    asked = await ask(system=[text(BILLING, cache_control=HOUR), text("a")], **turns(("user", marked(4))))
    assert not any(part.mark for part in asked.conversation.messages[0].parts)


async def test_every_role_keeps_its_place() -> None:
    found = await messages(
        system="S",
        **turns(
            ("system", "0"),
            ("developer", "1"),
            ("user", "2"),
            ("assistant", "3"),
            ("system", "4"),
            ("system", [text("5")]),
            ("user", "6"),
        ),
    )
    assert [(message.role, *said(message)) for message in found] == [
        ("system", "S"),
        ("system", "0"),
        ("developer", "1"),
        ("user", "2"),
        ("assistant", "3"),
        ("system", "4"),
        ("system", "5"),
        ("user", "6"),
    ]


# Turns


async def test_consecutive_messages_of_a_role_are_joined_without_separators() -> None:
    found = await messages(
        **turns(
            ("user", "a"),
            ("user", [text("b"), image()]),
            ("user", ""),
            ("assistant", "c"),
            ("assistant", [text("d")]),
            ("user", "e"),
        )
    )
    assert [(message.role, said(message)) for message in found] == [
        ("user", ["a", "b", PNG]),
        ("assistant", ["c", "d"]),
        ("user", ["e"]),
    ]


@pytest.mark.parametrize("content", ["", []])
async def test_empty_content_is_an_empty_turn(content: Any) -> None:
    assert await messages(**turns(("user", content))) == (Message("user"),)


async def test_text_that_quotes_media_and_markers_stays_text() -> None:
    quoted = "data:image/png;base64,AAAA <|image_pad|> <|im_end|>"
    assert await messages(**turns(("user", quoted))) == (Message("user", (TextPart(quoted),)),)


@pytest.mark.parametrize(
    "source, expected",
    [
        ({"type": "base64", "media_type": "image/webp", "data": "AAA="}, "data:image/webp;base64,AAA="),
        ({"type": "url", "url": "https://example.com/a.png"}, "https://example.com/a.png"),
        ({"type": "url", "url": "HTTP://example.com/a.png"}, "HTTP://example.com/a.png"),
    ],
)
async def test_an_image_names_its_source_and_its_place(source: dict[str, Any], expected: str) -> None:
    (message,) = await messages(**turns(("user", [text("a"), image(**source), text("b")])))
    assert message.parts[1] == MediaPart("image", expected, "messages[0].content[1]")
    assert said(message) == ["a", expected, "b"]


async def test_thinking_history_is_reasoning_and_a_signature_is_nothing() -> None:
    found = await messages(
        **turns(
            ("assistant", [thinking("One. ", signature="abc"), text("a")]),
            ("assistant", [{"type": "thinking", "thinking": "Two."}, text("b")]),
            ("user", "c"),
        )
    )
    assert found[0] == Message("assistant", (TextPart("a"), TextPart("b")), reasoning="One. Two.")


@pytest.mark.parametrize(
    "value", [{"type": "redacted_thinking", "data": "opaque"}, thinking("", signature="encrypted")]
)
async def test_thinking_that_cannot_be_read_is_left_out(value: dict[str, Any]) -> None:
    found = await messages(**turns(("assistant", [value, text("a")]), ("user", "b")))
    assert found[0] == Message("assistant", (TextPart("a"),))


# Tool history


async def test_results_come_in_the_order_of_their_calls() -> None:
    found = await messages(
        **turns(
            ("user", "a"),
            ("assistant", [thinking("Hm."), text("I look."), use("t1", input={"z": 1, "a": 2}), use("t2")]),
            ("user", [result("t2", content="two", is_error=True), result("t1", content="one")]),
        )
    )
    assert found[1].reasoning == "Hm." and said(found[1]) == ["I look."]
    assert found[1].calls == (ToolCall("t1", "look", {"z": 1, "a": 2}), ToolCall("t2", "look", {}))
    assert list(found[1].calls[0].arguments) == ["z", "a"]
    assert found[2:] == (
        Message("tool", (TextPart("one"),), call_id="t1"),
        Message("tool", (TextPart("two"),), call_id="t2", is_error=True),
    )


async def test_what_follows_the_results_is_a_user_turn() -> None:
    found = await messages(
        **turns(
            ("assistant", [use()]),
            ("user", [result(content="r")]),
            ("user", [text("<system-reminder>"), image()]),
        )
    )
    assert [message.role for message in found] == ["assistant", "tool", "user"]
    assert said(found[2]) == ["<system-reminder>", PNG]


async def test_results_may_lead_over_several_user_messages() -> None:
    found = await messages(
        **turns(
            ("assistant", [use("t1"), use("t2")]),
            ("user", [result("t2", content="two")]),
            ("user", [result("t1", content="one"), text("go on")]),
        )
    )
    assert [said(message) for message in found[1:]] == [["one"], ["two"], ["go on"]]


@pytest.mark.parametrize("before", [(), (("system", "s"),)])
async def test_a_history_may_begin_with_results(before: Any) -> None:
    found = await messages(**turns(*before, ("user", [result("y"), result("x"), text("a")])))
    found = found[len(before) :]
    assert [(message.role, message.call_id) for message in found] == [
        ("tool", "y"),
        ("tool", "x"),
        ("user", None),
    ]


async def test_a_system_message_between_call_and_result_keeps_its_place() -> None:
    found = await messages(**turns(("assistant", [use()]), ("system", "s"), ("user", [result()])))
    assert [message.role for message in found] == ["assistant", "system", "tool"]


async def test_ids_may_come_again_in_a_later_turn() -> None:
    pair = (("assistant", [use("t1")]), ("user", [result("t1")]))
    assert len(await messages(**turns(*pair, *pair))) == 4


async def test_text_and_images_of_a_result_keep_their_order() -> None:
    inner = [text("a"), image(), text("b"), image(type="url", url="https://x/y")]
    (message,) = await messages(**turns(("user", [result(content=inner)])))
    assert said(message) == ["a", PNG, "b", "https://x/y"]
    assert isinstance(message.parts[1], MediaPart)
    assert message.parts[1].param == "messages[0].content[0].content[1]"


@pytest.mark.parametrize("content", [{}, {"content": None}, {"content": ""}, {"content": []}])
async def test_a_result_may_be_empty(content: dict[str, Any]) -> None:
    (message,) = await messages(**turns(("user", [result(**content)])))
    assert message == Message("tool", call_id="t1")


# Prefill


@pytest.mark.parametrize(
    "final, expected",
    [
        ([("assistant", "The answer is")], ["The answer is"]),
        ([("assistant", [text("The"), text(" answer")])], ["The", " answer"]),
        ([("assistant", "The"), ("assistant", " answer")], ["The", " answer"]),
        ([("assistant", "")], []),
    ],
)
async def test_a_final_assistant_text_is_continued(final: list[Any], expected: list[str]) -> None:
    conversation = (await ask(**turns(("user", "a"), *final))).conversation
    assert conversation.continue_final and conversation.options.enable_thinking is False
    assert said(conversation.messages[-1]) == expected


@pytest.mark.parametrize(
    "more", [{}, {"thinking": {"type": "disabled"}}, {"output_config": {"effort": "low"}}]
)
async def test_a_prefill_never_thinks(more: dict[str, Any]) -> None:
    asked = await ask(**turns(("user", "a"), ("assistant", "b")), **more)
    assert asked.conversation.options.enable_thinking is False


async def test_an_assistant_turn_before_a_system_message_is_no_prefill() -> None:
    asked = await ask(**turns(("user", "a"), ("assistant", "b"), ("system", "c")))
    assert not asked.conversation.continue_final


# Thinking


@pytest.mark.parametrize(
    "thought, switch, budget",
    [
        (None, None, None),
        ({"type": "disabled"}, False, None),
        ({"type": "adaptive"}, True, None),
        ({"type": "adaptive", "display": "summarized"}, True, None),
        ({"type": "enabled", "budget_tokens": 1024}, True, 1024),
        ({"type": "enabled", "budget_tokens": 4095, "display": "summarized"}, True, 4095),
    ],
)
async def test_thinking_becomes_a_switch_and_a_budget(
    thought: Any, switch: bool | None, budget: int | None
) -> None:
    asked = await ask(thinking=thought, max_tokens=4096)
    assert (asked.conversation.options.enable_thinking, asked.thinking_budget) == (switch, budget)


async def test_a_budget_needs_no_limit_beside_it() -> None:
    asked = await ask(thinking={"type": "enabled", "budget_tokens": 10**6}, max_tokens=None)
    assert asked.thinking_budget == 10**6


@pytest.mark.parametrize("effort", ["low", "medium", "high", "xhigh", "max"])
@pytest.mark.parametrize("mode, switch", [(None, None), ("adaptive", True), ("disabled", False)])
async def test_an_effort_is_for_the_template_whether_or_not_there_is_thinking(
    effort: str, mode: str | None, switch: bool | None
) -> None:
    asked = await ask(output_config={"effort": effort}, thinking=mode and {"type": mode})
    options = asked.conversation.options
    assert (options.reasoning_effort, options.enable_thinking) == (effort, switch)


async def test_template_options_arrive() -> None:
    asked = await ask(preserve_thinking=True, chat_template_kwargs={"enable_thinking": False, "x": [None]})
    options = asked.conversation.options
    assert (options.preserve_thinking, options.enable_thinking) == (True, False)
    assert options.kwargs == {"x": [None]}


# Tools


async def test_a_definition_becomes_a_function_in_received_order() -> None:
    schema = {"type": "object", "properties": {"z": {"type": "string"}, "a": {"enum": [2, 1]}}}
    sent = {
        "input_schema": schema,
        "name": "look",
        "x_vendor": 1,
        "input_examples": [{"z": "1", "a": 2}],
        "strict": False,
        "type": "custom",
        "description": "Look.",
        "defer_loading": False,
        "allowed_callers": ["code_execution_20250825", "direct"],
        "eager_input_streaming": True,
    }
    (made,) = (await ask(tools=[sent])).conversation.tools
    assert made.definition == {
        "type": "function",
        "function": {
            "parameters": schema,
            "name": "look",
            "input_examples": [{"z": "1", "a": 2}],
            "description": "Look.",
        },
    }
    function: Any = made.definition["function"]
    assert list(function) == ["parameters", "name", "input_examples", "description"]
    assert list(function["parameters"]["properties"]) == ["z", "a"]
    assert (made.name, made.parameters, made.mark) == ("look", schema, False)


@pytest.mark.parametrize("schema", [{}, {"type": "object"}, {"properties": {}}, {"$ref": "#/x"}])
async def test_a_schema_is_any_object_that_describes_one(schema: dict[str, Any]) -> None:
    assert (await ask(**tool(input_schema=schema))).conversation.tools[0].parameters == schema


@pytest.mark.parametrize("choice", [{"type": "auto"}, {"type": "auto", "disable_parallel_tool_use": False}])
async def test_choice_auto_leaves_all_tools(choice: dict[str, Any]) -> None:
    asked = await ask(tools=[TOOL], tool_choice=choice)
    assert (asked.tool_choice, len(asked.conversation.tools)) == ("auto", 1)


async def test_choice_none_leaves_no_tool_whatever_the_history_holds() -> None:
    history = turns(("assistant", [use()]), ("user", [result()]))
    asked = await ask(tools=[TOOL], tool_choice={"type": "none"}, **history)
    assert (asked.tool_choice, asked.conversation.tools) == ("none", ())
    assert asked.conversation.messages[0].calls


@pytest.mark.parametrize("name", ["x" * 128, "mcp__server__tool-1"])
async def test_a_long_name_is_a_name(name: str) -> None:
    asked = await ask(**tool(name=name))
    assert asked.conversation.tools[0].name == name and asked.tool_name_limit == 128


# Cache markers


def marks(asked: Ask) -> list[str]:
    """What carries a mark, in prompt order."""
    found = [tool.name for tool in asked.conversation.tools if tool.mark]
    for message in asked.conversation.messages:
        found += [
            part.text if isinstance(part, TextPart) else "image" for part in message.parts if part.mark
        ]
        found += [call.id for call in message.calls if call.mark]
    return found


M: dict[str, Any] = {"cache_control": EPHEMERAL}
CACHED: list[tuple[dict[str, Any], list[str]]] = [
    ({}, []),
    (tool(**M), ["look"]),
    ({"system": [text("s", **M), text("t")]}, ["s"]),
    (turns(("user", [text("a", **M), text("b")])), ["a"]),
    (turns(("user", [{**image(), **M}, text("b")])), ["image"]),
    (turns(("user", "u"), ("system", [text("s", **M)])), ["s"]),
    (turns(("assistant", [text("a", **M), use("t1", **M)]), ("user", [result("t1")])), ["a", "t1"]),
    (turns(("user", [result(content=[text("a"), text("b")], **M)])), ["b"]),
    (turns(("user", [result(content="whole", **M)])), ["whole"]),
    (turns(("user", [result(content=[text("a", **M), text("b")])])), ["a"]),
    # A marker on nothing is legal and has no place in the prompt.
    (turns(("user", [result(**M), text("a")])), []),
    # Two markers at one place are one.
    (turns(("user", [result(content=[text("a"), text("b", **M)], **M)])), ["b"]),
    (
        {**tool(**M), "system": marked(2), **turns(("user", [result(content=marked(1), **M)]))},
        ["look", "0", "1", "0"],
    ),
    # On the whole request: the last block that can be cached.
    ({"cache_control": EPHEMERAL}, ["hi"]),
    ({"cache_control": EPHEMERAL, **turns(("user", [text("a"), text("")]))}, ["a"]),
    ({"cache_control": EPHEMERAL, **turns(("user", "a"), ("assistant", "b"))}, ["b"]),
    ({"cache_control": EPHEMERAL, **turns(("user", [result(content=[text("a"), image()])]))}, ["image"]),
    ({"cache_control": EPHEMERAL, "system": "s", **turns(("user", ""))}, ["s"]),
    # It merges with a marker at the same place and time to live, whatever else is marked.
    ({"cache_control": EPHEMERAL, **turns(("user", marked(4)))}, ["0", "1", "2", "3"]),
    (
        {"cache_control": {"type": "ephemeral", "ttl": "5m"}, **turns(("user", [text("a", **M)]))},
        ["a"],
    ),
    ({"cache_control": HOUR, **turns(("user", [text("a", cache_control=HOUR)]))}, ["a"]),
    ({"cache_control": HOUR, "system": marked(3)}, ["0", "1", "2", "hi"]),
]


@pytest.mark.parametrize("change, expected", CACHED)
async def test_cache_markers_become_marks(change: dict[str, Any], expected: list[str]) -> None:
    assert marks(await ask(**change)) == expected


async def test_thinking_cannot_be_the_last_block_that_is_cached() -> None:
    history = turns(("user", "q"), ("assistant", [text("a"), thinking()]), ("system", ""))
    assert marks(await ask(cache_control=EPHEMERAL, **history)) == ["a"]


async def test_nothing_is_marked_unasked() -> None:
    assert not (await ask()).conversation.cache.implicit


# Counting


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"system": [text(BILLING), text("s", **M)], **tool(**M)},
        {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2000},
        turns(("user", "a"), ("assistant", "b")),
        turns(("assistant", [thinking(), use()]), ("user", [result(is_error=True), image()])),
        {"cache_control": EPHEMERAL, "chat_template_kwargs": {"x": 1}, "preserve_thinking": True},
    ],
)
async def test_a_count_counts_the_prompt_that_would_run(change: dict[str, Any]) -> None:
    service = ScriptedService(tokens=77)
    exchange = await post({**GOOD, **change}, service, COUNT)
    assert (exchange.status, exchange.json) == (200, {"input_tokens": 77})
    assert service.counted == [(await ask(**change)).conversation]


@pytest.mark.parametrize(
    "change",
    [
        {"max_tokens": 0},
        {"max_tokens": "many"},
        {"stream": "yes"},
        {"temperature": -5, "top_p": "x", "top_k": 900},
        {"stop_sequences": 5},
        {"metadata": 5},
        {"thinking": {"type": "enabled", "budget_tokens": 4096}, "max_tokens": 1},
    ],
)
async def test_output_fields_do_not_matter_to_a_count(change: dict[str, Any]) -> None:
    service = ScriptedService()
    exchange = await post({**GOOD, **change}, service, COUNT)
    assert exchange.status == 200 and not exchange.streamed and not service.asks
