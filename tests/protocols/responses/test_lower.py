"""Responses requests to neutral conversations: items, turns, results, options, tools."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer.prompt.conversation import CachePolicy, MediaPart, Message, TextPart, ToolCall
from ninfer.protocols.responses.tools import Names
from ninfer.protocols.service import Ask
from tests.protocols.responses.desk import GOOD, LOOK, called, desk, result, said, thought, user


async def asked(**change: Any) -> Ask:
    here = desk()
    exchange = await here.create(**change)
    assert exchange.status == 200, exchange.json
    return here.ask


async def turns(*items: dict[str, Any], **change: Any) -> tuple[Message, ...]:
    return (await asked(input=list(items), **change)).conversation.messages


def roles(messages: tuple[Message, ...]) -> list[str]:
    return [message.role for message in messages]


def text(message: Message) -> str:
    return "|".join(part.text for part in message.parts if isinstance(part, TextPart))


# Messages


async def test_text_is_one_user_message() -> None:
    assert (await asked()).conversation.messages == (Message("user", (TextPart("hi"),)),)


async def test_a_bare_request_decides_nothing() -> None:
    ask = await asked()
    assert (ask.protocol, ask.max_tokens, ask.max_tokens_param) == (
        "openai_responses",
        None,
        "max_output_tokens",
    )
    assert ask.sampling == type(ask.sampling)() and ask.stop == () and ask.tool_choice == "auto"
    assert ask.conversation.options.enable_thinking is None
    assert ask.conversation.cache == CachePolicy(True) and ask.parse_tools


@pytest.mark.parametrize("role", ["user", "assistant", "system", "developer"])
@pytest.mark.parametrize("typed", [True, False])
async def test_content_may_be_a_string_with_or_without_an_item_type(role: str, typed: bool) -> None:
    item = {"role": role, "content": "x", **({"type": "message"} if typed else {})}
    assert (await turns(item))[0] == Message(role, (TextPart("x"),))  # type: ignore[arg-type]


async def test_every_role_keeps_its_place() -> None:
    order = ["system", "developer", "user", "assistant", "system", "user", "developer"]
    found = await turns(*[{"role": role, "content": str(n)} for n, role in enumerate(order)])
    assert roles(found) == order and [text(turn) for turn in found] == list("0123456")


async def test_instructions_come_first_as_a_developer_turn() -> None:
    found = await turns(
        {"role": "developer", "content": "a"},
        {"role": "developer", "content": "b"},
        user(),
        instructions="Be brief.",
    )
    assert roles(found) == ["developer", "developer", "developer", "user"]
    assert text(found[0]) == "Be brief."
    assert roles((await asked(instructions="")).conversation.messages) == ["user"]


async def test_adjacent_parts_are_kept_apart_and_unchanged() -> None:
    parts = [{"type": "input_text", "text": words} for words in (" a", "", "b\n")]
    (turn,) = await turns({"role": "user", "content": parts})
    assert turn.parts == (TextPart(" a"), TextPart(""), TextPart("b\n"))


async def test_empty_content_is_an_empty_turn() -> None:
    found = await turns({"role": "user", "content": ""}, {"role": "assistant", "content": []}, user())
    assert [turn.parts for turn in found[:2]] == [(), ()]


@pytest.mark.parametrize("role", ["user", "assistant"])
@pytest.mark.parametrize("kind", ["image", "video"])
async def test_media_is_lowered_where_it_stands(role: str, kind: str) -> None:
    url = "data:image/png;base64,AAAA"
    part = {"type": f"input_{kind}", f"{kind}_url": url, "prompt_cache_breakpoint": {"mode": "explicit"}}
    (_, turn) = await turns(user(), {"role": role, "content": [{"type": "input_text", "text": "a"}, part]})
    assert turn.parts == (TextPart("a"), MediaPart(kind, url, "input[1].content[1]", True))  # type: ignore[arg-type]


async def test_an_image_detail_of_auto_says_nothing() -> None:
    part = {"type": "input_image", "image_url": "https://x/a", "detail": "auto", "file_id": None}
    (turn,) = await turns({"role": "user", "content": [part]})
    assert turn.parts == (MediaPart("image", "https://x/a", "input[0].content[0]"),)


async def test_refusals_and_status_and_phase_are_taken_in_history() -> None:
    refusal = {"type": "refusal", "refusal": "No."}
    item = {"role": "assistant", "content": [refusal], "status": "incomplete", "phase": "commentary"}
    assert (await turns(user(), item))[1].parts == (TextPart("No."),)


# Assistant turns


async def test_contiguous_items_are_one_assistant_turn() -> None:
    found = await turns(
        user(),
        thought("one "),
        thought("two"),
        said("a"),
        said("b"),
        called("c1", "look", '{"z":1,"a":2}'),
        called("c2", "leap"),
        result("c1"),
        result("c2"),
    )
    assert roles(found) == ["user", "assistant", "tool", "tool"]
    turn = found[1]
    assert (turn.reasoning, turn.parts) == ("one two", (TextPart("a"), TextPart("b")))
    assert turn.calls == (ToolCall("c1", "look", {"z": 1, "a": 2}), ToolCall("c2", "leap", {}))
    assert list(turn.calls[0].arguments) == ["z", "a"]


async def test_a_turn_of_reasoning_alone_is_retained() -> None:
    found = await turns(user(), thought("only"), user("go on"))
    assert roles(found) == ["user", "assistant", "user"]
    assert found[1] == Message("assistant", (), "only")


@pytest.mark.parametrize(
    "between", [user(), {"role": "system", "content": "s"}, {"role": "developer", "content": "d"}]
)
async def test_another_role_ends_the_assistant_turn(between: dict[str, Any]) -> None:
    found = await turns(user(), said("a"), between, thought("b"), said("c"))
    assert [turn.reasoning for turn in found if turn.role == "assistant"] == [None, "b"]


async def test_a_result_ends_the_assistant_turn() -> None:
    found = await turns(user(), thought(), called(), result(), thought("again"), said("done"))
    assert roles(found) == ["user", "assistant", "tool", "assistant"]
    assert found[3] == Message("assistant", (TextPart("done"),), "again")


async def test_a_summary_and_sealed_reasoning_may_stand_beside_the_raw_text() -> None:
    summary = [{"type": "summary_text", "text": "short"}]
    found = await turns(user(), thought("raw", summary=summary, encrypted_content="gAAA"), said())
    assert found[1].reasoning == "raw"


# Results


async def test_results_reach_the_prompt_in_the_order_of_their_calls() -> None:
    found = await turns(
        user(), called("a"), called("b"), called("c"), result("c", "3"), result("a", "1"), result("b", "2")
    )
    assert [(turn.call_id, text(turn)) for turn in found[2:]] == [("a", "1"), ("b", "2"), ("c", "3")]


async def test_results_may_be_missing_at_the_end_only() -> None:
    found = await turns(user(), called("a"), called("b"), result("a"), user("never mind"))
    assert roles(found) == ["user", "assistant", "tool", "user"]
    assert roles(await turns(user(), called("a"), user("never mind"))) == ["user", "assistant", "user"]


async def test_a_call_id_may_come_again_in_a_later_turn() -> None:
    found = await turns(user(), called(), result(output="1"), called(), result(output="2"))
    assert [text(turn) for turn in found if turn.role == "tool"] == ["1", "2"]


async def test_a_result_may_be_text_and_images() -> None:
    output = [
        {"type": "input_text", "text": "see", "prompt_cache_breakpoint": {"mode": "explicit"}},
        {"type": "input_image", "image_url": "https://x/a"},
    ]
    found = await turns(user(), called(), result(output=output))
    assert found[2].parts == (
        TextPart("see", True),
        MediaPart("image", "https://x/a", "input[2].output[1]"),
    )


async def test_a_result_may_name_its_function() -> None:
    found = await turns(
        user(), called(namespace="ns"), result(name="look", namespace="ns", status="completed")
    )
    assert roles(found) == ["user", "assistant", "tool"]
    assert roles(await turns(user(), called(namespace="ns"), result(name="look")))[2] == "tool"


@given(st.permutations(range(4)), st.integers(0, 4))
def test_any_order_of_any_leading_results_is_put_right(order: list[int], count: int) -> None:
    from ninfer.protocols.responses.history import Placed, lower_history
    from ninfer.protocols.responses.items import Item
    from tests.protocols.fakes import READER, read_json

    raw = [user(), *[called(f"c{n}") for n in range(4)]]
    raw += [result(f"c{n}", str(n)) for n in order if n < count]
    read = READER.read(raw, tuple[Item, ...])
    found = lower_history([Placed(item, "x") for item in read], Names(), read_json)
    assert [turn.call_id for turn in found[2:]] == [f"c{n}" for n in range(count)]


# Sampling, limits, options


async def test_sampling_and_limits_arrive() -> None:
    ask = await asked(temperature=0, top_p=0.5, max_output_tokens=0)
    assert (ask.sampling.temperature, ask.sampling.top_p, ask.max_tokens) == (0.0, 0.5, 0)


NEUTRAL: dict[str, Any] = {
    "background": False,
    "client_metadata": {"session": {"id": "x"}},
    "include": [],
    "max_tool_calls": 3,
    "metadata": {"a": "b"},
    "parallel_tool_calls": True,
    "prompt_cache_key": "k",
    "prompt_cache_retention": "24h",
    "safety_identifier": "s",
    "service_tier": "auto",
    "store": True,
    "stream_options": {"include_obfuscation": True},
    "text": {"format": {"type": "text"}, "verbosity": "medium"},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "truncation": "disabled",
    "user": "u",
    "prompt_cache_options": {"mode": "implicit", "ttl": "30m"},
    "reasoning": {"effort": None, "summary": None, "context": "auto"},
    "chat_template_kwargs": {},
}


@pytest.mark.parametrize("name", NEUTRAL)
async def test_a_neutral_field_changes_nothing(name: str) -> None:
    assert await asked(**{name: NEUTRAL[name]}) == await asked()


async def test_all_neutral_fields_together_change_nothing() -> None:
    assert await asked(**NEUTRAL) == await asked()


@pytest.mark.parametrize("wish", ["auto", "concise", "detailed", None])
@pytest.mark.parametrize("name", ["summary", "generate_summary"])
async def test_a_wish_for_a_summary_changes_no_prompt(name: str, wish: str | None) -> None:
    assert await asked(reasoning={"effort": "low", name: wish}) == await asked(reasoning={"effort": "low"})


async def test_null_is_as_good_as_absent() -> None:
    from ninfer.protocols.responses.schema import CreateRequest

    here = desk()
    nulls = dict.fromkeys(attrs.fields_dict(CreateRequest))
    assert (await here.post({**nulls, **GOOD})).status == 200
    assert here.ask == await asked()


@pytest.mark.parametrize(
    "change",
    [
        {"reasoning": {"effort": "none"}},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"chat_template_kwargs": {"reasoning_effort": "none"}},
    ],
)
async def test_thinking_can_be_switched_off_in_every_spelling(change: dict[str, Any]) -> None:
    assert (await asked(**change)).conversation.options.enable_thinking is False


async def test_the_template_interprets_other_efforts_and_kwargs() -> None:
    options = (
        await asked(reasoning={"effort": "high"}, chat_template_kwargs={"style": None})
    ).conversation.options
    assert (options.reasoning_effort, options.kwargs) == ("high", {"style": None})


async def test_cache_hints_become_marks() -> None:
    marked = {"type": "input_text", "text": "a", "prompt_cache_breakpoint": {"mode": "explicit"}}
    ask = await asked(
        input=[{"role": "user", "content": [marked]}], prompt_cache_options={"mode": "explicit"}
    )
    assert ask.conversation.messages[0].parts == (TextPart("a", True),)
    assert ask.conversation.cache == CachePolicy(False)


# Tools


def namespace(name: str, *tools: dict[str, Any]) -> dict[str, Any]:
    return {"type": "namespace", "name": name, "description": "x", "tools": list(tools)}


async def test_a_flat_definition_reaches_the_prompt_as_chat_would_render_it() -> None:
    tool = {
        "parameters": {"z": 1, "a": {"y": 1, "b": 2}},
        "type": "function",
        "description": "D",
        "strict": False,
        "name": "look",
        "extra": 1,
        "allowed_callers": ["direct", "programmatic"],
        "defer_loading": False,
    }
    (found,) = (await asked(tools=[tool])).conversation.tools
    expected = {
        "type": "function",
        "function": {"parameters": {"z": 1, "a": {"y": 1, "b": 2}}, "description": "D", "name": "look"},
    }
    assert repr(found.definition) == repr(expected)
    assert (found.name, found.parameters) == ("look", tool["parameters"])


async def test_a_name_may_stand_in_several_namespaces() -> None:
    tools = [namespace("a", LOOK), LOOK, namespace("b__", LOOK)]
    ask = await asked(tools=tools)
    assert [tool.name for tool in ask.conversation.tools] == ["a__look", "look", "b__look"]
    names = [tool.definition["function"]["name"] for tool in ask.conversation.tools]  # type: ignore[index,call-overload]
    assert names == ["a__look", "look", "b__look"]


async def test_names_that_would_look_alike_are_told_apart() -> None:
    tools = [
        namespace("a", {**LOOK, "name": "b__c"}),
        namespace("a__b", {**LOOK, "name": "c"}),
        {**LOOK, "name": "a__b__c"},
    ]
    ask = await asked(tools=tools)
    assert [tool.name for tool in ask.conversation.tools] == ["a__b__c_2", "a__b__c_3", "a__b__c"]


async def test_a_long_namespaced_name_may_still_become_a_call() -> None:
    tools = [namespace("n" * 64, {**LOOK, "name": "f" * 64})]
    ask = await asked(tools=tools)
    assert len(ask.conversation.tools[0].name) == ask.tool_name_limit == 130
    assert (await asked(tools=[LOOK])).tool_name_limit == 64


KEYS = st.tuples(st.none() | st.text("a_", min_size=1, max_size=4), st.text("a_", min_size=1, max_size=4))


@given(st.lists(KEYS, max_size=30))
def test_every_function_has_a_name_of_its_own_and_is_found_by_it(
    keys: list[tuple[str | None, str]],
) -> None:
    names = Names()
    given_names = {key: names.of(key) for key in keys}
    assert len(set(given_names.values())) == len(given_names)
    assert all(names.origin(name) == key for key, name in given_names.items())
    assert {key: names.of(key) for key in keys} == given_names


async def test_replayed_calls_have_the_names_of_their_tools() -> None:
    tools = [namespace("ns", LOOK)]
    ask = await asked(input=[user(), called(namespace="ns"), result()], tools=tools)
    assert ask.conversation.messages[1].calls[0].name == ask.conversation.tools[0].name == "ns__look"
    bare = await asked(input=[user(), called(namespace="ns"), result()])
    assert bare.conversation.messages[1].calls[0].name == "ns__look"


async def test_choice_none_leaves_no_tool_whatever_the_history_holds() -> None:
    ask = await asked(input=[user(), called(), result()], tools=[LOOK], tool_choice="none")
    assert (ask.conversation.tools, ask.tool_choice) == ((), "none")
    assert ask.conversation.messages[1].calls


async def test_one_call_at_a_time_is_accepted_where_no_tool_is_callable() -> None:
    assert (await asked(parallel_tool_calls=False)).conversation.tools == ()
    ask = await asked(parallel_tool_calls=False, tools=[LOOK], tool_choice="none")
    assert ask.conversation.tools == ()


async def test_allowed_tools_filter_in_declared_order_by_namespace_and_name() -> None:
    tools = [LOOK, namespace("a", LOOK, {**LOOK, "name": "leap"}), namespace("b", LOOK)]
    entries = [
        {"type": "function", "name": "look", "namespace": "b"},
        {"type": "function", "name": "look"},
        {"type": "function", "name": "leap", "namespace": "a"},
    ]
    choice = {"type": "allowed_tools", "mode": "auto", "tools": entries}
    ask = await asked(tools=tools, tool_choice=choice)
    assert [tool.name for tool in ask.conversation.tools] == ["look", "a__leap", "b__look"]
    assert ask.tool_choice == "allowed_tools"


# Counting


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"instructions": "Be brief."},
        {"input": [user(), thought(), called(), result()], "tools": [LOOK, namespace("ns", LOOK)]},
        {"reasoning": {"effort": "none"}, "preserve_thinking": True},
        {
            "tools": [LOOK],
            "tool_choice": "none",
            "truncation": "disabled",
            "text": {"format": {"type": "text"}},
        },
    ],
)
async def test_a_count_has_the_very_conversation_of_create(change: dict[str, Any]) -> None:
    here = desk()
    exchange = await here.count(**change)
    assert exchange.json == {"object": "response.input_tokens", "input_tokens": 10}
    assert not here.service.asks
    assert here.service.counted == [(await asked(**change)).conversation]
