"""What an accepted Chat request asks of the server."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from ninfer.prompt.conversation import MediaPart, Message, TemplateOptions, TextPart, ToolCall
from ninfer.protocols.chat.handler import chat_routes
from ninfer.protocols.service import Ask, SamplingAsk
from tests.protocols.chat.cases import GOOD, TOOL, USER, allowed, assistant, call, part, tool
from tests.protocols.fakes import RecordingExchange, ScriptedService, kit, request


async def ask(**change: Any) -> Ask:
    service = ScriptedService()
    exchange = RecordingExchange()
    (route,) = chat_routes(kit(service))
    await route.handler(request({**GOOD, **change}), exchange)
    assert exchange.status == 200, exchange.json
    return service.asks[0]


async def messages(**change: Any) -> tuple[Message, ...]:
    return (await ask(**change)).conversation.messages


def texts(message: Message) -> list[str]:
    return [part.text for part in message.parts if isinstance(part, TextPart)]


# Everything unsaid


async def test_a_bare_request_decides_nothing() -> None:
    asked = await ask()
    assert (asked.protocol, asked.request_id, asked.stream) == (
        "openai_chat_completions",
        "req_0001",
        False,
    )
    assert (asked.max_tokens, asked.stop, asked.sampling) == (None, (), SamplingAsk())
    assert (asked.thinking_budget, asked.session, asked.progress) == (None, None, False)
    assert asked.conversation.options == TemplateOptions()
    assert asked.conversation.messages == (Message("user", (TextPart("hi"),)),)
    assert asked.conversation.cache.implicit and not asked.conversation.tools
    assert asked.response_id == "chatcmpl-0000000000000001" and asked.model == "tiny"
    assert asked.tool_name_limit == 64


# Sampling, limits, stops


@pytest.mark.parametrize(
    "field, name, value",
    [
        ("temperature", "temperature", 0),
        ("temperature", "temperature", 2),
        ("top_p", "top_p", 0.5),
        ("top_p", "top_p", 1),
        ("top_k", "top_k", 0),
        ("top_k", "top_k", 20),
        ("min_p", "min_p", 0.05),
        ("presence_penalty", "presence", -2),
        ("frequency_penalty", "frequency", 2),
        ("seed", "seed", -1),
        ("seed", "seed", 2**63 - 1),
        ("seed", "seed", -(2**63)),
    ],
)
async def test_a_sampling_field_arrives(field: str, name: str, value: float) -> None:
    asked = await ask(**{field: value})
    wanted: Any = {name: value}
    assert asked.sampling == SamplingAsk(**wanted)


@pytest.mark.parametrize(
    "change, limit, named",
    [
        ({"max_tokens": 9}, 9, "max_tokens"),
        ({"max_tokens": 0}, 0, "max_tokens"),
        ({"max_completion_tokens": 9}, 9, "max_completion_tokens"),
        ({"max_completion_tokens": 0}, 0, "max_completion_tokens"),
        ({"max_completion_tokens": 48, "max_tokens": 9}, 48, "max_completion_tokens"),
        ({"max_completion_tokens": 0, "max_tokens": 9}, 0, "max_completion_tokens"),
        ({"max_completion_tokens": None, "max_tokens": 9}, 9, "max_tokens"),
        ({"max_tokens": None}, None, "max_tokens"),
    ],
)
async def test_the_newer_output_limit_counts(change: dict[str, Any], limit: int | None, named: str) -> None:
    asked = await ask(**change)
    assert (asked.max_tokens, asked.max_tokens_param) == (limit, named)


@pytest.mark.parametrize(
    "stop, expected",
    [
        ("END", ("END",)),
        (["a", "b", "c", "d"], ("a", "b", "c", "d")),
        (["\n", " "], ("\n", " ")),
        ([], ()),
        (None, ()),
    ],
)
async def test_stop_strings_arrive_in_order(stop: Any, expected: tuple[str, ...]) -> None:
    assert (await ask(stop=stop)).stop == expected


# Neutral values and hints

NEUTRAL: dict[str, Any] = {
    "n": 1,
    "logit_bias": {"12": 0, "13": 0.0},
    "logprobs": False,
    "top_logprobs": 0,
    "response_format": {"type": "text"},
    "modalities": ["text"],
    "audio": {"voice": "alloy", "format": "wav"},
    "prediction": {"type": "content", "content": "expected"},
    "verbosity": "medium",
    "store": False,
    "functions": [],
    "function_call": "auto",
    "tools": [],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "repetition_penalty": 1,
    "mm_processor_kwargs": {"max_pixels": None},
    "metadata": {"trace": "client", "deep": {"a": [1]}},
    "user": "user-1",
    "safety_identifier": "safe-1",
    "service_tier": "auto",
    "prompt_cache_key": "key-1",
    "prompt_cache_retention": "24h",
    "prompt_cache_options": {"mode": "implicit", "ttl": "30m", "later": 1},
    "grammar": "",
    "stream_options": {"include_usage": True},
    "timings_per_token": True,
    "return_progress": True,
    "some_future_field": {"value": [1, 2, 3]},
}


@pytest.mark.parametrize("field", NEUTRAL)
async def test_a_neutral_field_changes_nothing(field: str) -> None:
    assert await ask(**{field: NEUTRAL[field]}) == await ask()


async def test_all_neutral_fields_together_change_nothing() -> None:
    assert await ask(**NEUTRAL) == await ask()


@pytest.mark.parametrize("field", sorted(set(NEUTRAL) - {"some_future_field"}))
async def test_null_is_as_good_as_absent(field: str) -> None:
    assert await ask(**{field: None}) == await ask()


@pytest.mark.parametrize(
    "change",
    [
        {"function_call": "none"},
        {"mm_processor_kwargs": {}},
        {"logit_bias": {}},
        {"tool_choice": "none"},
        {"parallel_tool_calls": False},
        {"service_tier": "priority"},
        {"prompt_cache_retention": "in_memory"},
        {"stream_options": {}},
        {"repetition_penalty": 1.0},
    ],
)
async def test_other_neutral_values_change_nothing(change: dict[str, Any]) -> None:
    expected = attrs.evolve(await ask(), tool_choice=change.get("tool_choice", "auto"))
    assert await ask(**change) == expected


async def test_an_unknown_member_of_a_message_is_ignored() -> None:
    assert await messages(
        messages=[{**USER, "later": 1, "content": [{"type": "text", "text": "hi", "x": 1}]}]
    )


# Messages


async def test_every_role_keeps_its_place() -> None:
    roles = ["system", "developer", "user", "assistant", "system", "user"]
    sent = [{"role": role, "content": str(index)} for index, role in enumerate(roles)]
    got = await messages(messages=sent)
    assert [message.role for message in got] == roles
    assert [texts(message) for message in got] == [[str(index)] for index in range(6)]


async def test_adjacent_parts_are_kept_apart_and_unchanged() -> None:
    parts = [{"type": "text", "text": text} for text in ("alpha", "", " beta\n")]
    (message,) = await messages(messages=[{"role": "user", "content": parts}])
    assert texts(message) == ["alpha", "", " beta\n"]


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant"])
@pytest.mark.parametrize("empty", ["", []])
async def test_empty_content_is_an_empty_turn(role: str, empty: Any) -> None:
    got = await messages(messages=[USER, {"role": role, "content": empty}])
    assert (got[1].role, got[1].parts) == (role, ())


@pytest.mark.parametrize("members", [{}, {"content": None}, {"content": None, "tool_calls": []}])
async def test_an_assistant_turn_may_be_empty(members: dict[str, Any]) -> None:
    assert (await messages(**assistant(**members)))[1] == Message("assistant")


async def test_empty_values_that_belong_elsewhere_are_let_pass() -> None:
    empty: dict[str, Any] = {
        "name": "",
        "tool_calls": [],
        "reasoning_content": "",
        "reasoning": None,
        "tool_call_id": "",
    }
    assert await messages(messages=[{**USER, **empty}]) == await messages()


async def test_refusals_are_assistant_text() -> None:
    history = assistant(content=[{"type": "refusal", "refusal": "part"}], refusal="top-level")
    assert texts((await messages(**history))[1]) == ["part", "top-level"]


async def test_quoted_media_and_placeholders_stay_text() -> None:
    text = "data:image/png;base64,AAAA <|vision_start|><|image_pad|><|vision_end|>"
    (message,) = await messages(messages=[{"role": "user", "content": text}])
    assert texts(message) == [text]


# Reasoning history


@pytest.mark.parametrize(
    "members, expected",
    [
        ({"reasoning_content": "thought"}, "thought"),
        ({"reasoning": "thought"}, "thought"),
        ({"reasoning": "thought", "reasoning_content": "thought"}, "thought"),
        ({"reasoning": "thought", "reasoning_content": ""}, "thought"),
        ({"reasoning": None, "reasoning_content": "thought"}, "thought"),
        ({"reasoning": "", "reasoning_content": ""}, None),
        ({}, None),
    ],
)
async def test_reasoning_has_two_names(members: dict[str, Any], expected: str | None) -> None:
    assert (await messages(**assistant(content="answer", **members)))[1].reasoning == expected


async def test_a_turn_may_hold_reasoning_alone() -> None:
    got = (await messages(**assistant(content=None, reasoning_content="unfinished")))[1]
    assert got == Message("assistant", reasoning="unfinished")


# Template switches


@pytest.mark.parametrize(
    "change",
    [
        {"reasoning_effort": "none"},
        {"enable_thinking": False},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"chat_template_kwargs": {"reasoning_effort": "none"}},
        {"reasoning_effort": "none", "enable_thinking": False},
    ],
)
async def test_thinking_can_be_switched_off_in_every_spelling(change: dict[str, Any]) -> None:
    assert (await ask(**change)).conversation.options.enable_thinking is False


@pytest.mark.parametrize("effort", ["minimal", "low", "medium", "high", "xhigh", "max"])
async def test_the_template_interprets_an_effort(effort: str) -> None:
    options = (await ask(reasoning_effort=effort)).conversation.options
    assert (options.reasoning_effort, options.enable_thinking) == (effort, None)


async def test_preserve_thinking_stays_unset_unless_said() -> None:
    assert (await ask()).conversation.options.preserve_thinking is None
    assert (await ask(preserve_thinking=False)).conversation.options.preserve_thinking is False


async def test_template_kwargs_pass_in_order() -> None:
    kwargs = {"zeta": None, "add_vision_id": True, "alpha": {"b": 1, "a": 2}}
    options = (await ask(chat_template_kwargs=kwargs)).conversation.options
    assert list(options.kwargs.items()) == list(kwargs.items())


# Tool history


async def test_calls_and_results_arrive() -> None:
    history = [
        USER,
        {"role": "assistant", "content": "I look.", "tool_calls": [call(), call(id="call_2")]},
        {"role": "tool", "tool_call_id": "call_2", "content": "b", "name": "look"},
        {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "a"}]},
    ]
    _, turn, second, first = await messages(messages=history)
    assert texts(turn) == ["I look."]
    assert turn.calls == (ToolCall("call_1", "look", {}), ToolCall("call_2", "look", {}))
    assert second == Message("tool", (TextPart("b"),), call_id="call_2")
    assert first == Message("tool", (TextPart("a"),), call_id="call_1")


async def test_historical_arguments_keep_their_member_order() -> None:
    arguments = '{"city":"Paris","days":2,"at":{"z":1,"a":[{"y":1,"b":2}]}}'
    history = assistant(tool_calls=[call(function={"name": "look", "arguments": arguments})])
    made = (await messages(**history))[1].calls[0].arguments
    assert list(made) == ["city", "days", "at"]
    assert str(made) == "{'city': 'Paris', 'days': 2, 'at': {'z': 1, 'a': [{'y': 1, 'b': 2}]}}"


@pytest.mark.parametrize("blank", ["", " ", "\n"])
async def test_blank_arguments_are_none(blank: str) -> None:
    history = assistant(tool_calls=[call(function={"name": "look", "arguments": blank})])
    assert (await messages(**history))[1].calls[0].arguments == {}


async def test_call_ids_may_be_empty() -> None:
    history = [USER, {"role": "assistant", "tool_calls": [call(id="")]}]
    history += [{"role": "tool", "tool_call_id": "", "content": "done"}]
    got = await messages(messages=history)
    assert (got[1].calls[0].id, got[2].call_id) == ("", "")


async def test_a_result_without_its_call_is_a_cut_history() -> None:
    got = await messages(messages=[{"role": "tool", "tool_call_id": "x", "content": "r"}, USER])
    assert got[0].call_id == "x"


async def test_a_legacy_result_finds_its_call_by_name() -> None:
    def legacy(name: str) -> dict[str, Any]:
        called = {"name": name, "arguments": '{"a":1}'}
        return {"role": "assistant", "content": None, "function_call": called}

    history = [
        USER,
        legacy("one"),
        legacy("two"),
        {"role": "function", "name": "one", "content": "1"},
        {"role": "function", "name": "two", "content": None},
        {"role": "function", "name": "three", "content": "3"},
    ]
    _, one, two, first, second, third = await messages(messages=history)
    assert one.calls[0].arguments == {"a": 1}
    assert first == Message("tool", (TextPart("1"),), call_id=one.calls[0].id)
    assert second == Message("tool", (), call_id=two.calls[0].id)
    assert third.call_id is None
    assert one.calls[0].id != two.calls[0].id


async def test_a_tool_result_may_show_an_image() -> None:
    parts = [
        {"type": "text", "text": "captured"},
        {"type": "image_url", "image_url": {"url": "https://x/a.png", "detail": "auto"}},
    ]
    (message,) = await messages(messages=[{"role": "tool", "tool_call_id": "c", "content": parts}])
    path = "messages[0].content[1]"
    assert message.parts == (TextPart("captured"), MediaPart("image", "https://x/a.png", path))


# Media


@pytest.mark.parametrize("kind", ["image", "video"])
@pytest.mark.parametrize("source", ["https://x/a", "HTTP://x/a", "data:image/png;base64,@@@", "data:,"])
async def test_media_is_lowered_in_either_form(kind: str, source: str) -> None:
    name = f"{kind}_url"
    plain = await messages(**part({"type": name, name: source}))
    nested = await messages(**part({"type": name, name: {"url": source}}))
    assert plain == nested
    assert plain[0].parts == (MediaPart(kind, source, "messages[0].content[0]"),)  # type: ignore[arg-type]


async def test_media_and_text_keep_their_order_and_name_their_place() -> None:
    parts = [
        {"type": "text", "text": "a"},
        {"type": "image_url", "image_url": "https://x/1"},
        {"type": "text", "text": "b"},
        {"type": "video_url", "video_url": "https://x/2"},
    ]
    got = await messages(messages=[USER, {"role": "user", "content": parts}])
    places = [p.param for p in got[1].parts if isinstance(p, MediaPart)]
    assert places == ["messages[1].content[1]", "messages[1].content[3]"]
    assert texts(got[1]) == ["a", "b"]


# Tools


async def test_a_tool_arrives_with_its_schema() -> None:
    asked = await ask(tools=[TOOL])
    (declared,) = asked.conversation.tools
    assert (declared.name, declared.parameters) == ("look", {"type": "object"})
    assert declared.definition == TOOL
    assert asked.tool_choice == "auto"


async def test_a_definition_keeps_its_member_order_at_every_level() -> None:
    parameters = {
        "properties": {"zeta": {"type": "string"}, "alpha": {"type": "integer"}},
        "type": "object",
    }
    sent = {"function": {"parameters": parameters, "name": "probe", "description": "d"}, "type": "function"}
    (declared,) = (await ask(tools=[sent])).conversation.tools
    assert str(declared.definition) == str(sent)


async def test_only_known_members_of_a_definition_reach_the_prompt() -> None:
    noisy = tool(description=None, strict=False, later=1)["tools"][0] | {"cache_control": {}, "x": 1}
    (declared,) = (await ask(tools=[noisy])).conversation.tools
    assert declared.definition == {"type": "function", "function": {"name": "look"}}


async def test_a_name_may_be_declared_twice() -> None:
    asked = await ask(tools=[TOOL, TOOL])
    assert [declared.name for declared in asked.conversation.tools] == ["look", "look"]


async def test_choice_none_leaves_no_tool() -> None:
    history = assistant(tool_calls=[call()])["messages"]
    asked = await ask(tools=[TOOL], tool_choice="none", parallel_tool_calls=False, messages=history)
    assert (asked.conversation.tools, asked.tool_choice) == ((), "none")
    assert asked.conversation.messages[1].calls


@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize("entry", [{"name": "c"}, {"function": {"name": "c"}}])
async def test_allowed_tools_filter_in_declared_order(flat: bool, entry: dict[str, Any]) -> None:
    tools = [tool(name=name)["tools"][0] for name in "abc"]
    entries = [{"type": "function", **entry}, {"type": "function", "name": "a"}]
    choice: dict[str, Any] = allowed(*entries)["tool_choice"]
    if flat:
        choice = {"type": "allowed_tools", **choice["allowed_tools"]}
    asked = await ask(tools=tools, tool_choice=choice)
    assert [declared.name for declared in asked.conversation.tools] == ["a", "c"]
    assert asked.tool_choice == "allowed_tools"


# Cache hints


def marked(count: int) -> list[dict[str, Any]]:
    wish = {"prompt_cache_breakpoint": {"mode": "explicit"}}
    return [{"type": "text", "text": str(index), **wish} for index in range(count)]


@pytest.mark.parametrize(
    "options, implicit",
    [
        (None, True),
        ({}, True),
        ({"mode": None}, True),
        ({"mode": "implicit"}, True),
        ({"mode": "explicit"}, False),
    ],
)
@pytest.mark.parametrize("count", [0, 2, 6])
async def test_cache_hints_become_marks(count: int, options: Any, implicit: bool) -> None:
    content = [*marked(count), {"type": "text", "text": "end"}]
    asked = await ask(messages=[{"role": "user", "content": content}], prompt_cache_options=options)
    parts = asked.conversation.messages[0].parts
    assert [part.mark for part in parts] == [True] * count + [False]
    assert asked.conversation.cache.implicit is implicit


async def test_every_kind_of_part_may_be_marked() -> None:
    wish = {"prompt_cache_breakpoint": {"mode": "explicit"}}
    history = [
        {"role": "system", "content": [{"type": "text", "text": "s", **wish}]},
        {"role": "user", "content": [{"type": "image_url", "image_url": "https://x/1", **wish}]},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "r", **wish}]},
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "t", **wish}]},
    ]
    got = await messages(messages=history)
    assert all(part.mark for message in got for part in message.parts)


async def test_progress_is_asked_for_in_streams_only() -> None:
    assert not (await ask(return_progress=True)).progress
    assert (await ask(return_progress=True, stream=True)).progress
    assert not (await ask(stream=True)).progress
