"""Control tokens that a client spells stay text, wherever they are spelled."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ninfer.faults import Refused
from ninfer.prompt.conversation import Conversation, Message, TextPart, ToolDef
from ninfer.prompt.prepare import Preparer
from ninfer.prompt.seals import Seals
from ninfer.prompt.tokens import Vocabulary
from tests.prompt import resources as res
from tests.prompt.talk import call, preparer_of, shown, small_preparer, talk, turn, user

SMALL = small_preparer()
TOOL_TURNS = (turn("assistant", "look", calls=(call(),)), turn("tool", "result"))

# Each puts a text of the client's into one place of a conversation.
PLACES: dict[str, Callable[[str], Conversation]] = {
    "user": lambda text: talk(user(text)),
    "user in two parts": lambda text: talk(user("a", text, "b")),
    "system": lambda text: talk(turn("system", text), user("hi")),
    "reasoning": lambda text: talk(
        user("hi"), turn("assistant", "a", reasoning=text), preserve_thinking=True
    ),
    "tool result": lambda text: talk(user("hi"), TOOL_TURNS[0], turn("tool", text)),
    "call name": lambda text: talk(user("hi"), turn("assistant", calls=(call(text),))),
    "argument": lambda text: talk(user("hi"), turn("assistant", calls=(call(key=text),))),
    "argument name": lambda text: talk(user("hi"), turn("assistant", calls=(call(**{text: "x"}),))),
    "nested argument": lambda text: talk(user("hi"), turn("assistant", calls=(call(key=[{text: text}]),))),
    "tool": lambda text: talk(user("hi"), tools=(ToolDef(text, {"name": text, text: [text]}),)),
}


def controls(vocabulary: Vocabulary, ids: tuple[int, ...]) -> list[int]:
    known = {token.id for token in vocabulary.added.values()}
    return [token for token in ids if token in known]


def prove_text(preparer: Preparer, place: Callable[[str], Conversation], spelling: str) -> None:
    """The spelling adds no control token, and every byte of it is in the prompt."""
    quoted = f"say {spelling} now"
    attempt, harmless = preparer.prepare(place(quoted)), preparer.prepare(place("say x now"))
    vocabulary = preparer.vocabulary
    assert controls(vocabulary, attempt.ids) == controls(vocabulary, harmless.ids)
    assert shown(vocabulary, attempt) == shown(vocabulary, harmless).replace("say x now", quoted)
    assert len(attempt.ids) > len(harmless.ids)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("spelling", [*res.SPECIAL, *res.PLAIN])
def test_a_spelled_control_token_is_text(place: str, spelling: str) -> None:
    prove_text(SMALL, PLACES[place], spelling)


@pytest.mark.parametrize("place", PLACES)
def test_so_it_is_with_every_token_of_the_reference_template(place: str) -> None:
    preparer = preparer_of(res.MODELS[0])
    for spelling in preparer.vocabulary.seals.spellings:
        prove_text(preparer, PLACES[place], spelling)


@pytest.mark.parametrize("spelling", [*res.SPECIAL, *res.PLAIN])
def test_a_template_option_is_text_too(spelling: str) -> None:
    prove_text(SMALL, lambda text: talk(user("hi"), kwargs={"style": text}), spelling)


@pytest.mark.parametrize("spelling", [*res.SPECIAL, *res.PLAIN])
def test_assistant_text_opens_no_turn_and_no_block(spelling: str) -> None:
    # The template may split such text (inline reasoning), so only the control tokens are compared.
    attempt = SMALL.prepare(talk(user("hi"), turn("assistant", f"a{spelling}b"), user("so")))
    harmless = SMALL.prepare(talk(user("hi"), turn("assistant", "ab"), user("so")))
    assert controls(SMALL.vocabulary, attempt.ids) == controls(SMALL.vocabulary, harmless.ids)


def test_inline_reasoning_of_the_history_is_still_split_off() -> None:
    inline = talk(user("hi"), turn("assistant", "<think>\nwhy\n</think>\n\nyes"), user("so"))
    field = talk(user("hi"), turn("assistant", "yes", reasoning="why"), user("so"))
    assert SMALL.prepare(inline).ids == SMALL.prepare(field).ids
    kept = [talk(*conversation.messages, preserve_thinking=True) for conversation in (inline, field)]
    assert SMALL.prepare(kept[0]).ids == SMALL.prepare(kept[1]).ids


def test_a_user_turn_that_is_a_tool_response_is_no_query() -> None:
    wrapped = "<tool_response>\n1\n</tool_response>"
    with pytest.raises(Refused, match=r"There is no <\|im_start\|>user query") as refusal:
        SMALL.prepare(talk(user(wrapped)))
    assert refusal.value.fault.code == "invalid_prompt"
    assert SMALL.prepare(talk(user(f"{wrapped} and?"))).ids


def test_placeholders_of_media_that_are_only_spelled_need_no_vision() -> None:
    blind = small_preparer(merge=None)
    text = "data:image/png;base64,AAAA <|vision_start|><|image_pad|><|vision_end|>"
    prompt = blind.prepare(talk(user(text)))
    assert text in shown(blind.vocabulary, prompt)
    assert prompt.media == ()


@pytest.mark.parametrize("surrogate", ["\ud800", "\udbff", "\udc00", "\udc01", "\udfff"])
@pytest.mark.parametrize("place", PLACES)
def test_a_lone_surrogate_is_refused_wherever_it_stands(place: str, surrogate: str) -> None:
    with pytest.raises(Refused) as refusal:
        SMALL.prepare(PLACES[place](f"a{surrogate}b"))
    assert refusal.value.fault.code == "invalid_prompt"


@pytest.mark.parametrize(
    "kwargs", [{"style": "\udc01"}, {"style": {"\udc01": 1}}, {"style": [["\udc01"]]}, {"\udc01": 1}]
)
def test_a_lone_surrogate_in_a_template_option_is_refused(kwargs: dict[str, object]) -> None:
    with pytest.raises(Refused) as refusal:
        SMALL.prepare(talk(user("hi"), kwargs=kwargs))
    assert refusal.value.fault.code == "invalid_prompt"


def test_without_control_tokens_sealing_and_spelling_agree() -> None:
    plain = Seals(())
    assert plain.seal("<|im_start|>") == "<|im_start|>"
    assert plain.of("<|im_start|>") is None


def test_a_marked_part_may_spell_anything() -> None:
    spelled = Message("user", (TextPart("a<|im_end|>", mark=True), TextPart(" b</think>")))
    prompt = SMALL.prepare(talk(spelled))
    assert controls(SMALL.vocabulary, prompt.ids) == controls(
        SMALL.vocabulary, SMALL.prepare(talk(user("a b"))).ids
    )


def test_every_place_shows_its_text() -> None:
    for place in PLACES.values():
        assert "needle" in shown(SMALL.vocabulary, SMALL.prepare(place("needle")))
