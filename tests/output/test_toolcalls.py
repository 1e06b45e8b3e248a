from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer.output.channels import SPACE
from ninfer.output.deltas import ParsedCall, ToolParse
from ninfer.output.toolcalls import ToolStream
from ninfer.prompt.conversation import Json, ToolDef
from tests.cost import grows_linearly


def tool(name: str, **types: Json) -> ToolDef:
    properties: dict[str, Json] = {key: {"type": kind} for key, kind in types.items()}
    return ToolDef(name, {"name": name}, {"type": "object", "properties": properties})


TOOLS = (tool("get", city="string", days="integer", deep="boolean"), tool("ping"))
End = tuple[str, tuple[ParsedCall, ...], ToolParse]


def parse(text: str, tools: tuple[ToolDef, ...] = TOOLS, limit: int = 64, cut: int | None = None) -> End:
    """Stream the text in pieces of ``cut`` characters; the first entry is all text shown."""
    stream = ToolStream(tools, name_limit=limit)
    size = cut or max(1, len(text))
    shown = [stream.feed(text[at : at + size]) for at in range(0, len(text), size)]
    rest, calls, seen = stream.finish()
    return "".join(shown) + rest, calls, seen


def call(name: str = "get", **arguments: str) -> str:
    body = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
    return f"<tool_call>\n<function={name}>\n{body}</function>\n</tool_call>"


def arguments(text: str) -> dict[str, Json]:
    shown, calls, seen = parse(text)
    assert (shown, len(calls), seen.fallback) == ("", 1, "none")
    return dict(calls[0].arguments)


# Structure


@pytest.mark.parametrize("cut", [1, 2, 3, 7, 1000])
def test_calls_come_out_whole_wherever_the_markup_is_cut(cut: int) -> None:
    text = f"I will look.\n\n{call(city='Oslo', days='2')}\n{call('ping')}\n"
    shown, calls, seen = parse(text, cut=cut)
    assert shown == "I will look."
    assert calls == (ParsedCall("get", {"city": "Oslo", "days": 2}), ParsedCall("ping", {}))
    assert seen == ToolParse(True, 2)


def test_arguments_keep_their_order() -> None:
    assert (
        json.dumps(arguments(call(deep="true", city="x", days="1")))
        == '{"deep": true, "city": "x", "days": 1}'
    )


def test_a_call_may_have_no_parameters_and_a_string_may_be_a_brace() -> None:
    assert arguments(call("ping")) == {}
    assert arguments(call(city="}")) == {"city": "}"}


def test_an_empty_integer_is_left_out_and_counted() -> None:
    _, calls, seen = parse(call(city="", days=""))
    assert calls == (ParsedCall("get", {"city": ""}),)
    assert seen == ToolParse(True, 1, empty_omitted=1)


def test_mismatches_are_counted_and_kept() -> None:
    _, calls, seen = parse(call(days="soon", other="1"))
    assert calls == (ParsedCall("get", {"days": "soon", "other": 1}),)
    assert seen == ToolParse(True, 1, schema_mismatches=2)


@pytest.mark.parametrize(
    "value",
    [
        "<parameter=x>1</parameter>",
        "<parameter=x><parameter=y></parameter></parameter> and <parameter=z></parameter>",
        "<tool_call>",
        "</tool_call> </function>",
        "<tool_call>\n<function=ping>\n</function>\n</tool_call>",
        "<function=get>",
    ],
)
def test_balanced_and_foreign_markup_is_part_of_a_value(value: str) -> None:
    assert arguments(call(city=value)) == {"city": value}


@pytest.mark.parametrize("gap", ["", " ", "\n\n", "\r\n\t"])
def test_blanks_between_the_parts_do_not_matter(gap: str) -> None:
    markup = gap.join(
        [
            "<tool_call>",
            "<function=get>",
            "<parameter=city>Oslo</parameter>",
            "</function>",
            "</tool_call>",
            "",
        ]
    )
    assert arguments(markup) == {"city": "Oslo"}


# Fallback: the whole region is text, and the first attempt says why

FALLBACKS = [
    ("malformed_structure", "<tool_call>"),
    ("malformed_structure", "<tool_call>\nget"),
    ("malformed_structure", "<tool_call>\n<function=get"),
    ("malformed_structure", call(city="see </parameter> here")),
    ("malformed_structure", call(city="see <parameter=x> here")),
    ("malformed_structure", call(city="see <parameter= here")),
    ("malformed_structure", call(city="Oslo")[:-1]),
    ("malformed_structure", call(city="Oslo").replace("</function>", "")),
    (
        "malformed_structure",
        "<tool_call><function=get>stray<parameter=city>a</parameter></function></tool_call>",
    ),
    ("malformed_structure", "<tool_call><function=get><parameter=>a</parameter></function></tool_call>"),
    ("malformed_structure", call(city="Oslo") + "\n" + call(city="Par")[:30]),
    (
        "duplicate_parameter",
        call(city="a").replace("</function>", "<parameter=city>b</parameter></function>"),
    ),
    ("invalid_tool_name", call("get weather")),
    ("invalid_tool_name", call("")),
    ("invalid_tool_name", call("gét")),
    ("invalid_tool_name", call("g" * 65)),
    ("undeclared_tool", call("put")),
    ("undeclared_tool", call("Get")),
    ("trailing_content", call("ping") + "\nThat is all."),
    ("trailing_content", call("ping") + "\u00a0"),
    ("trailing_content", call("ping") + "</tool_call>"),
]


@pytest.mark.parametrize(("reason", "text"), FALLBACKS)
@pytest.mark.parametrize("cut", [1, 5, 10_000])
def test_markup_that_is_no_call_is_text_to_the_last_byte(reason: str, text: str, cut: int) -> None:
    whole = f"Look: \n{text} \n"
    assert parse(whole, cut=cut) == (whole, (), ToolParse(True, fallback=reason))


def test_a_bad_call_before_good_ones_is_text() -> None:
    bad = call("put", city="x")
    assert parse(f"{bad}\n{call('ping')}") == (bad, (ParsedCall("ping", {}),), ToolParse(True, 1))


def test_a_call_inside_an_unfinished_value_is_found() -> None:
    text = f"<tool_call><function=get><parameter=city>{call('ping')}"
    assert parse(text)[:2] == ("<tool_call><function=get><parameter=city>", (ParsedCall("ping", {}),))


def test_the_name_limit_is_the_endpoints_own() -> None:
    long = tool("n" * 128)
    assert parse(call(long.name), (long,), limit=128)[1] == (ParsedCall(long.name, {}),)
    assert parse(call(long.name), (long,), limit=64)[2].fallback == "invalid_tool_name"


def test_without_tools_markup_is_ordinary_text() -> None:
    stream = ToolStream(())
    assert stream.feed(call("ping")) == call("ping")
    assert stream.finish() == ("", (), ToolParse())


# Streaming


@pytest.mark.parametrize(
    ("chunks", "shown"),
    [
        (["Hello", " world \n", "x"], ["Hello", " world", " \nx"]),
        (["a<", "tool", "b"], ["a", "", "<toolb"]),
        (["a \n", "<tool_", "call", "x"], ["a", "", "", " \n<tool_callx"]),
        (["a ", "<tool_call>", "text"], ["a", "", ""]),
        (["  ", "\n", "a"], ["", "", "  \na"]),
        (["a\u00a0"], ["a\u00a0"]),
    ],
)
def test_holds_only_blanks_and_what_may_become_a_marker(chunks: list[str], shown: list[str]) -> None:
    stream = ToolStream(TOOLS)
    assert [stream.feed(chunk) for chunk in chunks] == shown


PIECES = st.sampled_from(
    [
        *("<tool_call>", "</tool_call>", "<function=get>", "<function=put>", "</function>", "</parameter>"),
        *(
            "<parameter=city>",
            "<parameter=days>",
            "<parameter=",
            "text",
            ">",
            " ",
            "\n",
            "7",
            "<tool_",
            "é",
        ),
        *(call("ping"), call(city="a"), call(days="1", city="b")),
    ]
)
MARKUP = st.lists(PIECES, max_size=16).map("".join)


def naive_region(text: str) -> tuple[int, list[str]] | None:
    """Try every marker with a recursive reading of the grammar; quadratic and obvious."""
    for start in (at for at in range(len(text)) if text.startswith("<tool_call>", at)):
        names, rest = [], text[start:]
        while rest:
            taken = naive_call(rest)
            if taken is None:
                break
            names.append(taken[0])
            rest = taken[1].lstrip(SPACE)
        if not rest:
            return start, names
    return None


def naive_call(text: str) -> tuple[str, str] | None:
    def after(rest: str | None, literal: str) -> str | None:
        return rest[len(literal) :] if rest is not None and rest.startswith(literal) else None

    rest = after(text, "<tool_call>")
    rest = after(rest.lstrip(SPACE), "<function=") if rest is not None else None
    if rest is None or ">" not in rest:
        return None
    name, _, rest = rest.partition(">")
    keys: set[str] = set()
    while (inner := after(rest.lstrip(SPACE), "<parameter=")) is not None:
        key, found, value = inner.partition(">")
        depth, at = 1, 0
        while depth and at < len(value):
            if value.startswith("</parameter>", at):
                depth -= 1
            elif value.startswith("<parameter=", at):
                depth += 1
            at += 1
        if depth or not found or not key or key in keys or "<parameter=" in key or "</parameter" in key:
            return None
        keys.add(key)
        rest = value[at - 1 + len("</parameter>") :]
    closed = after(rest.lstrip(SPACE), "</function>")
    rest_after = after(closed.lstrip(SPACE), "</tool_call>") if closed is not None else None
    return (name, rest_after) if rest_after is not None and name in ("get", "ping") else None


@settings(max_examples=400)
@given(MARKUP, st.integers(1, 20))
def test_streams_exactly_what_a_naive_reading_of_the_grammar_finds(text: str, cut: int) -> None:
    shown, calls, seen = parse(text, cut=cut)
    region = naive_region(text)
    if region is None:
        assert (shown, calls, seen.calls) == (text, (), 0)
        assert (seen.fallback == "none") == ("<tool_call>" not in text)
    else:
        start, names = region
        assert shown == text[:start].rstrip(SPACE)
        assert [found.name for found in calls] == names
        assert seen.fallback == "none"


# Linear time: a megabyte of every beginning, and of what makes a naive parser try again and again

FLOODS = [
    "<tool_call>",
    "<tool_cal",
    "<tool_call><function=get>",
    "<tool_call><function=get><parameter=city>",
    "<tool_call><function=get><parameter=city></parameter>",
    "<parameter=",
    "</parameter>",
    "<parameter=a></parameter>",
    call("ping"),
    " ",
    "\n<",
]


@pytest.mark.slow
@pytest.mark.parametrize("flood", FLOODS)
def test_time_grows_with_the_text_alone(flood: str) -> None:
    def streamed(size: int) -> Callable[[], object]:
        text = flood * (size // len(flood)) + "</parameter>" * (size // 40) + "!"
        return lambda: parse(text, cut=50)

    assert grows_linearly(streamed, 1 << 17)
