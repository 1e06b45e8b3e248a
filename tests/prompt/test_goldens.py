"""Every prompt of the bundled artifacts: ids, rendered text, media spans and positions."""

from __future__ import annotations

import pytest

from tests.prompt import resources as res
from tests.prompt.talk import golden_talk, preparer_of, shown

GOLDENS = [(name, index) for name in res.MODELS for index in range(14)]


@pytest.mark.parametrize(("name", "index"), GOLDENS)
def test_the_prompt_is_the_golden_one(name: str, index: int) -> None:
    golden, preparer = res.golden_prompts(name)[index], preparer_of(name)
    conversation, items = golden_talk(golden)
    prompt = preparer.prepare(conversation, items)
    assert shown(preparer.vocabulary, prompt) == (golden["expanded"] or golden["rendered"])
    assert list(prompt.ids) == golden["ids"]
    assert prompt.thinking is golden["enable_thinking"]
    axes = (
        [list(range(len(prompt.ids)))] * 3 if prompt.positions is None else [*map(list, prompt.positions)]
    )
    assert axes == golden["positions"]
    assert prompt.rope_delta == max(axes[0] + axes[1] + axes[2]) + 1 - len(prompt.ids)
    assert len(prompt.media) == len(items)
