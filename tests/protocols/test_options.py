"""Template switches: every spelling, every contradiction, nothing overridden."""

from __future__ import annotations

from itertools import product
from typing import Any, get_args

import attrs
import pytest

from ninfer.faults import Refused
from ninfer.prompt.conversation import Json, TemplateOptions
from ninfer.prompt.options import RESERVED
from ninfer.protocols.options import Effort, Spelled, settle_options

EFFORTS = get_args(Effort)


def fault(spelled: Spelled, **kwargs: Json) -> tuple[str | None, str | None]:
    with pytest.raises(Refused) as caught:
        settle_options(spelled, kwargs)
    return caught.value.fault.param, caught.value.fault.code


def test_nothing_said_means_nothing_decided() -> None:
    assert settle_options(Spelled(), None) == TemplateOptions()


@pytest.mark.parametrize("name", ["enable_thinking", "preserve_thinking"])
@pytest.mark.parametrize("value", [True, False])
def test_a_switch_may_stand_in_either_place_or_in_both(name: str, value: bool) -> None:
    typed: Any = {name: value}
    by_field = settle_options(Spelled(**typed), None)
    assert getattr(by_field, name) is value and by_field.kwargs == {}
    assert settle_options(Spelled(), {name: value}) == by_field
    assert settle_options(Spelled(**typed), {name: value}) == by_field


@pytest.mark.parametrize("name", ["enable_thinking", "preserve_thinking"])
@pytest.mark.parametrize("value", [True, False])
def test_two_spellings_that_differ_are_refused(name: str, value: bool) -> None:
    typed: Any = {name: value}
    assert fault(Spelled(**typed), **{name: not value}) == (name, "conflicting_template_option")


@pytest.mark.parametrize("effort", EFFORTS)
def test_effort_is_one_option_in_two_places(effort: str) -> None:
    options = settle_options(Spelled(reasoning_effort=effort), None)
    assert options.reasoning_effort == effort
    assert options.enable_thinking is (False if effort == "none" else None)
    assert settle_options(Spelled(), {"reasoning_effort": effort}) == options


@pytest.mark.parametrize("first, second", [(a, b) for a, b in product(EFFORTS, EFFORTS) if a != b])
def test_two_efforts_that_differ_are_refused(first: str, second: str) -> None:
    found = fault(Spelled(reasoning_effort=first), reasoning_effort=second)
    assert found == ("reasoning_effort", "conflicting_template_option")


@pytest.mark.parametrize("effort", EFFORTS)
@pytest.mark.parametrize("thinking", [True, False])
def test_effort_and_thinking_agree_or_are_refused(effort: str, thinking: bool) -> None:
    spelled = Spelled(enable_thinking=thinking, reasoning_effort=effort)
    if thinking is (effort == "none"):
        assert fault(spelled) == ("reasoning_effort", "conflicting_template_option")
        assert fault(Spelled(reasoning_effort=effort), enable_thinking=thinking)[0] == "reasoning_effort"
    else:
        assert settle_options(spelled, None).enable_thinking is thinking


@pytest.mark.parametrize("name", sorted(RESERVED))
def test_what_the_server_gives_the_template_cannot_be_overridden(name: str) -> None:
    expected = (f"chat_template_kwargs.{name}", "reserved_template_option")
    assert fault(Spelled(), **{name: None}) == expected
    assert fault(Spelled(), **{name: "x"}) == expected


def test_a_null_standard_option_is_unspecified_and_another_null_stays() -> None:
    kwargs: dict[str, Json] = {
        "enable_thinking": None,
        "preserve_thinking": None,
        "reasoning_effort": None,
        "mine": None,
    }
    assert settle_options(Spelled(), kwargs) == TemplateOptions(kwargs={"mine": None})


@pytest.mark.parametrize(
    "name, value, code",
    [
        ("enable_thinking", "yes", "invalid_type"),
        ("enable_thinking", 1, "invalid_type"),
        ("preserve_thinking", [], "invalid_type"),
        ("reasoning_effort", 3, "invalid_type"),
        ("reasoning_effort", "huge", "invalid_value"),
    ],
)
def test_a_malformed_standard_option_names_its_path(name: str, value: Json, code: str) -> None:
    assert fault(Spelled(), **{name: value}) == (f"chat_template_kwargs.{name}", code)


def test_other_options_keep_their_order_and_the_request_keeps_its_object() -> None:
    sent: dict[str, Json] = {"zeta": 1, "enable_thinking": True, "alpha": {"b": 1, "a": 2}}
    options = settle_options(Spelled(), sent)
    assert list(options.kwargs) == ["zeta", "alpha"]
    assert list(sent) == ["zeta", "enable_thinking", "alpha"]


@pytest.mark.parametrize("thinking", [True, False, None])
def test_an_effort_apart_does_not_speak_about_thinking_unless_it_is_none(thinking: bool | None) -> None:
    spelled = Spelled(enable_thinking=thinking, effort_apart=True)
    high = settle_options(attrs.evolve(spelled, reasoning_effort="high"), None)
    assert (high.enable_thinking, high.reasoning_effort, high.effort_apart) == (thinking, "high", True)
    if thinking:
        assert fault(spelled, reasoning_effort="none")[1] == "conflicting_template_option"
    else:
        assert settle_options(spelled, {"reasoning_effort": "none"}).enable_thinking is False
