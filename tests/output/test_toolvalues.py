from __future__ import annotations

import json
import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ninfer.output.toolvalues import Value, declared_types, signatures
from ninfer.prompt.conversation import Json, ToolDef

NAMES = ["string", "number", "integer", "boolean", "null", "array", "object"]


def read(schema: Json, text: str) -> Value:
    """Convert ``text`` for a parameter ``key`` with this schema."""
    tool = ToolDef("tool", {}, {"type": "object", "properties": {"key": schema}})
    return signatures([tool])["tool"].read("key", text)


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({"type": "string"}, {"string"}),
        ({"type": ["boolean", "null"]}, {"boolean", "null"}),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, {"integer", "null"}),
        ({"oneOf": [{"type": ["integer", "string"]}, {"type": "null"}]}, {"integer", "string", "null"}),
        ({"type": "array", "anyOf": [{"type": "integer"}]}, {"array"}),
        ({"anyOf": [{"type": "integer"}, {"enum": [1]}]}, None),
        ({"anyOf": [{"type": "integer"}, {"$ref": "#/x"}]}, None),
        ({"anyOf": []}, None),
        ({"anyOf": "integer"}, None),
        ({"anyOf": ["integer"]}, None),
        ({"enum": ["a"]}, None),
        ({"type": "money"}, None),
        ({"type": ["string", "money"]}, None),
        ({"type": []}, None),
        ({"type": None}, None),
        ({"type": {"a": 1}}, None),
        (True, None),
        ("string", None),
        (None, None),
    ],
)
def test_only_explicit_types_count(schema: Json, types: set[str] | None) -> None:
    assert declared_types(schema) == types


@pytest.mark.parametrize("text", ["True", "TRUE", "true", "\ntrue\n", " tRuE "])
def test_boolean_text_of_any_case_is_a_boolean(text: str) -> None:
    assert read({"type": "boolean"}, text) == Value(True)
    assert read({"type": "boolean"}, text.lower().replace("true", "False")) == Value(False)


@pytest.mark.parametrize(
    "schema", [{"type": ["boolean", "null"]}, {"anyOf": [{"type": "boolean"}, {"type": "null"}]}]
)
@pytest.mark.parametrize(("text", "value"), [("false", False), ("null", None), ("False", False)])
def test_unions_admit_each_member(schema: Json, text: str, value: Json) -> None:
    assert read(schema, f"\n{text}\n") == Value(value)


def test_an_integer_or_null_parameter_takes_both() -> None:
    schema: Json = {"anyOf": [{"type": "integer"}, {"type": "null"}]}
    assert [read(schema, text) for text in ("5", "null")] == [Value(5), Value(None)]


@given(
    st.text(st.characters(codec="utf-8")), st.sampled_from(["\n", "\r\n"]), st.sampled_from(["\n", "\r\n"])
)
def test_a_string_keeps_everything_but_its_frame(text: str, before: str, after: str) -> None:
    assume(not text.endswith("\r"))  # "\r" and the frame "\n" read as the frame "\r\n"
    assert read({"type": ["null", "string"]}, before + text + after) == Value(text)


@pytest.mark.parametrize("text", ["", "5", "null", "true", '{"a": 1}', '"quoted"', " ", "\n"])
def test_a_string_stays_a_string_even_if_it_looks_like_json(text: str) -> None:
    assert read({"type": "string"}, f"\n{text}\n") == Value(text)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "string"])
@pytest.mark.parametrize("text", ["", "\n", " \r\n\t"])
def test_an_empty_block_for_anything_else_is_left_out(name: str, text: str) -> None:
    assert read({"type": name}, text) == Value(omitted=True)


@pytest.mark.parametrize("schema", [{}, {"enum": [1]}, True])
def test_without_a_type_json_is_taken_and_text_is_kept(schema: Json) -> None:
    assert read(schema, "\n[1, 2]\n") == Value([1, 2])
    assert read(schema, "\n two words \n") == Value(" two words ")
    assert read(schema, "") == Value("")


def test_an_undeclared_parameter_is_inferred_and_counted() -> None:
    tool = ToolDef("tool", {}, {"properties": {"a": {"type": "string"}}})
    assert signatures([tool])["tool"].read("b", "7") == Value(7, mismatch=True)


@pytest.mark.parametrize("schema", [None, {}, {"properties": None}, {"properties": []}])
def test_a_tool_that_declares_nothing_counts_nothing(schema: dict[str, Json] | None) -> None:
    assert signatures([ToolDef("tool", {}, schema)])["tool"].read("b", "7") == Value(7)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("integer", "3.5", 3.5),
        ("integer", '"3"', "3"),
        ("integer", "three", "three"),
        ("number", "true", True),
        ("boolean", "1", 1),
        ("boolean", "yes", "yes"),
        ("array", '{"a": 1}', {"a": 1}),
        ("object", "[1]", [1]),
        ("null", "none", "none"),
    ],
)
def test_a_value_of_another_type_is_kept_and_counted(name: str, text: str, value: Json) -> None:
    assert read({"type": name}, f"\n{text}\n") == Value(value, mismatch=True)


@pytest.mark.parametrize("text", ["3", "3.0", "-7", "1e2"])
def test_whole_numbers_are_integers_and_numbers(text: str) -> None:
    for name in ("integer", "number"):
        found = read({"type": name}, text)
        assert (found.value, found.mismatch) == (float(text), False)


@pytest.mark.parametrize(
    "text",
    ["NaN", "Infinity", "-Infinity", "1e999", '"\\ud800"', "[" * 64 + "]" * 64, "[" * 100_000, "9" * 5000],
)
def test_what_is_no_sendable_json_becomes_text(text: str) -> None:
    assert read({"type": "number"}, text) == Value(text, mismatch=True)
    assert read({}, text) == Value(text)


def test_what_requests_may_nest_answers_may_nest() -> None:
    deep = "[" * 63 + "]" * 63
    assert read({"type": "array"}, deep) == Value(json.loads(deep))


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text('aé"\\'),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab"), inner, max_size=3),
    max_leaves=8,
)


@given(JSON, st.sampled_from(NAMES))
def test_json_keeps_its_type_whatever_was_declared(value: Json, name: str) -> None:
    text = json.dumps(value, ensure_ascii=False)
    found = read({"type": name}, text)
    assert found.value == (text if name == "string" else value)
    assert not found.omitted
    if isinstance(value, float) and name == "number":
        assert isinstance(found.value, float)
        assert math.isclose(found.value, value)


def test_one_tool_with_two_schemas_is_untyped() -> None:
    one = ToolDef("tool", {}, {"properties": {"a": {"type": "string"}}})
    two = ToolDef("tool", {}, {"properties": {"a": {"type": "integer"}}})
    assert signatures([one, two])["tool"].read("a", "5") == Value(5)
    assert signatures([one, one])["tool"].read("a", "5") == Value("5")
