"""A strict JSON reader that never holds the interpreter for long.

Owns the meaning of "valid JSON body": RFC 8259 text in UTF-8 without BOM, no member twice, no number
beyond a double or the budget, no lone surrogate, bounded depth and nodes.  Promises the value that
``json.loads`` would give, member order kept, or one ``Refused`` that says where and why.

The one thing a reader would get wrong: it is slow on purpose.  ``json.loads`` holds the interpreter
lock from first byte to last, in a worker thread as well, and every stream of the server waits for
it; this reader takes steps of at most ``STEP`` bytes and other threads run in between.  Small bodies
take the quick way (``body.py``) and come here only to learn what is wrong with them.
"""

from __future__ import annotations

import json
import math
import re
from typing import NoReturn

import attrs

from ninfer.faults import Fault, Kind, Refused, invalid
from ninfer.settings import JsonBudget

NAME_SHOWN, PATH_SHOWN = 64, 256  # characters of a name and of a path that a message may repeat
STEP = 1 << 20  # bytes scanned in one call that cannot be interrupted, about a millisecond
_BLANK = re.compile(rb"[ \t\n\r]*")
_PLAIN = re.compile(rb'[^"\\\x00-\x1f]*')
_ESCAPED = re.compile(rb'(?:[^"\\\x00-\x1f]++|\\(?:["\\/bfnrt]|u[0-9A-Fa-f]{4}))*+')
_PIECE = re.compile(r"(?:[^\\]++|\\u[0-9A-Fa-f]{4}|\\[^u])*+")
_SURROGATE = re.compile(r"\\u[dD][89abAB-Fa-f]")
_NUMBER = re.compile(rb"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_NO_NUMBERS = (b"NaN", b"Infinity", b"-Infinity")  # that many writers of JSON write
_WORDS: dict[int, tuple[bytes, object]] = {
    ord("t"): (b"true", True),
    ord("f"): (b"false", False),
    ord("n"): (b"null", None),
}
_QUOTE, _BACKSLASH, _COMMA, _COLON = b'"\\,:'
_OPEN_ARRAY, _CLOSE_ARRAY, _OPEN_OBJECT, _CLOSE_OBJECT = b"[]{}"


class _Malformed(Exception):
    """The text is no JSON; where it stands says more than a path."""


class _Wrong(Exception):
    """A fault inside a value; ``steps`` lead to it, outermost last."""

    def __init__(self, message: str, kind: Kind = Kind.INVALID) -> None:
        super().__init__(message)
        self.kind = kind
        self.steps: list[str | int] = []


def read_slowly(body: bytes, budget: JsonBudget) -> object:
    """Read one JSON text; raise ``Refused``.  Runs on any thread."""
    try:
        return _Reader(body, budget).document()
    except _Malformed as malformed:
        raise invalid(f"the request body is not valid JSON: {malformed}", code="invalid_json") from None
    except _Wrong as wrong:
        path = _path(wrong.steps)
        code = "invalid_json" if wrong.kind is Kind.INVALID else "request_too_large"
        message = f"{path or 'the request body'} {wrong}"
        raise Refused(Fault(wrong.kind, message, code, path or None)) from None


def _path(steps: list[str | int]) -> str:
    """Spell a path; a hostile name shows its beginning only."""
    shown = (f"[{step}]" if isinstance(step, int) else f".{step[:NAME_SHOWN]}" for step in reversed(steps))
    return "".join(shown).removeprefix(".")[:PATH_SHOWN]


@attrs.define(eq=False)
class _Reader:
    body: bytes
    budget: JsonBudget
    at: int = 0
    nodes: int = 0
    _names: dict[str, str] = attrs.field(factory=dict)

    def document(self) -> object:
        """Read the whole text."""
        value = self._value(0)
        if self._peek() != -1:
            self._malformed("something follows the value")
        return value

    def _value(self, depth: int) -> object:
        byte = self._peek()
        self.nodes += 1
        if self.nodes > self.budget.nodes:
            raise _Wrong(f"holds more than {self.budget.nodes} values", Kind.TOO_LARGE)
        if byte == _QUOTE:
            return self._string()
        if byte == _OPEN_OBJECT:
            return self._object(depth + 1)
        if byte == _OPEN_ARRAY:
            return self._array(depth + 1)
        return self._scalar(byte)

    def _object(self, depth: int) -> dict[str, object]:
        self._enter(depth)
        members: dict[str, object] = {}
        if self._peek() == _CLOSE_OBJECT:
            self.at += 1
            return members
        while True:
            if self._peek() != _QUOTE:
                self._malformed("a member name is expected")
            name = self._string()
            name = self._names.setdefault(name, name)
            self._take(_COLON, "':' is expected")
            try:
                if name in members:
                    raise _Wrong("appears twice")
                members[name] = self._value(depth)
            except _Wrong as wrong:
                wrong.steps.append(name)
                raise
            if self._more(_CLOSE_OBJECT, "',' or '}' is expected"):
                return members

    def _array(self, depth: int) -> list[object]:
        self._enter(depth)
        items: list[object] = []
        if self._peek() == _CLOSE_ARRAY:
            self.at += 1
            return items
        while True:
            try:
                items.append(self._value(depth))
            except _Wrong as wrong:
                wrong.steps.append(len(items))
                raise
            if self._more(_CLOSE_ARRAY, "',' or ']' is expected"):
                return items

    def _enter(self, depth: int) -> None:
        self.at += 1
        if depth > self.budget.depth:
            raise _Wrong(f"nests deeper than {self.budget.depth}")

    def _more(self, close: int, complaint: str) -> bool:
        """Step over a comma (False) or the closing bracket (True)."""
        byte = self._peek()
        if byte != close and byte != _COMMA:
            self._malformed(complaint)
        self.at += 1
        return byte == close

    def _take(self, byte: int, complaint: str) -> None:
        if self._peek() != byte:
            self._malformed(complaint)
        self.at += 1

    def _peek(self) -> int:
        """The next byte that is not blank; -1 at the end."""
        body, at = self.body, self.at
        while at < len(body) and body[at] in b" \t\n\r":
            at = _end(_BLANK, body, at)
        self.at = at
        return body[at] if at < len(body) else -1

    # Scalars

    def _scalar(self, byte: int) -> object:
        if byte in _WORDS:
            word, value = _WORDS[byte]
            if self.body.startswith(word, self.at):
                self.at += len(word)
                return value
        limit = self.budget.number_chars
        match = _NUMBER.match(self.body, self.at, self.at + limit + 1)
        if match is None:
            if self.body.startswith(_NO_NUMBERS, self.at):
                raise _Wrong("holds NaN or Infinity, which is no JSON")
            self._malformed("a value is expected")
        if match.end() - self.at > limit:
            raise _Wrong(f"holds a number of more than {limit} characters")
        self.at = match.end()
        return _number(match)

    def _string(self) -> str:
        start = at = self.at + 1
        at = _end(_PLAIN, self.body, at)
        escaped = at < len(self.body) and self.body[at] == _BACKSLASH
        if escaped:
            at = _end(_ESCAPED, self.body, at)
        if at >= len(self.body) or self.body[at] != _QUOTE:
            self.at = at
            self._malformed("a string ends or escapes wrongly, or holds a control character")
        self.at = at + 1
        try:
            text = str(memoryview(self.body)[start:at], "utf-8")
        except UnicodeDecodeError:
            raise _Wrong("holds a string that is not UTF-8") from None
        return _unescape(text) if escaped else text

    def _malformed(self, complaint: str) -> NoReturn:
        ends = self.at >= len(self.body)
        raise _Malformed(f"{complaint}, but the body ends" if ends else f"{complaint} at byte {self.at}")


def _end(pattern: re.Pattern[bytes], body: bytes, at: int) -> int:
    """Where a run of ``pattern``, which matches everywhere, ends; an escape may straddle a step."""
    while True:
        match = pattern.match(body, at, at + STEP)
        assert match is not None
        if match.end() == at or match.end() <= at + STEP - len(r"\uXXXX"):
            return match.end()
        at = match.end()


def _unescape(text: str) -> str:
    parts, at, has_surrogates = [], 0, False
    while at < len(text):
        match = _PIECE.match(text, at, at + STEP)
        assert match is not None
        has_surrogates = has_surrogates or _SURROGATE.search(match[0]) is not None
        parts.append(json.loads(f'"{match[0]}"'))
        at = match.end()
    value = "".join(parts)
    return _paired(value) if has_surrogates else value


def _paired(value: str) -> str:
    """Join the surrogate pairs that a step cut apart; refuse what has no other half."""
    try:
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError:
        raise _Wrong("holds a lone surrogate") from None


def _number(match: re.Match[bytes]) -> int | float:
    if match[1] is None and match[2] is None:
        return int(match[0])
    value = float(match[0])
    if math.isinf(value):
        raise _Wrong("holds a number that is too large")
    return value
