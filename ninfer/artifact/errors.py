"""The one exception of the artifact room and the cursor that raises it.

Owns ``ArtifactError`` and ``Member``, a JSON value that knows its file and its path, so that every
complaint names the file, the member and what was expected there.

The one thing a reader would get wrong: JSON numbers are compared by exact type; ``True`` and ``1.0``
are not integers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

import attrs

from ninfer.faults import StartupError

U64 = 2**64
_UNPRINTABLE = re.compile("[\0-\x1f\x7f\ud800-\udfff]")


class ArtifactError(StartupError):
    """A model file that can't be used: which file, which member of it, what was found and expected."""

    def __init__(self, file: Path, member: str, problem: str, expected: str) -> None:
        self.file = file
        self.member = member
        self.problem = problem
        self.expected = expected
        super().__init__(f"{file}: {member}: {problem}; expected {expected}")


def shown(value: object) -> str:
    """Quote a value from the file for a message, at most 60 characters of it."""
    text = ascii(value)
    return text if len(text) <= 60 else text[:57] + "..."


@attrs.frozen
class Member:
    """One JSON value, its path (``objects[3].offset``) and the file it came from."""

    file: Path
    path: str
    value: Any

    def fail(self, problem: str, expected: str) -> NoReturn:
        """Refuse this value."""
        raise ArtifactError(self.file, self.path, problem, expected)

    def refuse_unless(self, good: bool, expected: str) -> None:
        """Refuse this value, quoting it, unless it is good."""
        if not good:
            self.fail(f"is {shown(self.value)}", expected)

    def string(self) -> str:
        """Read a nonempty string without control characters or lone surrogates."""
        good = type(self.value) is str and self.value and not _UNPRINTABLE.search(self.value)
        self.refuse_unless(bool(good), "a nonempty string without control characters")
        return str(self.value)

    def uint(self, least: int = 0) -> int:
        """Read an unsigned 64-bit integer of at least ``least``."""
        good = type(self.value) is int and least <= self.value < U64
        self.refuse_unless(good, f"an integer from {least} to 2^64 - 1")
        return int(self.value)

    def array(self, least: int = 0) -> list[Member]:
        """Read an array of at least ``least`` items."""
        self.refuse_unless(type(self.value) is list, "an array")
        if len(self.value) < least:
            self.fail(f"has {len(self.value)} items", f"at least {least}")
        return [Member(self.file, f"{self.path}[{index}]", item) for index, item in enumerate(self.value)]

    def mapping(self) -> dict[str, Member]:
        """Read an object with free member names."""
        self.refuse_unless(type(self.value) is dict, "an object")
        return {name: Member(self.file, self._below(name), item) for name, item in self.value.items()}

    def members(self, required: Iterable[str], optional: Iterable[str] = ()) -> dict[str, Member]:
        """Read an object with exactly these member names."""
        found = self.mapping()
        names = list(required)
        for name in names:
            if name not in found:
                self.fail(f"has no member {name!r}", "members " + ", ".join(names))
        for name in found.keys() - {*names, *optional}:
            self.fail(f"has an unknown member {shown(name)}", "members " + ", ".join([*names, *optional]))
        return found

    def one_of(self, *choices: str) -> str:
        """Read one of a few strings."""
        self.refuse_unless(type(self.value) is str and self.value in choices, " or ".join(choices))
        return str(self.value)

    def _below(self, name: str) -> str:
        safe = name if not _UNPRINTABLE.search(name) else shown(name)
        return f"{self.path}.{safe}" if self.path != "root" else safe
