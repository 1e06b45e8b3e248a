from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer.prompt.conversation import (
    CachePolicy,
    Conversation,
    MediaPart,
    Message,
    Part,
    TextPart,
    ToolDef,
)
from ninfer.prompt.frontiers import tokenise
from ninfer.prompt.media import MediaItem
from ninfer.prompt.prepare import Preparer
from ninfer.prompt.prepared import MarkKind, Prepared
from ninfer.settings import GenerationDefaults
from tests.prompt import resources as res
from tests.prompt.talk import call, preparer_of, shown, small_preparer, talk, tool, turn, user

PREPARER = small_preparer()
VOCABULARY = PREPARER.vocabulary
OFF = CachePolicy(implicit=False)
EXPLICIT, IMPLICIT, INPUT = MarkKind.EXPLICIT, MarkKind.IMPLICIT, MarkKind.INPUT


def marked(text: str) -> TextPart:
    return TextPart(text, mark=True)


def before(prompt: Prepared, index: int, preparer: Preparer = PREPARER) -> str:
    return shown(preparer.vocabulary, attrs.evolve(prompt, ids=prompt.ids[:index]))


def places(
    conversation: Conversation,
    kind: MarkKind,
    media: list[MediaItem] | None = None,
    preparer: Preparer = PREPARER,
) -> list[str]:
    """The prompt up to each mark of a kind."""
    prompt = preparer.prepare(conversation, media or [])
    return [before(prompt, mark.index, preparer) for mark in prompt.marks if mark.kind is kind]


# Explicit and implicit marks


def test_the_implicit_mark_precedes_the_closing_tokens() -> None:
    (text,) = places(talk(turn("system", "be"), user("a", "hello")), IMPLICIT)
    assert text.endswith("<|im_start|>user\nahello")


def test_the_implicit_mark_is_in_the_latest_turn_that_has_content() -> None:
    (text,) = places(talk(user("hello"), turn("assistant", " ", calls=(call(),))), IMPLICIT)
    assert text.endswith("user\nhello")


def test_the_implicit_mark_can_be_declined() -> None:
    assert places(talk(user("hello"), cache=OFF), IMPLICIT) == []


def test_an_explicit_mark_stands_where_it_was_asked_for() -> None:
    conversation = talk(turn("system", marked("be brief")), user(marked("a."), "\n\nb"), cache=OFF)
    first, second = places(conversation, EXPLICIT)
    assert first.endswith("system\nbe brief")
    assert second.endswith("user\na.")


def test_a_mark_inside_a_token_is_ignored() -> None:
    conversation = talk(user(marked("hel"), "lo"), cache=OFF)
    prompt = PREPARER.prepare(conversation)
    assert places(conversation, EXPLICIT) == []
    assert prompt.ids == PREPARER.prepare(talk(user("hello"))).ids


def test_a_mark_on_trimmed_blanks_stands_before_them() -> None:
    # The template trims: the blanks reach no prompt, so the boundary is the end of what is left.
    (text,) = places(talk(user(marked("hello \n ")), cache=OFF), EXPLICIT)
    assert text.endswith("user\nhello")


def test_a_mark_that_would_change_the_template_s_mind_is_ignored_alone() -> None:
    wrapped = "<tool_response>\n1\n</tool_response>"
    conversation = talk(user("hello"), turn("assistant", "x"), user(marked(wrapped)), cache=OFF)
    assert places(conversation, EXPLICIT) == []
    both = talk(user(marked("hello")), turn("assistant", "x"), user(marked(wrapped)), cache=OFF)
    (text,) = places(both, EXPLICIT)
    assert text.endswith("user\nhello")


def test_a_mark_on_an_empty_part_stands_where_the_part_would() -> None:
    found = places(talk(turn("system", marked("")), user("a"), cache=OFF), EXPLICIT)
    assert found == ["<|im_start|>system\n"]


def test_a_marked_tool_is_whole() -> None:
    (text,) = places(talk(user("a"), tools=(tool(mark=True), tool("two")), cache=OFF), EXPLICIT)
    assert text.endswith('{"name": "find", "parameters": {}}}')
    (last,) = places(talk(user("a"), tools=(tool(), tool("two", mark=True)), cache=OFF), EXPLICIT)
    assert last.endswith('{"name": "two", "parameters": {}}}')


def test_a_line_end_that_is_part_of_the_tools_last_token_goes_with_it() -> None:
    definition = ToolDef("one", {"a": {}}, mark=True)  # ends in "}}", which has a token with "\n"
    (text,) = places(talk(user("a"), tools=(definition, tool()), cache=OFF), EXPLICIT)
    assert text.endswith('{"a": {}}\n')


def test_a_marked_call_ends_with_its_closing_token() -> None:
    calls = (attrs.evolve(call("one", a="<tool_call>"), mark=True), call("two"))
    (text,) = places(talk(user("a"), turn("assistant", "b", calls=calls), cache=OFF), EXPLICIT)
    assert text.endswith("</function>\n</tool_call>")
    assert "two" not in text


def test_a_marked_picture_is_whole() -> None:
    picture = MediaPart("image", "data:", "m", mark=True)
    (text,) = places(talk(user(picture, "?"), cache=OFF), EXPLICIT, [MediaItem("image", (1, 4, 4), b"")])
    assert text.endswith("<|vision_start|>" + "<|image_pad|>" * 4 + "<|vision_end|>")


def test_no_mark_lies_inside_a_picture() -> None:
    parts: list[Part] = [
        TextPart("a", mark=True),
        MediaPart("image", "data:", "m", mark=True),
        TextPart("b", mark=True),
    ]
    prompt = PREPARER.prepare(talk(user(*parts)), [MediaItem("image", (1, 8, 8), b"")])
    (span,) = prompt.media
    assert [mark.kind for mark in prompt.marks] == [EXPLICIT, EXPLICIT, EXPLICIT, INPUT]
    assert not any(span.start < mark.index < span.stop for mark in prompt.marks)


def test_the_latest_four_explicit_marks_leave_no_room_for_the_implicit_one() -> None:
    turns = [
        user(marked(f"turn {n}.")) if n % 2 == 0 else turn("assistant", f"turn {n}.") for n in range(13)
    ]
    conversation = talk(*turns, user("last"))
    found = places(conversation, EXPLICIT)
    assert [text[-8:] for text in found] == [
        "turn 6. "[:-1].rjust(8, "\n"),
        "\nturn 8.",
        "turn 10.",
        "turn 12.",
    ]
    assert places(conversation, IMPLICIT) == []
    three = talk(*turns[8:], user("last"))
    assert (len(places(three, EXPLICIT)), len(places(three, IMPLICIT))) == (3, 1)


def test_an_explicit_mark_at_the_implicit_place_is_one_mark() -> None:
    conversation = talk(user(marked("hello")))
    assert (len(places(conversation, EXPLICIT)), places(conversation, IMPLICIT)) == (1, [])


# The input mark


def test_where_reasoning_is_kept_the_input_mark_precedes_the_prologue() -> None:
    history = (user("a"), turn("assistant", "b", reasoning="r"), turn("tool", "t"))
    (text,) = places(talk(*history, preserve_thinking=True), INPUT)
    assert text.endswith("</tool_response><|im_end|>\n")


def test_where_reasoning_is_dropped_it_precedes_the_turn_that_will_lose_it() -> None:
    history = (user("old"), turn("assistant", "x"), user("a"), turn("assistant", "b", reasoning="r"))
    for said in (None, False):
        (text,) = places(talk(*history, turn("tool", "t"), preserve_thinking=said), INPUT)
        assert text.endswith("user\na<|im_end|>\n")
    (text,) = places(talk(*history[:3]), INPUT)
    assert text.endswith("user\na<|im_end|>\n")


def test_the_servers_default_decides_for_those_who_say_nothing() -> None:
    keeping = small_preparer(defaults=GenerationDefaults(preserve_thinking=True))
    conversation = talk(user("a"), turn("assistant", "b"), turn("tool", "t"))
    assert places(conversation, INPUT, preparer=keeping)[0].endswith("</tool_response><|im_end|>\n")
    assert places(conversation, INPUT)[0].endswith("user\na<|im_end|>\n")


def test_without_turn_tokens_there_is_no_input_mark() -> None:
    preparer = small_preparer(template="{% for m in messages %}{{ m.content }}{% endfor %}")
    assert places(talk(user("hello")), INPUT, preparer=preparer) == []


WORDS = st.text("ab .,\n\t{}é猫", max_size=8)
SAID = WORDS.map(lambda text: f"x{text}")


@st.composite
def histories(draw: st.DrawFn) -> list[Message]:
    """A conversation that awaits an answer."""
    turns = [turn("system", draw(SAID))] if draw(st.booleans()) else []
    for _ in range(draw(st.integers(0, 2))):
        turns += [user(draw(SAID)), turn("assistant", draw(SAID), reasoning=draw(st.none() | SAID))]
    turns.append(user(draw(SAID)))
    for _ in range(draw(st.integers(0, 2))):
        turns.append(turn("assistant", draw(SAID), reasoning=draw(SAID), calls=(call(q=draw(WORDS)),)))
        turns.append(turn("tool", draw(SAID)))
    return turns


@given(histories(), SAID, SAID, SAID, st.booleans())
def test_the_input_mark_survives_every_answer_and_every_next_question(
    history: list[Message], thought: str, answer: str, question: str, keeps: bool
) -> None:
    first = PREPARER.prepare(talk(*history, preserve_thinking=keeps))
    (mark,) = (mark for mark in first.marks if mark.kind is INPUT)
    answered = [*history, turn("assistant", answer, reasoning=thought)]
    for later in ([*answered, user(question)], [*answered, turn("tool", question)]):
        second = PREPARER.prepare(talk(*later, preserve_thinking=keeps))
        assert second.ids[: mark.index] == first.ids[: mark.index]


@given(WORDS, WORDS, WORDS)
def test_prompts_that_share_a_marked_part_share_its_ids(shared: str, one: str, other: str) -> None:
    prompts = [PREPARER.prepare(talk(user("x", marked(shared), tail), cache=OFF)) for tail in (one, other)]
    found = [mark.index for prompt in prompts for mark in prompt.marks if mark.kind is EXPLICIT]
    common = min(found, default=0)  # trimmed blanks may make one of two marks come earlier
    if len(found) == 2:
        assert prompts[0].ids[:common] == prompts[1].ids[:common]


@given(WORDS, WORDS)
def test_a_mark_never_changes_the_prompt(one: str, other: str) -> None:
    plain = PREPARER.prepare(talk(user("x", one, other)))
    assert PREPARER.prepare(talk(user("x", marked(one), marked(other)))).ids == plain.ids


# Frontiers

SEALED = st.lists(st.one_of(WORDS, st.sampled_from(["\udc00", "\udc01\udc02"]))).map("".join)


@given(SEALED, st.data())
def test_a_frontier_is_exact_or_none(text: str, draw: st.DataObject) -> None:
    offsets = draw.draw(st.lists(st.integers(0, len(text)), max_size=4))
    ids, counts = tokenise(VOCABULARY, text, offsets)
    assert ids == VOCABULARY.encode_sealed(text)
    for offset, count in zip(offsets, counts, strict=True):
        head = VOCABULARY.encode_sealed(text[:offset])
        assert count == (len(head) if ids[: len(head)] == head else None)


@pytest.mark.parametrize(("text", "offset", "count"), [("", 0, 0), ("\udc01", 0, 0), ("\udc01", 1, 1)])
def test_ends_and_control_tokens_are_frontiers(text: str, offset: int, count: int) -> None:
    assert tokenise(VOCABULARY, text, [offset])[1] == [count]


def test_the_reference_template_takes_marks_everywhere() -> None:
    preparer = preparer_of(res.MODELS[0])
    calls = (attrs.evolve(call(), mark=True),)
    conversation = talk(
        turn("system", marked("be brief")),
        user(marked("hello")),
        turn("assistant", "b", calls=calls),
        turn("tool", "done"),
        tools=(tool(mark=True),),
    )
    found = places(conversation, EXPLICIT, preparer=preparer)
    endings = ['"parameters": {}}}\n', "\n\nbe brief", "user\nhello", "</function>\n</tool_call>"]
    assert [text[-len(end) :] for text, end in zip(found, endings, strict=True)] == endings
