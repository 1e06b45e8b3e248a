"""Rules of Chat fields that the shared ones do not cover.

The one thing a reader would get wrong: these look at values that already have their JSON type.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from ninfer.protocols.fields import Misfit, Only


@attrs.frozen
class Zeros:
    """Numbers that must all be zero; any other asks for ``lacks``."""

    lacks: str
    code: str

    def check(self, value: Mapping[str, float]) -> None:
        """Refuse a map with a number other than zero."""
        for number in value.values():
            Only((0.0,), self.lacks, self.code).check(number)


@attrs.frozen
class AllNull:
    """Members that must all be null; any other asks for ``lacks``."""

    lacks: str
    code: str

    def check(self, value: Mapping[str, object]) -> None:
        """Refuse an object with a member that is set."""
        for member in value.values():
            Only((None,), self.lacks, self.code).check(member)


@attrs.frozen
class Elsewhere:
    """A member that has meaning in another place only; empty values are let pass."""

    place: str

    def check(self, value: object) -> None:
        """Refuse a value that would be lost."""
        if value not in ("", []):
            raise Misfit(f"belongs to {self.place} only")
