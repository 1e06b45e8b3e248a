"""The markup of tool calls, read from finished text in linear time.

    region := call (ws call)* ws END
    call   := "<tool_call>" ws "<function=" NAME ">" ws (param ws)* "</function>" ws "</tool_call>"
    param  := "<parameter=" KEY ">" VALUE "</parameter>"

NAME is 1..limit of [A-Za-z0-9_-], KEY one or more characters but ">", VALUE any text in which
parameter openers and closers balance.  Every ``<tool_call>`` is tried from left to right; the first
from which the whole rest parses is the region.

The one thing a reader would get wrong: the closer of a parameter does not depend on where an attempt
began, so one pass matches them all, and an attempt that runs into a call that failed before fails too.
"""

from __future__ import annotations

import re
import string
from collections.abc import Container

import attrs

from ninfer.output.channels import SPACE

OPEN = "<tool_call>"
_CLOSE = "</tool_call>"
_FUNCTION = "<function="
_END_FUNCTION = "</function>"
_PARAMETER = "<parameter="
_END_PARAMETER = "</parameter>"
_BRACKETS = re.compile(f"{_PARAMETER}|{_END_PARAMETER}")
_SPACES = re.compile(f"[{SPACE}]*")
_NAME = frozenset(string.ascii_letters + string.digits + "_-")

MALFORMED = "malformed_structure"


@attrs.frozen
class RawCall:
    """One call as written; ``arguments`` are (begin, end) of each value, ``stop`` the index after it."""

    name: str
    arguments: dict[str, tuple[int, int]]
    stop: int


@attrs.frozen
class Region:
    """The calls that end a text, from index ``start`` on; none, and why, when nothing parses."""

    start: int = 0
    calls: tuple[RawCall, ...] = ()
    fallback: str = "none"


class _NoCall(Exception):
    """The text is no call; carries the reason."""


def find_region(text: str, names: Container[str], limit: int) -> Region:
    """Find the calls at the end of a text; the fallback reason is that of the first attempt."""
    reader = _Reader(text, names, limit)
    fallback = MALFORMED
    first = start = text.find(OPEN)
    while start >= 0:
        try:
            return Region(start, tuple(reader.calls_to_the_end(start)))
        except _NoCall as reason:
            if start == first:
                fallback = str(reason)
        start = text.find(OPEN, start + 1)
    return Region(fallback=fallback)


class _Reader:
    def __init__(self, text: str, names: Container[str], limit: int) -> None:
        self._text = text
        self._names = names
        self._limit = limit
        self._closers = _matching_closers(text)
        self._failed: set[int] = set()

    def calls_to_the_end(self, at: int) -> list[RawCall]:
        """Read calls until the text ends."""
        calls: list[RawCall] = []
        tried: list[int] = []
        try:
            while at < len(self._text):
                if at in self._failed or not self._text.startswith(OPEN, at):
                    raise _NoCall("trailing_content")
                tried.append(at)
                calls.append(self._call(at + len(OPEN)))
                at = self._blanks(calls[-1].stop)
        except _NoCall:
            self._failed.update(tried)
            raise
        return calls

    def _call(self, at: int) -> RawCall:
        name, at = self._label(self._blanks(at), _FUNCTION)
        if not 1 <= len(name) <= self._limit or not _NAME.issuperset(name):
            raise _NoCall("invalid_tool_name")
        if name not in self._names:
            raise _NoCall("undeclared_tool")
        arguments: dict[str, tuple[int, int]] = {}
        at = self._blanks(at)
        while self._text.startswith(_PARAMETER, at):
            at = self._blanks(self._parameter(at, arguments))
        at = self._blanks(self._literal(at, _END_FUNCTION))
        return RawCall(name, arguments, self._literal(at, _CLOSE))

    def _parameter(self, at: int, arguments: dict[str, tuple[int, int]]) -> int:
        key, begin = self._label(at, _PARAMETER)
        close = self._closers.get(at, -1)
        if not key or close < begin:
            raise _NoCall(MALFORMED)
        if key in arguments:
            raise _NoCall("duplicate_parameter")
        arguments[key] = begin, close
        return close + len(_END_PARAMETER)

    def _label(self, at: int, opener: str) -> tuple[str, int]:
        """Read ``opener`` label ">"; return the label and the index after it."""
        begin = self._literal(at, opener)
        end = self._text.find(">", begin)
        if end < 0:
            raise _NoCall(MALFORMED)
        return self._text[begin:end], end + 1

    def _literal(self, at: int, literal: str) -> int:
        if not self._text.startswith(literal, at):
            raise _NoCall(MALFORMED)
        return at + len(literal)

    def _blanks(self, at: int) -> int:
        found = _SPACES.match(self._text, at)
        return found.end() if found else at


def _matching_closers(text: str) -> dict[int, int]:
    """Map each parameter opener to the closer that balances it."""
    closers: dict[int, int] = {}
    open_ones: list[int] = []
    for bracket in _BRACKETS.finditer(text):
        if bracket[0] == _PARAMETER:
            open_ones.append(bracket.start())
        elif open_ones:
            closers[open_ones.pop()] = bracket.start()
    return closers
