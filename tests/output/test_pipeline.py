"""Session and tool stream together: what a client adds up is what an aggregate answer says."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer.output.deltas import ParsedCall, ToolParse
from ninfer.output.session import OutputSession
from ninfer.output.toolcalls import ToolStream
from tests.output.test_toolcalls import TOOLS, call

PARTS = st.sampled_from(
    [
        "hm",
        "</think>",
        " ",
        "\n",
        "é",
        "👩",
        "END",
        "<tool_call>",
        "</parameter>",
        call("ping"),
        call(city="猫"),
    ]
)


def stream(tokens: list[bytes], thinking: bool, stops: tuple[str, ...]) -> tuple[str, str, object, object]:
    session = OutputSession(tokens, (), thinking=thinking, stops=stops)
    tools = ToolStream(TOOLS)
    reasoning = content = ""
    for token in range(len(tokens)):
        verdict = session.take(token)
        reasoning += verdict.piece.reasoning
        content += tools.feed(verdict.piece.content)
        if verdict.stop is not None:
            break
    last = session.finish()
    content += tools.feed(last.content)
    rest, calls, seen = tools.finish()
    return reasoning + last.reasoning, content + rest, calls, seen


@settings(max_examples=200)
@given(
    st.lists(PARTS, max_size=10).map("".join),
    st.booleans(),
    st.sampled_from([(), ("END",), ("\n\n",)]),
    st.data(),
)
def test_concatenated_deltas_equal_the_aggregate(
    text: str, thinking: bool, stops: tuple[str, ...], draw: st.DataObject
) -> None:
    data = text.encode()
    cuts = sorted(draw.draw(st.lists(st.integers(0, len(data)), max_size=20)))
    tokens = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    assert stream(tokens, thinking, stops) == stream([data], thinking, stops)


def test_a_limit_inside_a_value_gives_the_held_markup_as_text() -> None:
    data = b"idea</think>\n\nLook.\n" + call(city="Oslo").encode()[:-40]
    reasoning, content, calls, seen = stream([data[at : at + 3] for at in range(0, len(data), 3)], True, ())
    assert (reasoning, content) == ("idea", "Look.\n" + call(city="Oslo")[:-40])
    assert (calls, seen) == ((), ToolParse(True, fallback="malformed_structure"))


def test_markup_in_the_reasoning_is_reasoning() -> None:
    text = f"maybe {call('ping')}</think>{call('ping')}"
    assert stream([text.encode()], True, ())[:3] == (f"maybe {call('ping')}", "", (ParsedCall("ping", {}),))
