"""JSON values that hold no others, and free JSON, checked and taken as they are.

Every hook here takes a JSON value and returns the typed one, or raises ``Misfit``.  The one thing a
reader would get wrong: ``True`` is an ``int`` to Python; exact types are compared so that it is not one
here.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, get_args

from ninfer.protocols.rules import Misfit

Hook = Callable[[object, Any], Any]

NOUNS: dict[type, str] = {
    str: "a string",
    bool: "a boolean",
    int: "an integer",
    float: "a number",
    list: "an array",
    dict: "an object",
}
_HUGE = 1 << 1023  # an integer from here on has no finite double


def exactly(kind: type) -> Hook:
    """Build the hook of a JSON type that is taken as it is."""

    def hook(value: object, _: Any) -> object:
        if type(value) is not kind:
            raise Misfit(f"must be {NOUNS[kind]}", "invalid_type")
        return value

    return hook


def check_text(value: str) -> None:
    """Refuse a string that cannot be written as UTF-8."""
    if value.isascii():
        return
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Misfit("holds a lone surrogate") from None


def text(value: object, _: Any) -> str:
    """Take a string."""
    if type(value) is not str:
        raise Misfit("must be a string", "invalid_type")
    check_text(value)
    return value


def number(value: object, _: Any) -> float:
    """Take a finite number, written with or without a fraction."""
    if type(value) is not int and type(value) is not float:
        raise Misfit("must be a number", "invalid_type")
    if not -_HUGE < value < _HUGE:  # false for NaN and both infinities
        raise Misfit("must be a finite number")
    return float(value)


def null(value: object, _: Any) -> None:
    """Take null."""
    if value is not None:
        raise Misfit("must be null", "invalid_type")


def one_of(value: object, kind: Any) -> object:
    """Take one of the values of a ``Literal``."""
    choices = get_args(kind)
    for choice in choices:
        if type(value) is type(choice) and value == choice:
            return choice
    if type(value) not in {type(choice) for choice in choices}:
        raise Misfit(f"must be {NOUNS[type(choices[0])]}", "invalid_type")
    raise Misfit("must be one of " + ", ".join(map(json.dumps, choices)))


def check_json(value: object, room: int) -> None:
    """Refuse free JSON nested deeper than ``room`` levels, or holding bad text or numbers."""
    kind = type(value)
    if kind is str:
        check_text(value)  # type: ignore[arg-type]
    elif kind is float:
        number(value, float)
    elif kind is dict or kind is list:
        _check_members(value, room)  # type: ignore[arg-type]


def _check_members(value: dict[str, object] | list[object], room: int) -> None:
    if not room:
        raise Misfit("is nested too deeply")
    members = value.items() if isinstance(value, dict) else enumerate(value)
    for step, inner in members:
        try:
            if isinstance(step, str):
                check_text(step)
            check_json(inner, room - 1)
        except Misfit as fault:
            raise fault.under(step)  # noqa: B904
