from __future__ import annotations

import pytest

from ninfer.engine.job import ThinkingPlan
from ninfer.faults import Refused
from ninfer.prompt.thinking import EARLY_CLOSE, check_thinking_capacity, thinking_plan
from tests.prompt import resources as res

PLAN = ThinkingPlan(10, tuple(range(19)))


def test_the_text_is_exactly_the_published_one() -> None:
    sentence = (
        "Considering the limited time by the user, "
        "I have to give the solution based on the thinking directly now."
    )
    assert "\n\n" + " " + sentence + "\n</think>\n\n" == EARLY_CLOSE


def test_its_close_marker_is_the_control_token() -> None:
    vocabulary = res.small_vocabulary()
    plan = thinking_plan(vocabulary, 512)
    assert plan.budget == 512
    assert plan.control.count(vocabulary.special("</think>")) == 1
    shown = b"".join(vocabulary.token_bytes(token, raw=True) for token in plan.control).decode()
    assert shown == EARLY_CLOSE


@pytest.mark.parametrize("name", res.MODELS)
def test_it_is_encoded_as_one_string(name: str) -> None:
    vocabulary = res.vocabulary_of(name)
    before, after = EARLY_CLOSE.split("</think>")
    wanted = [*vocabulary.encode(before), vocabulary.special("</think>"), *vocabulary.encode(after)]
    assert list(thinking_plan(vocabulary, 1).control) == wanted


@pytest.mark.parametrize("capacity", [1, 9, 10, 10 + 19 + 1, 1000])
def test_a_cap_that_never_fires_or_fits_is_fine(capacity: int) -> None:
    check_thinking_capacity(PLAN, capacity, "max_tokens")


@pytest.mark.parametrize("capacity", [11, 20, 10 + 19])
def test_a_cap_that_could_fire_but_not_fit_is_refused(capacity: int) -> None:
    with pytest.raises(Refused) as refusal:
        check_thinking_capacity(PLAN, capacity, "max_output_tokens")
    fault = refusal.value.fault
    assert (fault.code, fault.param) == ("thinking_budget_capacity_insufficient", "max_output_tokens")
    assert "at least 30" in fault.message
