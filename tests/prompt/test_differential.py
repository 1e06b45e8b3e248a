"""The metered, sealed template against plain Jinja with the settings of the template convention."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import Template, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ninfer.prompt.sandbox import Meter
from ninfer.prompt.template import ChatTemplate
from ninfer.prompt.variables import template_variables
from tests.prompt import resources as res
from tests.prompt.talk import call, talk, tool, turn

SEALS = res.small_vocabulary().seals
SOURCES = {"small": res.TEMPLATE} | {
    name: res.model_resource(name, "chat_template.jinja").decode() for name in res.MODELS
}


class Refusal(Exception):
    """What ``raise_exception`` raises in the plain environment."""


def refuse(message: str) -> None:
    raise Refusal(message)


def plain_json(value: Any, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=False, **options)


@cache
def plain(source: str) -> Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = plain_json
    environment.globals["raise_exception"] = refuse
    return environment.from_string(source)


@cache
def sealed(source: str) -> ChatTemplate:
    return ChatTemplate(source, SEALS)


SPELLED = st.sampled_from([*res.SPECIAL, *res.PLAIN, "<think>\nwhy\n</think>\n\nso"])
WORDS = st.one_of(st.text("ab {}<>%é\n", max_size=8), SPELLED)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | WORDS, lambda inner: st.lists(inner, max_size=2)
)
TURNS = st.builds(
    lambda role, parts, reasoning, calls: turn(role, *parts, reasoning=reasoning, calls=tuple(calls)),
    st.sampled_from(["system", "user", "assistant", "tool"]),
    st.lists(WORDS, max_size=2),
    st.none() | WORDS,
    st.lists(st.builds(lambda key, value: call(**{key: value}), WORDS, JSON), max_size=2),
)
SWITCHES = st.dictionaries(st.sampled_from(["enable_thinking", "preserve_thinking"]), st.booleans())


@pytest.mark.parametrize("name", SOURCES)
@given(st.lists(TURNS, min_size=1, max_size=5), st.booleans(), SWITCHES)
def test_the_text_is_the_one_that_plain_jinja_gives(
    name: str, turns: list[Any], tools: bool, switches: dict[str, bool]
) -> None:
    conversation = talk(*turns, tools=(tool(),) * tools)
    variables = {**switches, **template_variables(conversation, developer=True)}
    try:
        wanted = plain(SOURCES[name]).render(variables)
    except (Refusal, TemplateError):
        return
    text = sealed(SOURCES[name]).render(variables, Meter(lambda: 0.0, 1.0, 1 << 20))
    assert SEALS.unseal(text) == wanted
