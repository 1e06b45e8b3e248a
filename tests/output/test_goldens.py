"""The greedy answers of the bundled artifacts through the whole output room."""

from __future__ import annotations

import pytest

from ninfer.engine.job import Finish
from ninfer.output.deltas import ParsedCall
from ninfer.output.session import OutputSession
from ninfer.output.toolcalls import ToolStream
from tests.prompt import resources as res
from tests.prompt.talk import golden_talk

GOLDENS = [(name, index) for name in res.MODELS for index in range(14)]


@pytest.mark.parametrize(("name", "index"), GOLDENS)
def test_the_answer_is_the_golden_text_in_its_channels(name: str, index: int) -> None:
    golden, vocabulary = res.golden_prompts(name)[index], res.vocabulary_of(name)
    thinking = golden["enable_thinking"]
    session = OutputSession(vocabulary.table, vocabulary.stops, thinking=thinking)
    verdicts = [session.take(token) for token in golden["answer"]]
    pieces = [verdict.piece for verdict in verdicts] + [session.finish()]
    text, ended = golden["greedy_text"].removesuffix("<|im_end|>"), "<|im_end|>" in golden["greedy_text"]
    reasoning, _, content = text.partition("</think>") if thinking else ("", "", text)
    assert "".join(piece.reasoning for piece in pieces) == reasoning
    assert "".join(piece.content for piece in pieces) == content.lstrip()
    assert (verdicts[-1].stop is Finish.STOP_TOKEN) is ended


@pytest.mark.parametrize("name", res.MODELS)
def test_the_golden_tool_call_is_structured(name: str) -> None:
    golden = res.golden_prompts(name)[5]
    conversation, _ = golden_talk(golden)
    tools = ToolStream(conversation.tools)
    shown = tools.feed(golden["greedy_text"].removesuffix("<|im_end|>"))
    rest, calls, seen = tools.finish()
    code = {"path": "ember.py", "content": "def add(x):\n    return x + 7"}
    assert (shown + rest, calls, seen.fallback) == ("", (ParsedCall("write_file", code),), "none")
