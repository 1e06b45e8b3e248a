"""Shared-prefix marks: four writes a request, the latest explicit ones first."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ninfer.prompt.conversation import Message, TextPart
from ninfer.protocols.marks import WRITES, settle_marks

TURNS = st.lists(st.lists(st.booleans(), max_size=4), max_size=6)


def conversation(turns: list[list[bool]]) -> list[Message]:
    return [Message("user", tuple(TextPart(str(i), mark) for i, mark in enumerate(t))) for t in turns]


def flags(messages: tuple[Message, ...]) -> list[bool]:
    return [part.mark for message in messages for part in message.parts]


@given(TURNS, st.booleans())
def test_the_latest_four_marks_are_kept(turns: list[list[bool]], implicit: bool) -> None:
    before = [mark for turn in turns for mark in turn]
    messages, policy = settle_marks(conversation(turns), implicit=implicit)
    after = flags(messages)
    kept = [index for index, mark in enumerate(after) if mark]
    assert kept == [index for index, mark in enumerate(before) if mark][-WRITES:]
    assert policy.implicit == (implicit and len(kept) < WRITES)


def test_text_is_never_touched() -> None:
    messages, _ = settle_marks(conversation([[True] * 4, [True] * 4]), implicit=True)
    assert [part.text for m in messages for part in m.parts if isinstance(part, TextPart)] == list(
        "01230123"
    )
