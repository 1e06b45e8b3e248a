from __future__ import annotations

from typing import Any

import pytest

from ninfer.prompt.conversation import TemplateOptions
from ninfer.prompt.options import Options, resolve
from ninfer.settings import GenerationDefaults
from tests.prompt.talk import shown, small_preparer, talk, user

NONE = GenerationDefaults()
QUIET = GenerationDefaults(enable_thinking=False)
KEEPING = GenerationDefaults(preserve_thinking=True)


def options(defaults: GenerationDefaults = NONE, **fields: Any) -> Options:
    return resolve(TemplateOptions(**fields), defaults)


def test_what_nobody_says_the_template_decides() -> None:
    assert options().variables == {}


@pytest.mark.parametrize("name", ["enable_thinking", "preserve_thinking"])
@pytest.mark.parametrize("value", [True, False])
def test_the_template_sees_what_the_request_says(name: str, value: bool) -> None:
    assert options(**{name: value}).variables == {name: value}


def test_another_null_is_none() -> None:
    assert options(kwargs={"style": None}).variables == {"style": None}


def test_effort_none_turns_thinking_off() -> None:
    assert options(reasoning_effort="none").variables == {"enable_thinking": False}
    assert options(reasoning_effort="none", enable_thinking=False).variables == {"enable_thinking": False}


@pytest.mark.parametrize("effort", ["minimal", "low", "medium", "high", "xhigh", "max"])
def test_other_efforts_are_the_templates_business(effort: str) -> None:
    assert options(reasoning_effort=effort).variables == {"reasoning_effort": effort}


def test_a_request_beats_the_servers_default() -> None:
    assert options(QUIET).variables == {"enable_thinking": False}
    assert options(QUIET, enable_thinking=True).variables == {"enable_thinking": True}
    assert options(QUIET, reasoning_effort="low").variables == {
        "enable_thinking": True,
        "reasoning_effort": "low",
    }
    assert options(KEEPING, preserve_thinking=False).variables == {"preserve_thinking": False}
    assert options(KEEPING).preserve_thinking is True


@pytest.mark.parametrize("fields", [{"reasoning_effort": "none"}, {"enable_thinking": False}])
def test_thinking_can_be_turned_off_two_ways(fields: dict[str, Any]) -> None:
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
