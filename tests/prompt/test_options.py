from __future__ import annotations

from typing import Any

import pytest

from ninfer.faults import Refused
from ninfer.prompt.conversation import Json, TemplateOptions
from ninfer.prompt.options import Options, resolve
from ninfer.settings import GenerationDefaults
from tests.prompt.talk import shown, small_preparer, talk, user

NONE = GenerationDefaults()
QUIET = GenerationDefaults(enable_thinking=False)
KEEPING = GenerationDefaults(preserve_thinking=True)


def options(defaults: GenerationDefaults = NONE, **fields: Any) -> Options:
    return resolve(TemplateOptions(**fields), defaults)


def refusal(**fields: Any) -> tuple[str | None, str | None]:
    with pytest.raises(Refused) as caught:
        options(**fields)
    return caught.value.fault.code, caught.value.fault.param


def test_what_nobody_says_the_template_decides() -> None:
    assert options().variables == {}


@pytest.mark.parametrize("name", ["enable_thinking", "preserve_thinking"])
@pytest.mark.parametrize("value", [True, False])
def test_a_switch_may_be_typed_or_a_kwarg_or_both(name: str, value: bool) -> None:
    for fields in ({name: value}, {"kwargs": {name: value}}, {name: value, "kwargs": {name: value}}):
        assert options(**fields).variables == {name: value}


@pytest.mark.parametrize(
    ("name", "typed", "kwarg"),
    [
        ("enable_thinking", True, False),
        ("preserve_thinking", False, True),
        ("reasoning_effort", "high", "low"),
        ("reasoning_effort", "none", "low"),
    ],
)
def test_values_given_twice_must_agree(name: str, typed: Json, kwarg: Json) -> None:
    found = refusal(**{name: typed, "kwargs": {name: kwarg}})
    assert found == ("conflicting_template_option", f"chat_template_kwargs.{name}")


@pytest.mark.parametrize("name", ["enable_thinking", "preserve_thinking", "reasoning_effort"])
def test_a_null_standard_option_is_unspecified(name: str) -> None:
    assert options(kwargs={name: None}).variables == {}
    assert options(KEEPING, kwargs={name: None}) == options(KEEPING)


def test_another_null_is_none() -> None:
    assert options(kwargs={"style": None}).variables == {"style": None}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("enable_thinking", value) for value in ("false", 0, 1, ["x"], {"x": 1})),
        *(("preserve_thinking", value) for value in ("true", 1.0)),
        *(("reasoning_effort", value) for value in (3, True, ["low"])),
    ],
)
def test_a_standard_option_has_its_type(name: str, value: Json) -> None:
    assert refusal(kwargs={name: value}) == ("invalid_template_option", f"chat_template_kwargs.{name}")


@pytest.mark.parametrize(
    "name",
    [
        *("messages", "tools", "chat_template", "add_generation_prompt", "continue_final_message", "loop"),
        *("bos_token", "eos_token", "pad_token", "raise_exception", "strftime_now", "namespace"),
    ],
)
def test_what_belongs_to_the_server_cannot_be_set(name: str) -> None:
    assert refusal(kwargs={name: None}) == ("reserved_template_option", f"chat_template_kwargs.{name}")


def test_effort_none_turns_thinking_off() -> None:
    assert options(reasoning_effort="none").variables == {"enable_thinking": False}
    assert options(kwargs={"reasoning_effort": "none"}).variables == {"enable_thinking": False}
    assert options(reasoning_effort="none", enable_thinking=False).variables == {"enable_thinking": False}


@pytest.mark.parametrize(("thinking", "effort"), [(True, "none"), (False, "low"), (False, "max")])
def test_thinking_and_effort_must_not_contradict(thinking: bool, effort: str) -> None:
    conflict = ("conflicting_template_option", "reasoning_effort")
    assert refusal(enable_thinking=thinking, reasoning_effort=effort) == conflict
    assert refusal(kwargs={"enable_thinking": thinking}, reasoning_effort=effort) == conflict


@pytest.mark.parametrize("effort", ["minimal", "low", "medium", "high", "xhigh", "max"])
def test_other_efforts_are_the_templates_business(effort: str) -> None:
    assert options(reasoning_effort=effort).variables == {"reasoning_effort": effort}


def test_a_request_beats_the_servers_default() -> None:
    assert options(QUIET).variables == {"enable_thinking": False}
    assert options(QUIET, enable_thinking=True).variables == {"enable_thinking": True}
    assert options(QUIET, kwargs={"enable_thinking": True}).variables == {"enable_thinking": True}
    assert options(QUIET, reasoning_effort="low").variables == {
        "enable_thinking": True,
        "reasoning_effort": "low",
    }
    assert options(KEEPING, preserve_thinking=False).variables == {"preserve_thinking": False}
    assert options(KEEPING).preserve_thinking is True


@pytest.mark.parametrize(
    "fields",
    [{"reasoning_effort": "none"}, {"enable_thinking": False}, {"kwargs": {"enable_thinking": False}}],
)
def test_thinking_can_be_turned_off_three_ways(fields: dict[str, Any]) -> None:
    preparer = small_preparer()
    prompt = preparer.prepare(talk(user("hi"), **fields))
    assert prompt.thinking is False
    assert shown(preparer.vocabulary, prompt).endswith("<think>\n\n</think>\n\n")
    assert preparer.prepare(talk(user("hi"))).thinking is True


def test_kwargs_reach_the_template() -> None:
    preparer = small_preparer()
    prompt = preparer.prepare(talk(user("hi"), kwargs={"style": "plain"}))
    assert shown(preparer.vocabulary, prompt).endswith("<think>\nplain")


@pytest.mark.parametrize("thinking", [True, False, None])
@pytest.mark.parametrize("defaults", [NONE, QUIET])
def test_an_effort_apart_neither_contradicts_nor_switches_thinking(
    thinking: bool | None, defaults: GenerationDefaults
) -> None:
    found = options(defaults, enable_thinking=thinking, reasoning_effort="high", effort_apart=True)
    wanted = defaults.enable_thinking if thinking is None else thinking
    assert (found.enable_thinking, found.reasoning_effort) == (wanted, "high")
    none = options(defaults, reasoning_effort="none", effort_apart=True)
    assert (none.enable_thinking, none.reasoning_effort) == (False, None)
