"""What Messages requests become in the prompt of the bundled model."""

from __future__ import annotations

from typing import Any

import pytest

from ninfer.prompt.prepared import MarkKind, Prepared
from ninfer.protocols.messages.lower import lower_prompt
from ninfer.protocols.messages.schema import Prompt
from tests.protocols.fakes import READER
from tests.protocols.messages.cases import EPHEMERAL, GOOD, TOOL, image, result, text, turns, use
from tests.protocols.messages.test_lower import BILLING
from tests.sim.server import bundled_front


def prepared(**change: Any) -> Prepared:
    return bundled_front().prepare(lower_prompt(READER.read({**GOOD, **change}, Prompt))[0])


def prompt(**change: Any) -> str:
    table = bundled_front().preparer.vocabulary.table
    vocabulary = bundled_front().preparer.vocabulary
    names = {vocabulary.special(name): name for name in ("<|im_start|>", "<|im_end|>")}
    return b"".join(names.get(id, "").encode() or table[id] for id in prepared(**change).ids).decode()


def test_a_final_assistant_text_is_left_open_and_nothing_thinks() -> None:
    change = turns(("user", "Is it new?"), ("assistant", [text("The answer"), text(" is")]))
    assert prompt(**change).endswith("The answer is")
    assert not prepared(**change).thinking and prepared().thinking


def test_an_error_is_marked_in_the_prompt() -> None:
    history = ("assistant", [use()]), ("user", [result(content="no such file", is_error=True)])
    good = ("assistant", [use()]), ("user", [result(content="no such file", is_error=False)])
    assert "<tool_response>\nis_error: true\nno such file\n</tool_response>" in prompt(**turns(*history))
    assert "<tool_response>\nno such file\n</tool_response>" in prompt(**turns(*good))


def test_results_stand_in_the_order_of_their_calls() -> None:
    change = turns(
        ("user", "q"),
        ("assistant", [use("a"), use("b")]),
        ("user", [result("b", content="second"), result("a", content="first"), text("then")]),
    )
    shown = prompt(**change)
    assert shown.index("first") < shown.index("second") < shown.index("then")


def test_an_inline_system_message_stands_where_it_was() -> None:
    shown = prompt(
        system="S0", **turns(("user", "U1"), ("assistant", "A2"), ("system", "S3"), ("user", "U4"))
    )
    assert [shown.index(word) for word in ("S0", "U1", "A2", "S3", "U4")] == sorted(
        shown.index(word) for word in ("S0", "U1", "A2", "S3", "U4")
    )
    assert "<|im_start|>system\nS3<|im_end|>" in shown


def test_joined_messages_have_nothing_between_them() -> None:
    assert "<|im_start|>user\none two<|im_end|>" in prompt(**turns(("user", "one"), ("user", " two")))


def test_a_billing_header_is_not_in_the_prompt() -> None:
    rest = text("Be brief.")
    assert prompt(system=[text(BILLING), rest]) == prompt(system=[rest])
    assert prompt(system=[text(BILLING)]) == prompt()
    for kept in (BILLING, [rest, text(BILLING)], [text(" " + BILLING)]):
        assert "x-anthropic-billing-header" in prompt(system=kept)


def test_a_tool_keeps_its_members_in_order() -> None:
    sent = {
        "description": "D",
        "input_schema": {"z": 1, "a": 2},
        "name": "look",
        "input_examples": [{"z": 1}],
    }
    wanted = (
        '"function": {"description": "D", "parameters": {"z": 1, "a": 2}, "name": "look", "input_examples"'
    )
    assert wanted in prompt(tools=[sent])


def test_control_tokens_in_text_are_text() -> None:
    assert len(prepared(**turns(("user", "<|im_end|>"))).ids) > len(prepared(**turns(("user", "a"))).ids)


@pytest.mark.parametrize(
    "change, marks",
    [
        ({}, 0),
        ({"tools": [{**TOOL, "cache_control": EPHEMERAL}]}, 1),
        ({"system": [text("Be brief.", cache_control=EPHEMERAL)]}, 1),
        ({"system": [text("One.", cache_control=EPHEMERAL), text(" Two.", cache_control=EPHEMERAL)]}, 2),
        (
            turns(
                ("user", [text("a", cache_control=EPHEMERAL)]),
                ("assistant", [use(cache_control=EPHEMERAL)]),
                ("user", [result(content="r", cache_control=EPHEMERAL)]),
            ),
            3,
        ),
        ({"cache_control": EPHEMERAL}, 1),
    ],
)
def test_markers_become_exact_frontiers(change: dict[str, Any], marks: int) -> None:
    found = [mark.index for mark in prepared(**change).marks if mark.kind is MarkKind.EXPLICIT]
    assert len(found) == marks and all(0 < index <= len(prepared(**change).ids) for index in found)


def test_a_marker_never_changes_the_prompt() -> None:
    marked = {"system": [text(" spaced \n", cache_control=EPHEMERAL)], "cache_control": EPHEMERAL}
    assert prepared(**marked).ids == prepared(system=[text(" spaced \n")]).ids


def test_an_image_without_vision_is_refused_at_its_block() -> None:
    from ninfer.faults import Refused

    with pytest.raises(Refused) as caught:
        prepared(**turns(("user", [result(content=[text("a"), image()])])))
    assert (caught.value.fault.code, caught.value.fault.param) == (
        "vision_disabled",
        "messages[0].content[0].content[1]",
    )
