"""Stored responses: chains, sessions, resources, and what is refused of them."""

from __future__ import annotations

from typing import Any

import pytest

from ninfer.prompt.conversation import MediaPart, Message, TextPart
from ninfer.protocols.service import ToolCallsDelta
from ninfer.settings import ResponseStoreLimits
from tests.protocols.fakes import RecordingExchange, answer, call, content, reasoning, timings
from tests.protocols.responses.desk import LOOK, Desk, called, check_stream, desk, result, said, user


def spoken(desk: Desk) -> list[str]:
    """The texts of the last prompt, in order."""
    turns = desk.ask.conversation.messages
    return ["".join(part.text for part in turn.parts if isinstance(part, TextPart)) for turn in turns]


def code(exchange: RecordingExchange) -> tuple[int, str, str | None]:
    error = exchange.json["error"]
    return exchange.status, error["code"], error["param"]


GONE = (404, "response_not_found", "previous_response_id")
THREE = [answer(content(text)) for text in ("one", "two", "three", "four")]


# Chains


async def test_a_chain_has_the_whole_history_in_order() -> None:
    here = desk(*THREE)
    first = await here.made(input="a")
    second = await here.made(input="b", previous_response_id=first)
    body = (await here.create(input="c", previous_response_id=second)).json
    assert spoken(here) == ["a", "one", "b", "two", "c"]
    assert body["previous_response_id"] == second


async def test_deleting_the_first_of_three_leaves_the_third_whole() -> None:
    here = desk(*THREE)
    first = await here.made(input="a")
    second = await here.made(input="b", previous_response_id=first)
    third = await here.made(input="c", previous_response_id=second)
    deleted = await here.on("DELETE", first)
    assert (deleted.status, deleted.json) == (
        200,
        {"id": first, "object": "response.deleted", "deleted": True},
    )
    assert code(await here.on("GET", first)) == (404, "response_not_found", None)
    assert code(await here.on("DELETE", first)) == (404, "response_not_found", None)
    assert code(await here.create(previous_response_id=first)) == GONE
    await here.made(input="d", previous_response_id=third)
    assert spoken(here) == ["a", "one", "b", "two", "c", "three", "d"]


async def test_branches_of_one_parent_do_not_see_each_other() -> None:
    here = desk(*THREE)
    root = await here.made(input="a")
    await here.made(input="left", previous_response_id=root)
    await here.made(input="right", previous_response_id=root)
    assert spoken(here) == ["a", "one", "right"]


async def test_instructions_are_not_carried_over() -> None:
    here = desk(*THREE)
    first = await here.made(input="a", instructions="Be brief.")
    second = await here.made(input="b", previous_response_id=first)
    assert spoken(here) == ["a", "one", "b"]
    await here.made(input="c", previous_response_id=second, instructions="Be long.")
    assert spoken(here) == ["Be long.", "a", "one", "b", "two", "c"]
    assert here.ask.conversation.messages[0].role == "developer"


async def test_tools_are_not_carried_over() -> None:
    here = desk()
    first = await here.made(tools=[LOOK])
    await here.made(previous_response_id=first)
    assert here.ask.conversation.tools == ()


async def test_a_tool_loop_goes_on_with_results_alone() -> None:
    script = answer(
        reasoning("Hm."), content("I look."), ToolCallsDelta((call("ns__look", b=1, a="ü"),), timings(3))
    )
    here = desk(script, answer(content("Seen.")))
    tools = [{"type": "namespace", "name": "ns", "description": "x", "tools": [LOOK]}]
    body = (await here.create(tools=tools)).json
    call_id = body["output"][2]["call_id"]
    await here.made(input=[result(call_id, "sky")], previous_response_id=body["id"], tools=tools)
    turns = here.ask.conversation.messages
    assert [turn.role for turn in turns] == ["user", "assistant", "tool"]
    assert (turns[1].reasoning, turns[1].parts) == ("Hm.", (TextPart("I look."),))
    assert turns[1].calls[0].name == "ns__look"
    assert list(turns[1].calls[0].arguments.items()) == [("b", 1), ("a", "ü")]
    assert turns[2] == Message("tool", (TextPart("sky"),), call_id=call_id)


async def test_a_whole_output_sent_back_is_the_same_history() -> None:
    script = answer(
        reasoning("Hm."), content("I look."), ToolCallsDelta((call("look", b=1, a=2),), timings(3))
    )
    here = desk(script, answer(content("x")))
    body = (await here.create(tools=[LOOK])).json
    more = [result(body["output"][2]["call_id"])]
    await here.made(input=more, previous_response_id=body["id"], tools=[LOOK])
    stored = here.ask.conversation
    await here.made(input=[user(), *body["output"], *more], tools=[LOOK])
    assert here.ask.conversation == stored


async def test_results_of_an_unknown_call_are_refused_also_in_a_chain() -> None:
    here = desk()
    first = await here.made()
    exchange = await here.create(input=[result("call_x")], previous_response_id=first)
    assert code(exchange) == (400, "invalid_tool_history", "input[0].call_id")


async def test_each_answer_is_a_turn_of_its_own() -> None:
    here = desk(answer(content("one")), answer(reasoning("Hm."), content("two")), answer(content("three")))
    first = await here.made()
    second = await here.made(input=None, previous_response_id=first)
    await here.made(input="go on", previous_response_id=second)
    assert [turn.role for turn in here.ask.conversation.messages] == [
        "user",
        "assistant",
        "assistant",
        "user",
    ]


@pytest.mark.parametrize("nothing", [None, "", []])
async def test_input_may_be_left_out_where_a_user_has_spoken(nothing: Any) -> None:
    here = desk(*THREE)
    first = await here.made()
    assert (await here.create(input=nothing, previous_response_id=first)).status == 200
    assert spoken(here) == ["hi", "one"]
    alone = await here.made(input=[{"role": "developer", "content": "x"}])
    exchange = await here.create(input=nothing, previous_response_id=alone)
    assert code(exchange) == (400, "missing_required_parameter", "input")


async def test_an_unstored_response_is_no_parent_and_cannot_be_retrieved() -> None:
    here = desk()
    id = await here.made(store=False)
    assert code(await here.create(previous_response_id=id)) == GONE
    assert (await here.on("GET", id)).status == 404


async def test_an_unstored_child_reads_the_chain_and_leaves_it_as_it_was() -> None:
    here = desk(*THREE)
    first = await here.made(input="a")
    child = await here.made(input="b", previous_response_id=first, store=False)
    assert spoken(here) == ["a", "one", "b"]
    assert code(await here.create(previous_response_id=child)) == GONE
    await here.made(input="c", previous_response_id=first)
    assert spoken(here) == ["a", "one", "c"]


async def test_stored_breakpoints_and_media_are_in_every_later_prompt() -> None:
    here = desk()
    image = {"type": "input_image", "image_url": "https://x/a"}
    text = {"type": "input_text", "text": "see", "prompt_cache_breakpoint": {"mode": "explicit"}}
    first = await here.made(input=[{"role": "user", "content": [text, image]}])
    await here.made(previous_response_id=first)
    turn = here.ask.conversation.messages[0]
    assert turn.parts == (TextPart("see", True), MediaPart("image", "https://x/a", "previous_response_id"))


async def test_a_count_of_a_continuation_is_that_of_its_create() -> None:
    here = desk(*THREE)
    first = await here.made(input="a", preserve_thinking=True)
    await here.made(input="b", previous_response_id=first)
    assert (await here.count(input="b", previous_response_id=first)).status == 200
    assert here.service.counted == [here.ask.conversation]
    assert code(await here.count(previous_response_id="resp_x")) == GONE


async def test_ids_of_the_history_may_not_come_again() -> None:
    here = desk()
    body = (await here.create(input=[user(id="msg_mine")])).json
    exchange = await here.create(input=[user(id="msg_mine")], previous_response_id=body["id"])
    assert code(exchange) == (400, "duplicate_item_id", "input[0].id")
    exchange = await here.create(input=[*body["output"], user()], previous_response_id=body["id"])
    assert code(exchange) == (400, "duplicate_item_id", "input[0].id")


# Sessions


async def test_a_stored_root_gives_its_descendants_a_session() -> None:
    here = desk()
    root = await here.made()
    assert (here.ask.session, here.ask.session_write, here.ask.response_id) == (root, True, root)
    child = await here.made(previous_response_id=root)
    assert (here.ask.session, here.ask.session_write, here.ask.response_id) == (root, True, child)
    await here.on("DELETE", root)
    await here.made(previous_response_id=child)
    assert here.ask.session == root


async def test_an_unstored_root_is_anonymous() -> None:
    here = desk()
    await here.made(store=False)
    assert here.ask.session is None


async def test_an_unstored_child_reads_its_session_and_does_not_write_it() -> None:
    here = desk()
    root = await here.made()
    await here.made(previous_response_id=root, store=False)
    assert (here.ask.session, here.ask.session_write) == (root, False)


async def test_no_session_key_is_told() -> None:
    here = desk()
    root = await here.made()
    body = (await here.create(previous_response_id=root, store=False)).json
    assert "session" not in body and root not in str({**body, "previous_response_id": None})


# preserve_thinking


@pytest.mark.parametrize("spelling", ["field", "kwargs"])
@pytest.mark.parametrize("value", [True, False])
async def test_children_inherit_the_switch(spelling: str, value: bool) -> None:
    here = desk()
    said_so = {"preserve_thinking": value}
    root = await here.made(**(said_so if spelling == "field" else {"chat_template_kwargs": said_so}))
    child = await here.made(previous_response_id=root)
    assert here.ask.conversation.options.preserve_thinking is value
    await here.made(previous_response_id=child)
    assert here.ask.conversation.options.preserve_thinking is value
    assert not here.ask.semantic_change


async def test_an_explicit_other_value_is_a_semantic_change_and_is_inherited_in_turn() -> None:
    here = desk()
    root = await here.made(preserve_thinking=True)
    child = await here.made(previous_response_id=root, preserve_thinking=False)
    await here.made(previous_response_id=child)
    await here.made(previous_response_id=root, preserve_thinking=True)
    asks = here.service.asks
    assert [ask.conversation.options.preserve_thinking for ask in asks] == [True, False, False, True]
    assert [ask.semantic_change for ask in asks] == [False, True, False, False]


async def test_the_servers_own_setting_is_what_an_unset_root_resolves_to() -> None:
    here = desk(preserve=True)
    root = await here.made()
    await here.made(previous_response_id=root)
    await here.made(previous_response_id=root, preserve_thinking=True)
    await here.made(previous_response_id=root, preserve_thinking=False)
    asks = here.service.asks
    assert [ask.conversation.options.preserve_thinking for ask in asks] == [None, True, True, False]
    assert [ask.semantic_change for ask in asks] == [False, False, False, True]


# Limits


async def test_more_responses_than_the_limit_lose_the_least_recently_used() -> None:
    here = desk(limits=ResponseStoreLimits(records=2))
    ids = [await here.made() for _ in range(2)]
    assert (await here.on("GET", ids[0])).status == 200
    ids.append(await here.made())
    assert [(await here.on("GET", id)).status for id in ids] == [200, 404, 200]


async def test_use_as_a_parent_and_listing_count_as_use() -> None:
    here = desk(limits=ResponseStoreLimits(records=3))
    first, second, third = [await here.made() for _ in range(3)]
    await here.on("GET", first, "/input_items")
    await here.made(previous_response_id=second)
    assert [(await here.on("GET", id)).status for id in (first, second, third)] == [200, 200, 404]


async def test_an_input_larger_than_the_store_is_refused_before_any_work() -> None:
    here = desk(limits=ResponseStoreLimits(bytes=100_000))
    for stream in True, False:
        exchange = await here.create(input="x" * 200_000, stream=stream)
        assert code(exchange) == (400, "response_store_capacity_exceeded", "store")
    assert not here.service.asks
    assert (await here.create(input="x" * 200_000, store=False)).status == 200


async def test_an_answer_larger_than_the_store_fails_and_is_not_stored() -> None:
    here = desk(answer(content("x" * 200_000)), limits=ResponseStoreLimits(bytes=100_000))
    assert code(await here.create()) == (400, "response_store_capacity_exceeded", "store")
    terminal = check_stream((await here.create(stream=True)).events)
    assert (terminal["status"], terminal["error"]["code"]) == ("failed", "response_store_capacity_exceeded")
    assert (await here.on("GET", terminal["id"])).status == 404
    assert (await here.create(store=False)).status == 200


async def test_what_is_kept_is_charged_for_all_that_it_holds() -> None:
    small, large = 20_000, 150_000
    for change in (
        {"input": "x" * large},
        {"input": [user(text="x") for _ in range(large // 200)]},
        {"instructions": "x" * large},
        {"tools": [{**LOOK, "description": "x" * large}]},
        {"metadata": {str(n): "x" * 512 for n in range(16)}, "input": "x" * (large - 9_000)},
    ):
        for limit, status in (large, 400), (small + 8 * large, 200):
            here = desk(limits=ResponseStoreLimits(bytes=limit))
            assert (await here.create(**change)).status == status


# Input items


async def items(here: Desk, id: str, query: str = "") -> Any:
    exchange = await here.on("GET", id, "/input_items", query)
    assert exchange.status == 200, exchange.json
    return exchange.json


async def test_items_are_listed_as_they_were_meant() -> None:
    here = desk()
    image = {"type": "input_image", "image_url": "https://x/a"}
    given = [
        {"role": "system", "content": "s"},
        user("u", id="msg_mine"),
        {"role": "assistant", "content": "a", "phase": "final_answer"},
        called("c", "look", '{"a": 1}', id="fc_mine", namespace="ns"),
        result("c", [image]),
        {"role": "user", "content": [{"type": "input_video", "video_url": "https://x/v"}]},
    ]
    id = await here.made(input=given)
    listed = await items(here, id, "order=asc")
    generated = [item.pop("id") for item in listed["data"]]
    assert generated[1] == "msg_mine" and generated[3] == "fc_mine" and len(set(generated)) == 6
    assert [id.partition("_")[0] for id in generated] == ["msg", "msg", "msg", "fc", "fco", "msg"]
    message = {"type": "message", "status": "completed"}
    assert listed["data"] == [
        {**message, "role": "system", "content": [{"type": "input_text", "text": "s"}]},
        {**message, "role": "user", "content": [{"type": "input_text", "text": "u"}]},
        {**message, **said("a"), "phase": "final_answer"},
        {**called("c", "look", '{"a": 1}', namespace="ns"), "status": "completed"},
        {**result("c", [{**image, "detail": "auto"}]), "status": "completed"},
        {**message, "role": "user", "content": [{"type": "input_video", "video_url": "https://x/v"}]},
    ]
    assert (listed["object"], listed["has_more"]) == ("list", False)
    assert (listed["first_id"], listed["last_id"]) == (generated[0], generated[-1])


async def test_text_is_listed_as_one_message_and_nothing_as_nothing() -> None:
    here = desk()
    root = await here.made()
    (item,) = (await items(here, root))["data"]
    assert item["content"] == [{"type": "input_text", "text": "hi"}]
    child = await here.made(input=None, previous_response_id=root)
    nothing: dict[str, Any] = {
        "object": "list",
        "data": [],
        "first_id": None,
        "last_id": None,
        "has_more": False,
    }
    assert await items(here, child) == nothing


async def test_only_the_items_of_that_request_are_listed() -> None:
    here = desk()
    root = await here.made(input=[user("a", id="msg_a")])
    child = await here.made(input=[user("b", id="msg_b")], previous_response_id=root, instructions="x")
    assert [item["id"] for item in (await items(here, child))["data"]] == ["msg_b"]


@pytest.mark.parametrize(
    ("query", "expected", "more"),
    [
        ("", [str(n) for n in range(29, 9, -1)], True),
        ("order=desc&limit=2", ["29", "28"], True),
        ("order=asc&limit=3", ["0", "1", "2"], True),
        ("order=asc&limit=3&after=m2", ["3", "4", "5"], True),
        ("order=desc&limit=3&after=m2", ["1", "0"], False),
        ("limit=100", [str(n) for n in range(29, -1, -1)], False),
        ("after=m0", [], False),
        ("order=asc&after=m27&limit=2", ["28", "29"], False),
    ],
)
async def test_a_list_has_pages(query: str, expected: list[str], more: bool) -> None:
    here = desk()
    id = await here.made(input=[user(id=f"m{n}") for n in range(30)])
    listed = await items(here, id, query)
    assert [item["id"].removeprefix("m") for item in listed["data"]] == expected
    assert listed["has_more"] is more


@pytest.mark.parametrize("limit", [1, 7, 100])
@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_pages_together_are_the_whole_list(limit: int, order: str) -> None:
    here = desk()
    id = await here.made(input=[user(id=f"m{n}") for n in range(23)])
    seen: list[str] = []
    query, more = f"order={order}&limit={limit}", True
    while more:
        page = await items(here, id, query + (f"&after={seen[-1]}" if seen else ""))
        seen += [item["id"] for item in page["data"]]
        more = page["has_more"]
    assert seen == [f"m{n}" for n in range(23)][:: 1 if order == "asc" else -1]


@pytest.mark.parametrize(
    ("query", "param", "code_"),
    [
        *[
            (f"limit={n}", "limit", "invalid_value")
            for n in ("0", "101", "-1", "x", "", "1.0", "٣", "9999")
        ],
        ("order=up", "order", "invalid_value"),
        ("order=", "order", "invalid_value"),
        ("after=msg_nobody", "after", "invalid_value"),
        ("after=", "after", "invalid_value"),
        ("include=message.input_image.image_url", "include", "include_not_supported"),
        ("include[]=a&include[]=b", "include", "include_not_supported"),
    ],
)
async def test_a_bad_page_is_refused_by_name(query: str, param: str, code_: str) -> None:
    here = desk()
    id = await here.made()
    assert code(await here.on("GET", id, "/input_items", query)) == (400, code_, param)


# Other resources


@pytest.mark.parametrize(
    ("query", "param", "code_"),
    [
        ("stream=true", "stream", "stream_recovery_not_supported"),
        ("starting_after=3", "starting_after", "stream_recovery_not_supported"),
        ("include[]=reasoning.encrypted_content", "include", "include_not_supported"),
    ],
)
async def test_retrieval_refuses_what_it_cannot_do(query: str, param: str, code_: str) -> None:
    here = desk()
    id = await here.made()
    assert code(await here.on("GET", id, query=query)) == (400, code_, param)


@pytest.mark.parametrize(
    "query", ["", "stream=false", "include=", "include[]=", "include_obfuscation=true"]
)
async def test_retrieval_takes_what_asks_for_nothing(query: str) -> None:
    here = desk()
    id = await here.made()
    assert (await here.on("GET", id, query=query)).json["id"] == id


async def test_an_unknown_id_is_not_found() -> None:
    here = desk()
    for method, tail in ("GET", ""), ("DELETE", ""), ("GET", "/input_items"):
        assert code(await here.on(method, "resp_x", tail)) == (404, "response_not_found", None)


async def test_cancelling_is_refused_for_nothing_runs_in_the_background() -> None:
    here = desk()
    id = await here.made()
    assert code(await here.on("POST", id, "/cancel")) == (400, "background_not_supported", "background")


async def test_compaction_is_refused() -> None:
    exchange = await desk().post({"model": "tiny", "input": []}, "/v1/responses/compact")
    assert code(exchange) == (400, "compaction_not_supported", "input")
