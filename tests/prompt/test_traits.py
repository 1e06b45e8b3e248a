from __future__ import annotations

import itertools

import pytest

from ninfer.faults import StartupError
from ninfer.prompt.sandbox import Meter
from ninfer.prompt.template import ChatTemplate
from ninfer.prompt.traits import Traits, examine
from tests.prompt import resources as res

VOCABULARY = res.small_vocabulary()


def traits(source: str, seconds: float = 1e9, size: int = 1 << 20) -> Traits:
    clock = itertools.count()
    template = ChatTemplate(source, VOCABULARY.seals)
    return examine(template, {}, lambda: Meter(lambda: float(next(clock)), next(clock) + seconds, size))


def test_the_small_template_drops_reasoning_and_knows_no_developer() -> None:
    assert traits(res.TEMPLATE) == Traits(keeps_reasoning=False, developer=False)


@pytest.mark.parametrize("name", res.MODELS)
def test_the_reference_templates_pass(name: str) -> None:
    source = res.model_resource(name, "chat_template.jinja").decode()
    assert traits(source) == Traits(keeps_reasoning=False, developer=True)


def test_a_template_that_keeps_reasoning_by_default_is_recognised() -> None:
    source = res.TEMPLATE.replace("{%- if preserve_thinking or", "{%- if preserve_thinking is undefined or")
    assert traits(source).keeps_reasoning


@pytest.mark.parametrize(
    "source",
    [
        "{% for m in messages %}{{ '<|im_' ~ 'start|>' ~ m.content }}{% endfor %}",
        "{% for m in messages %}{{ '<|im_%s|>' % 'start' }}{% endfor %}",
        "{% set kind = 'start' %}<|im_{{ kind }}|>",
        "{% set end = '</think>' %}{% for m in messages %}{{ m.content.split(end) | last }}{% endfor %}",
        "{% set close = '</think>' %}{% for m in messages %}{{ 'x' if close in m.content }}{% endfor %}",
    ],
)
def test_a_template_whose_control_tokens_cannot_be_told_apart_does_not_start(source: str) -> None:
    with pytest.raises(StartupError, match="control tokens"):
        traits(source)


@pytest.mark.parametrize("source", ["{{ raise_exception('never') }}", "{{ nothing.at.all }}"])
def test_a_template_that_refuses_by_itself_proves_nothing(source: str) -> None:
    assert traits(source) == Traits(keeps_reasoning=False, developer=False)


def test_a_template_too_slow_for_a_long_conversation_does_not_start() -> None:
    squared = "{% for a in messages %}{% for b in messages %}{% endfor %}{% endfor %}"
    with pytest.raises(StartupError, match="too much time for 1280 messages"):
        traits(squared, seconds=1_000_000)
    traits("{% for a in messages %}{% endfor %}", seconds=1_000_000)


def test_a_template_too_wordy_for_a_long_conversation_does_not_start() -> None:
    wordy = "{% for a in messages %}{{ 'x' * 10000 }}{% endfor %}"
    with pytest.raises(StartupError, match="too much size"):
        traits(wordy)
