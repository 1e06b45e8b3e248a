from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer.faults import Fault, Refused
from ninfer.prompt.conversation import Conversation, ToolDef
from ninfer.prompt.prepare import Preparer
from ninfer.prompt.prepared import MarkKind
from ninfer.settings import PromptBudget
from tests.prompt import resources as res
from tests.prompt.talk import call, preparer_of, shown, small_preparer, talk, tool, turn, user

PREPARER = small_preparer()


def text_of(conversation: Conversation, preparer: Preparer = PREPARER) -> str:
    return shown(preparer.vocabulary, preparer.prepare(conversation))


def fault(conversation: Conversation, preparer: Preparer = PREPARER) -> Fault:
    with pytest.raises(Refused) as refusal:
        preparer.prepare(conversation)
    return refusal.value.fault


# Rendering


def test_every_turn_keeps_its_place() -> None:
    roles = ["system", "developer", "user", "assistant", "system", "user"]
    text = text_of(talk(*(turn(role, f"turn {n}") for n, role in enumerate(roles))))  # type: ignore[arg-type]
    assert [text.index(f"turn {n}") for n in range(6)] == sorted(text.index(f"turn {n}") for n in range(6))


def test_a_template_that_knows_no_developer_sees_a_system_turn() -> None:
    assert text_of(talk(turn("developer", "be"), user("a"))) == text_of(
        talk(turn("system", "be"), user("a"))
    )


def test_a_template_that_knows_the_developer_sees_one() -> None:
    preparer = small_preparer(template="{% for m in messages %}{{ m.role }}.{% endfor %}")
    assert text_of(talk(turn("developer", "be"), user("a")), preparer) == "developer.user."


def test_history_calls_are_rendered_as_objects_in_member_order() -> None:
    text = text_of(
        talk(user("a"), turn("assistant", calls=(call("get", city="Paris", days=2),)), turn("tool", "x"))
    )
    assert (
        "<function=get>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n2\n</parameter>\n" in text
    )


@pytest.mark.parametrize("order", list(itertools.permutations("azé")))
def test_member_order_of_tools_and_arguments_reaches_the_prompt(order: tuple[str, ...]) -> None:
    body: dict[str, Any] = {name: {"x": [True, None, 1.5, "<&>猫"]} for name in order}
    text = text_of(talk(user("a"), turn("assistant", calls=(call(key=body),)), tools=(ToolDef("t", body),)))
    written = ", ".join(f'"{name}": {{"x": [true, null, 1.5, "<&>猫"]}}' for name in order)
    assert text.count(f"{{{written}}}") == 2


def test_parts_of_text_are_joined_without_separators() -> None:
    assert "user\nabc<|im_end|>" in text_of(talk(user("a", "", "b", "c")))


def test_empty_content_is_an_empty_turn() -> None:
    assert "<|im_start|>user\n<|im_end|>" in text_of(talk(user(), user("a")))


def test_a_failed_tool_says_so_in_the_prompt() -> None:
    text = text_of(talk(user("a"), turn("assistant", "b"), turn("tool", "boom", is_error=True)))
    assert "<tool_response>\nis_error: true\nboom\n</tool_response>" in text


def test_special_tokens_have_names_in_the_template() -> None:
    preparer = small_preparer(template="{{ eos_token }}{{ pad_token }}{{ bos_token is defined }}")
    ids = preparer.prepare(talk(user("a"))).ids
    assert ids[0] == preparer.vocabulary.special("<|im_end|>")
    assert ids[1] == preparer.vocabulary.special("<|endoftext|>")
    assert text_of(talk(user("a")), preparer).endswith("False")


# Continuing the last turn


@pytest.mark.parametrize("text", ["The answer is", "a<|im_end|>b", "猫"])
def test_a_final_assistant_turn_can_be_left_open(text: str) -> None:
    conversation = talk(user("a"), turn("assistant", text), continue_final=True, enable_thinking=False)
    prompt = PREPARER.prepare(conversation)
    assert shown(PREPARER.vocabulary, prompt).endswith(
        f"<|im_start|>assistant\n<think>\n\n</think>\n\n{text}"
    )
    assert prompt.thinking is False
    fresh = PREPARER.prepare(talk(user("a"), enable_thinking=False))
    assert prompt.ids[: len(fresh.ids)] == fresh.ids


@pytest.mark.parametrize("name", res.MODELS)
def test_an_open_turn_of_the_reference_template_begins_like_an_answer(name: str) -> None:
    preparer = preparer_of(name)
    fresh = preparer.prepare(talk(user("a"), enable_thinking=False))
    conversation = talk(user("a"), turn("assistant", "Well,"), continue_final=True, enable_thinking=False)
    assert preparer.prepare(conversation).ids == fresh.ids + tuple(preparer.vocabulary.encode("Well,"))


@pytest.mark.parametrize("last", [user("a"), turn("tool", "a"), turn("assistant", "a", calls=(call(),))])
def test_only_assistant_text_can_be_continued(last: Any) -> None:
    assert fault(talk(user("a"), last, continue_final=True)).code == "invalid_prompt"
    assert fault(Conversation((), continue_final=True)).code == "invalid_prompt"


# Thinking


@pytest.mark.parametrize(
    ("template", "thinking"),
    [
        ("<|im_start|>assistant\n<think>\n", True),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", False),
        ("<|im_start|>assistant\n", False),
        ("<think><|im_start|>assistant\n", False),
        ("<|im_start|>assistant\n<think></think><think>", True),
        ("<think>", True),
        ("", False),
    ],
)
def test_thinking_is_what_the_prompt_ends_in(template: str, thinking: bool) -> None:
    preparer = small_preparer(template=template + "{# #}")
    assert preparer.prepare(talk(user("a<think>"))).thinking is thinking


# Budgets


def test_a_template_out_of_time_is_at_fault_not_the_server() -> None:
    clock = itertools.count()
    loop = "{% for m in messages %}{% for i in range(m.content | length) %}{% endfor %}{% endfor %}"
    budget = PromptBudget(seconds=50_000.0)
    preparer = small_preparer(template=loop, budget=budget, clock=lambda: float(next(clock)))
    assert preparer.prepare(talk(user("a" * 1000))).ids == ()
    found = fault(talk(user("a" * 60_000)), preparer)
    assert (found.code, "50000 s" in found.message) == ("invalid_chat_template", True)


def test_time_spent_on_marks_costs_the_marks_alone() -> None:
    clock = itertools.count()
    loop = "{% for m in messages %}<|im_start|>{{ m.content }}{% endfor %}"
    budget = PromptBudget(seconds=2_000.0)
    preparer = small_preparer(template=loop, budget=budget, clock=lambda: float(next(clock)))
    assert preparer.prepare(talk(*[user("a")] * 900)).marks
    hurried = preparer.prepare(talk(*[user("a")] * 1_100))
    assert len(hurried.ids) == 2_200
    assert [mark.kind for mark in hurried.marks] == [MarkKind.INPUT]


@pytest.mark.parametrize(
    "conversation",
    [
        talk(user("a" * 2001)),
        talk(user("a" * 1001, "a" * 1000)),
        talk(turn("assistant", "", reasoning="a" * 2001)),
        talk(user("a"), tools=(ToolDef("t", {"k" * 1001: ["v" * 1000]}),)),
        talk(user("a"), kwargs={"style": ["a" * 2001]}),
        talk(user("a" * 1990)),  # fits by itself, but not with what the template adds
    ],
)
def test_text_beyond_any_context_is_refused_before_it_is_tokenised(conversation: Conversation) -> None:
    template = "{% for m in messages %}{{ m.content }}{% endfor %}{{ '+' * 100 if messages | length == 1 }}"
    budget = PromptBudget(chars_per_token=2, least_chars=0)
    found = fault(conversation, small_preparer(template=template, max_context=1000, budget=budget))
    assert found.code == "context_length_exceeded"
    assert "1000 tokens" in found.message


def test_a_small_context_still_counts_long_prompts() -> None:
    preparer = small_preparer(max_context=8)
    assert len(preparer.prepare(talk(user("a" * 5000))).ids) > 5000


# Whatever comes


CLIENT = st.text(max_size=12)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | CLIENT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(CLIENT, inner, max_size=2),
    max_leaves=4,
)
TURNS = st.builds(
    lambda role, parts, reasoning, calls: turn(role, *parts, reasoning=reasoning, calls=tuple(calls)),
    st.sampled_from(["system", "developer", "user", "assistant", "tool"]),
    st.lists(CLIENT, max_size=2),
    st.none() | CLIENT,
    st.lists(
        st.builds(lambda name, key, value: call(name, **{key: value}), CLIENT, CLIENT, JSON), max_size=1
    ),
)


@given(
    st.lists(TURNS, max_size=4),
    st.lists(st.builds(lambda n, b: ToolDef(n, {"x": b}), CLIENT, JSON), max_size=1),
)
def test_any_conversation_is_prepared_or_refused(turns: list[Any], tools: list[ToolDef]) -> None:
    try:
        prompt = PREPARER.prepare(talk(*turns, tools=tuple(tools)))
    except Refused as refusal:
        assert refusal.fault.code in ("invalid_prompt", "invalid_chat_template")
    else:
        assert all(0 < mark.index <= len(prompt.ids) for mark in prompt.marks)
        assert all(0 <= token < PREPARER.vocabulary.size for token in prompt.ids)


def test_the_conversation_without_a_question_is_the_templates_to_refuse() -> None:
    found = fault(talk(turn("system", "a"), tools=(tool(),)))
    assert (found.code, found.message) == ("invalid_prompt", "There is no <|im_start|>user query.")
