"""Rules that a wire field may carry, and the one exception by which a value is found wrong.

Owns ``Misfit`` and the spelling of paths.  A rule stands in an ``Annotated`` and looks at a value that
already has its JSON type; ``fields.Reader`` applies it.

The one thing a reader would get wrong: a rule never sees the path.  ``Misfit`` gathers it step by step
while it rises, so that a good body costs nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Protocol

import attrs

from ninfer.faults import Fault, Kind, Refused, invalid

_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}\Z")
_STEP = re.compile(r'([A-Za-z_][A-Za-z0-9_-]*)|\[(\d+)\]|\[("(?:[^"\\]|\\.)*")\]')


class Misfit(Exception):
    """A value that does not fit its field; gathers its path while it rises."""

    def __init__(self, complaint: str, code: str = "invalid_value") -> None:
        super().__init__(complaint)
        self.complaint = complaint
        self.code = code
        self.steps: list[str | int] = []

    def under(self, step: str | int) -> Misfit:
        """Add the member name or the index by which the value was reached."""
        self.steps.append(step)
        return self

    def refusal(self) -> Refused:
        """Turn into the refusal that the peer is told."""
        path = join(reversed(self.steps))
        subject = path or "the request body"
        return Refused(Fault(Kind.INVALID, f"{subject} {self.complaint}", self.code, path or None))


def join(steps: Iterator[str | int]) -> str:
    """Spell a path: ``messages[0].content``; a member name that is no word is quoted and cut."""
    path = ""
    for step in steps:
        if type(step) is int:
            path += f"[{step}]"
        elif _PLAIN_NAME.match(str(step)):
            path += f".{step}" if path else str(step)
        else:
            path += f"[{json.dumps(str(step)[:64])}]"
    return path


def split(path: str) -> list[str | int]:
    """Undo ``join``: the member names and indices of a path."""
    return [
        int(index) if index else json.loads(quoted) if quoted else name
        for name, index, quoted in _STEP.findall(path)
    ]


def misfit(param: str, complaint: str, code: str = "invalid_value") -> Refused:
    """Build the refusal of a value found wrong after reading (``complaint`` follows the path)."""
    return invalid(f"{param} {complaint}", param=param, code=code)


def lacking(param: str, guarantee: str, code: str) -> Refused:
    """Build the refusal of a request for something that this server cannot guarantee."""
    return misfit(param, _lack(guarantee), code)


def _lack(guarantee: str) -> str:
    return f"asks for {guarantee}, which NInfer cannot guarantee"


# Rules.  Each looks at a value that already has its type.


class Rule(Protocol):
    """What an ``Annotated`` may carry: raises ``Misfit``, or lets the value pass."""

    def check(self, value: Any) -> None:
        """Look at one value of the annotated type."""


@attrs.frozen
class Range:
    """Inclusive bounds of a number; ``unit`` is named in the message."""

    low: float | None = None
    high: float | None = None
    unit: str = ""

    def check(self, value: float) -> None:
        """Refuse a number outside the bounds."""
        if (self.low is None or value >= self.low) and (self.high is None or value <= self.high):
            return
        raise Misfit("must be " + _bounds(self.low, self.high, self.unit))


@attrs.frozen
class Length:
    """Inclusive bounds of a string's or an array's length, in ``unit``."""

    low: int = 0
    high: int | None = None
    unit: str = "characters"

    def check(self, value: str | tuple[object, ...] | dict[str, object]) -> None:
        """Refuse a value that is too short or too long."""
        if self.low <= len(value) and (self.high is None or len(value) <= self.high):
            return
        low = None if self.low == 0 else self.low
        raise Misfit("must hold " + _bounds(low, self.high, self.unit))


def _bounds(low: float | None, high: float | None, unit: str) -> str:
    if low is not None and high is not None:
        text = str(low) if low == high else f"between {low} and {high}"
    else:
        text = f"at least {low}" if low is not None else f"at most {high}"
    one = 1 in (low, high) and (low is None or high is None or low == high)
    return f"{text} {unit.removesuffix('s') if one else unit}".rstrip()


@attrs.frozen
class Match:
    """A pattern that the whole string must match, shown as it is."""

    pattern: str

    def check(self, value: str) -> None:
        """Refuse a string that the pattern does not cover."""
        if not re.fullmatch(self.pattern, value, re.ASCII):
            raise Misfit(f"must match {self.pattern}")


@attrs.frozen
class Only:
    """Values that change nothing; any other asks for ``lacks``, which we cannot guarantee."""

    values: tuple[object, ...]
    lacks: str
    code: str

    def check(self, value: object) -> None:
        """Refuse a value that would have to change the answer."""
        if value not in self.values:
            raise Misfit(_lack(self.lacks), self.code)


@attrs.frozen
class Never:
    """A field whose mere presence (other than null) asks for ``lacks``."""

    lacks: str
    code: str

    def check(self, value: object) -> None:
        """Refuse any value."""
        raise Misfit(_lack(self.lacks), self.code)
