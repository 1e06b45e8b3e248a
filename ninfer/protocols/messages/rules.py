"""Rules of Messages fields that the shared ones do not cover.

The one thing a reader would get wrong: these look at values that already have their JSON type.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from ninfer.protocols.fields import Misfit, Never


@attrs.frozen
class Except:
    """One value that asks for ``lacks``; every other is let pass."""

    value: object
    lacks: str
    code: str

    def check(self, value: object) -> None:
        """Refuse that value."""
        if value == self.value:
            Never(self.lacks, self.code).check(value)


@attrs.frozen
class Holding:
    """An array that must hold ``value``; one without it asks for ``lacks``."""

    value: str
    lacks: str
    code: str

    def check(self, value: tuple[str, ...]) -> None:
        """Refuse an array without the value."""
        if self.value not in value:
            Never(self.lacks, self.code).check(value)


@attrs.frozen
class DescribesObject:
    """A JSON schema whose instances are objects, as far as its ``type`` says."""

    def check(self, value: Mapping[str, object]) -> None:
        """Refuse a schema of anything else."""
        if value.get("type", "object") != "object":
            raise Misfit('must be "object"').under("type")
