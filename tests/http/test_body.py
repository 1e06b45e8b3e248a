"""JSON bodies: one meaning for both readers, every refusal says where and why, nothing takes long."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer.faults import Kind, Refused
from ninfer.http import json_text
from ninfer.http.body import read_json
from ninfer.http.json_text import read_slowly
from ninfer.settings import JsonBudget
from tests.cost import grows_linearly

BUDGET = JsonBudget()
READERS = pytest.mark.parametrize("read", [read_json, read_slowly])
Read = Callable[[bytes, JsonBudget], object]

scalars = (
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats(allow_nan=False) | st.text()
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4)
)


def verdict(read: Read, body: bytes, budget: JsonBudget = BUDGET) -> object:
    """The value, or what is wrong with it."""
    try:
        return repr(read(body, budget))
    except Refused as refused:
        return refused.fault


@READERS
@settings(deadline=None)
@given(value=values, ascii=st.booleans(), indent=st.sampled_from([None, 1]))
def test_gives_what_was_written_in_order(
    read: Read, value: object, ascii: bool, indent: int | None
) -> None:
    try:
        body = json.dumps(value, ensure_ascii=ascii, indent=indent, allow_nan=False).encode()
    except (UnicodeEncodeError, ValueError):
        return  # lone surrogates and infinities have no JSON
    if any("\ud800" <= char <= "\udfff" for char in json.dumps(value, ensure_ascii=False)):
        return
    assert json.dumps(read(body, BUDGET)) == json.dumps(json.loads(body))


PIECES = re.findall(
    r"\S+",
    r"""
{ } [ ] , : "a" "b" " 1 - 0 .5 e9 true nul null \u d83d \ude00 \n \ NaN 1e999 [] {} é
"\ud83d\ude00" "\\ud83d\ude00" "\ude00\ud83d"
    """,
)
pieces = st.sampled_from(
    [*(piece.encode() for piece in PIECES), b" ", b"\n", b"\xff", b"\x01", b"\xef\xbb\xbf"]
)


@settings(max_examples=500, deadline=None)
@given(st.lists(pieces, max_size=14).map(b"".join))
def test_both_readers_judge_alike(body: bytes) -> None:
    assert verdict(read_json, body) == verdict(read_slowly, body)


@settings(max_examples=300, deadline=None)
@given(st.lists(pieces, max_size=14).map(b"".join))
def test_takes_nothing_that_the_standard_library_would_not(body: bytes) -> None:
    taken = verdict(read_slowly, body)
    if isinstance(taken, str):
        assert taken == repr(json.loads(body.decode("utf-8")))


@READERS
@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"", None),
        (b"{", None),
        (b"[1,]", None),
        (b'{"a":1,}', None),
        (b"{} {}", None),
        (b"01", None),
        (b"+1", None),
        (b"'a'", None),
        (b"// x\n1", None),
        (b'"\x01"', None),
        (b'"\\x41"', None),
        (b'"a', None),
        (b"\xef\xbb\xbf{}", None),
        ("{}".encode("utf-16"), None),
        ("{}".encode("utf-32"), None),
        (b"\xa0{}", None),
        *(
            (body % word, param)
            for word in (b"NaN", b"Infinity", b"-Infinity")
            for body, param in ((b"%s", None), (b'{"temperature": %s}', "temperature"), (b"[1, %s]", "[1]"))
        ),
        (b'{"temperature": Nan}', None),
        (b'{"temperature": 1e999}', "temperature"),
        (b'{"a": [0, {"b": 1, "b": 2}]}', "a[1].b"),
        (b'{"a": {"x": 1}, "a": {"x": 1}}', "a"),
        (b'{"a": "\\ud800"}', "a"),
        (b'{"a": ["\\udc00\\ud800"]}', "a[0]"),
        (b'{"a": "\\\\ud83d\\ude00"}', "a"),
        (b'{"a": "\xff"}', "a"),
        (b'{"a": "\xed\xa0\x80"}', "a"),
        (b'{"a": "\xc0\xaf"}', "a"),
        (b'{"\\ud800": 1}', None),
        (b'{"n": ' + b"9" * 65 + b"}", "n"),
        (b'{"n": 0.' + b"9" * 65 + b"}", "n"),
    ],
)
def test_refuses_and_names_the_place(read: Read, body: bytes, param: str | None) -> None:
    with pytest.raises(Refused) as refused:
        read(body, BUDGET)
    fault = refused.value.fault
    assert (fault.kind, fault.code, fault.param) == (Kind.INVALID, "invalid_json", param)


@READERS
@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'[{"a":'])
@pytest.mark.parametrize("count", [65, 1_000, 100_000, 500_000])
def test_refuses_deep_nesting(read: Read, opening: bytes, count: int) -> None:
    fault = verdict(read, b'{"x":' + opening * count)
    assert getattr(fault, "code", None) == "invalid_json"


@READERS
def test_depth_is_exact(read: Read) -> None:
    budget = JsonBudget(depth=3)
    assert read(b'[{"a":[1]}]', budget) == [{"a": [1]}]
    with pytest.raises(Refused, match="deeper than 3"):
        read(b'[{"a":[[1]]}]', budget)


@READERS
def test_nodes_are_counted_exactly(read: Read) -> None:
    body = b'{"a":[1,2,",,,,"],"b":{}}'  # the object, a, its three items, b
    assert read(body, JsonBudget(nodes=6))
    with pytest.raises(Refused) as refused:
        read(body, JsonBudget(nodes=5))
    assert refused.value.fault.kind is Kind.TOO_LARGE


@pytest.mark.parametrize("step", [7, 8, 64])
def test_steps_do_not_show(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    monkeypatch.setattr(json_text, "STEP", step)
    text = 'ab\n"\\/\u00e9\U0001f600' * 9
    for ascii in (True, False):
        body = b" " * 30 + json.dumps([text, {text: 1.5}], ensure_ascii=ascii, indent=2).encode()
        assert read_slowly(body, BUDGET) == [text, {text: 1.5}]
    for bad in (b'["' + b"\\ud83d" * 9 + b'"]', b'["' + b"\\n" * 40 + b'\\x"]', b'["' + b"a" * 40 + b"\n"):
        with pytest.raises(Refused):
            read_slowly(bad, BUDGET)


def test_a_hostile_name_does_not_fill_the_message() -> None:
    fault = verdict(read_json, b'{"' + b"a" * 9_000 + b'": 1e999}')
    assert len(getattr(fault, "message", "")) < 300


HOSTILE = {
    "dense": b'{"a":1},',
    "arrays": b"[],",
    "empty strings": b'"",',
    "escapes": b'"\\n\\ud83d\\ude00",',
    "blanks": b"1 \t\r\n ,",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_cost_grows_with_length_and_not_faster(name: str) -> None:
    def reading(times: int) -> Callable[[], object]:
        body = b"[" + HOSTILE[name] * times + b"0]"
        return lambda: read_slowly(body, JsonBudget(nodes=10**9))

    assert grows_linearly(reading, 10_000)


def test_no_pattern_can_run_long_without_a_step() -> None:
    """Each loop over input is bounded by ``endpos``; a match outside of ``_end`` could not be."""
    with open(json_text.__file__) as source:
        calls = re.findall(r"_[A-Z]+\.(?:match|search|fullmatch)\((.*)\)", source.read())
    assert calls and all("STEP" in call or "limit" in call or "match[0]" in call for call in calls)
