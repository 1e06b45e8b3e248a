"""The reader of wire values: exact types, exact paths, nothing coerced."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer.faults import Refused
from ninfer.protocols.fields import JsonObject, Length, Never, Only, Range, Reader, Source
from ninfer.settings import JsonBudget
from tests.cost import least_cost


@attrs.frozen
class Text:
    text: str
    type: Literal["text"] = "text"


@attrs.frozen
class Url:
    url: str
    detail: Literal["auto", "low"] = "auto"


@attrs.frozen
class Image:
    image_url: Url | str
    type: Literal["image_url"]


@attrs.frozen
class Turn:
    role: Literal["user", "tool"]
    content: str | tuple[Text | Image, ...] | None = None


@attrs.frozen
class Tool:
    UNKNOWN: ClassVar[str] = "refuse"
    name: Annotated[str, Length(1, 8)]
    schema: JsonObject | None = None
    source: Source = Source({})  # noqa: RUF009


@attrs.frozen
class Body:
    model: Annotated[str, Length(1)]
    turns: Annotated[tuple[Turn, ...], Length(1, None, "turns")]
    heat: Annotated[float, Range(0, 2)] | None = None
    count: Annotated[int, Range(0, None, "tokens")] | None = None
    stream: bool | None = None
    n: Annotated[int, Only((1,), "several choices", "n_not_supported")] | None = None
    grammar: Annotated[object, Never("constrained output", "grammar_not_supported")] | None = None
    weights: dict[str, float] | None = None
    tools: tuple[Tool, ...] | None = None
    free: object = None


READER = Reader(JsonBudget(depth=4))
GOOD: dict[str, object] = {"model": "m", "turns": [{"role": "user", "content": "hi"}]}


def fault(**change: object) -> tuple[str | None, str | None, str]:
    with pytest.raises(Refused) as caught:
        READER.read({**GOOD, **change}, Body)
    found = caught.value.fault
    return found.param, found.code, found.message


CASES: list[tuple[dict[str, object], str, str, str]] = [
    ({"model": 5}, "model", "invalid_type", "model must be a string"),
    ({"model": None}, "model", "invalid_type", "model must be a string"),
    ({"model": ""}, "model", "invalid_value", "model must hold at least 1 character"),
    ({"turns": {}}, "turns", "invalid_type", "turns must be an array"),
    ({"turns": "ab"}, "turns", "invalid_type", "turns must be an array"),
    ({"turns": []}, "turns", "invalid_value", "turns must hold at least 1 turn"),
    ({"turns": [5]}, "turns[0]", "invalid_type", "turns[0] must be an object"),
    ({"turns": [{}]}, "turns[0].role", "missing_required_parameter", "turns[0].role is required"),
    (
        {"turns": [{"role": "x"}]},
        "turns[0].role",
        "invalid_value",
        'turns[0].role must be one of "user", "tool"',
    ),
    ({"turns": [{"role": 1}]}, "turns[0].role", "invalid_type", "turns[0].role must be a string"),
    (
        {"turns": [{"role": "user", "content": 1}]},
        "turns[0].content",
        "invalid_type",
        "turns[0].content must be a string or an array",
    ),
    (
        {"turns": [{"role": "user", "content": [{"type": "audio"}]}]},
        "turns[0].content[0].type",
        "invalid_value",
        'turns[0].content[0].type must be one of "text", "image_url"',
    ),
    (
        {
            "turns": [
                {"role": "user", "content": [{"text": "a"}, {"type": "image_url", "image_url": {"url": 5}}]}
            ]
        },
        "turns[0].content[1].image_url.url",
        "invalid_type",
        "turns[0].content[1].image_url.url must be a string",
    ),
    (
        {"turns": [{"role": "user", "content": [{"type": "image_url", "image_url": 7}]}]},
        "turns[0].content[0].image_url",
        "invalid_type",
        "turns[0].content[0].image_url must be an object or a string",
    ),
    ({"heat": True}, "heat", "invalid_type", "heat must be a number"),
    ({"heat": "1"}, "heat", "invalid_type", "heat must be a number"),
    ({"heat": float("nan")}, "heat", "invalid_value", "heat must be a finite number"),
    ({"heat": float("-inf")}, "heat", "invalid_value", "heat must be a finite number"),
    ({"heat": 10**400}, "heat", "invalid_value", "heat must be a finite number"),
    ({"heat": 2.5}, "heat", "invalid_value", "heat must be between 0 and 2"),
    ({"count": 1.0}, "count", "invalid_type", "count must be an integer"),
    ({"count": True}, "count", "invalid_type", "count must be an integer"),
    ({"count": -1}, "count", "invalid_value", "count must be at least 0 tokens"),
    ({"stream": 1}, "stream", "invalid_type", "stream must be a boolean"),
    (
        {"n": 2},
        "n",
        "n_not_supported",
        "n asks for several choices, which NInfer cannot guarantee",
    ),
    ({"n": "2"}, "n", "invalid_type", "n must be an integer"),
    (
        {"grammar": ""},
        "grammar",
        "grammar_not_supported",
        "grammar asks for constrained output, which NInfer cannot guarantee",
    ),
    ({"weights": {"a": "1"}}, "weights.a", "invalid_type", "weights.a must be a number"),
    ({"weights": {"a b": "1"}}, 'weights["a b"]', "invalid_type", 'weights["a b"] must be a number'),
    (
        {"tools": [{"name": "a", "zz": 1}]},
        "tools[0].zz",
        "unknown_parameter",
        "tools[0].zz is not a known parameter",
    ),
    (
        {"tools": [{"name": "123456789"}]},
        "tools[0].name",
        "invalid_value",
        "tools[0].name must hold between 1 and 8 characters",
    ),
    (
        {"tools": [{"name": "a", "schema": []}]},
        "tools[0].schema",
        "invalid_type",
        "tools[0].schema must be an object",
    ),
    (
        {"free": [[[[[]]]]]},
        "free[0][0][0][0]",
        "invalid_value",
        "free[0][0][0][0] is nested too deeply",
    ),
    ({"free": {"a": ["\ud800"]}}, "free.a[0]", "invalid_value", "free.a[0] holds a lone surrogate"),
    ({"model": "a\udfff"}, "model", "invalid_value", "model holds a lone surrogate"),
    ({"free": {"a": float("inf")}}, "free.a", "invalid_value", "free.a must be a finite number"),
]


@pytest.mark.parametrize("change, param, code, message", CASES, ids=lambda case: str(case)[:40])
def test_a_fault_names_its_field(change: dict[str, object], param: str, code: str, message: str) -> None:
    assert fault(**change) == (param, code, message)


@pytest.mark.parametrize("body", [[], "x", 5, None, True])
def test_a_body_that_is_no_object_has_no_param(body: object) -> None:
    with pytest.raises(Refused) as caught:
        READER.read(body, Body)
    assert caught.value.fault.param is None
    assert caught.value.fault.message == "the request body must be an object"


def test_the_first_fault_in_field_order_is_told() -> None:
    assert fault(n=2, heat=9, model=1)[0] == "model"
    assert fault(n=2, heat=9)[0] == "heat"


def test_an_unknown_member_is_ignored_where_the_schema_does_not_refuse_it() -> None:
    assert READER.read({**GOOD, "later": {"x": 1}}, Body).model == "m"


def test_null_means_absent_only_where_declared() -> None:
    assert READER.read({**GOOD, "heat": None, "n": None, "grammar": None}, Body).heat is None
    assert fault(turns=[{"role": None}])[0] == "turns[0].role"


def test_a_number_may_be_written_as_an_integer() -> None:
    heat = READER.read({**GOOD, "heat": 1}, Body).heat
    assert heat == 1.0 and type(heat) is float


def test_a_tag_may_be_left_out_where_it_has_a_default() -> None:
    body = READER.read({**GOOD, "turns": [{"role": "user", "content": [{"text": "a"}]}]}, Body)
    assert body.turns[0].content == (Text("a"),)


def test_free_json_and_sources_keep_their_member_order() -> None:
    sent = {"name": "a", "schema": {"zeta": {"b": 1, "a": 2}, "alpha": []}}
    tool = (READER.read({**GOOD, "tools": [sent]}, Body).tools or ())[0]
    assert list(tool.schema or {}) == ["zeta", "alpha"]
    assert list(tool.source) == ["name", "schema"] and tool.source["schema"] == sent["schema"]


def test_ten_thousand_parts_are_read_within_a_tenth_of_a_second() -> None:
    part = {"type": "image_url", "image_url": {"url": "x"}}
    body = {**GOOD, "turns": [{"role": "user", "content": [{"type": "text", "text": "a"}, part] * 5_000}]}
    READER.read(GOOD, Body)
    assert least_cost(lambda: READER.read(body, Body)) < 0.1


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.sampled_from([*GOOD, "heat", "n", "weights", "tools", "free", "x"]), JSON))
def test_any_body_is_read_or_refused(body: dict[str, object]) -> None:
    try:
        assert isinstance(READER.read({**GOOD, **body}, Body), Body)
    except Refused as refused:
        assert refused.fault.param and refused.fault.message.startswith(refused.fault.param)
