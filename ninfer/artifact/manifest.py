"""What an artifact says it holds, as frozen values, whichever version wrote it.

Owns the shapes of objects, bindings, components and uses.
The one thing a reader would get wrong: ``Part.begin`` and ``Part.end`` count logical elements of the
object in C order, never bytes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import attrs

from ninfer.artifact.files import FileSpan

Shape = tuple[int, ...]


@attrs.frozen
class TensorObject:
    """One stored tensor; ``offset`` and ``bytes`` are in the payload's address space."""

    id: str
    shape: Shape
    format: str
    layout: str
    offset: int
    bytes: int

    @property
    def elements(self) -> int:
        """How many logical elements it has."""
        return math.prod(self.shape)


@attrs.frozen
class ResourceObject:
    """One stored file, byte for byte."""

    id: str
    offset: int
    bytes: int


@attrs.frozen
class Part:
    """Elements ``begin`` .. ``end`` - 1 of an object."""

    object: TensorObject
    begin: int
    end: int


@attrs.frozen
class Binding:
    """What a logical parameter is made of; ``whole`` means one entire object, shape included."""

    parts: tuple[Part, ...]
    whole: bool

    @property
    def elements(self) -> int:
        """How many elements the parts have together."""
        return sum(part.end - part.begin for part in self.parts)


@attrs.frozen
class Parameter:
    """A logical parameter: its shape and the parts that hold it, in order."""

    name: str
    shape: Shape
    parts: tuple[Part, ...]


@attrs.frozen
class Proposal:
    """A small head that only drafts: ``rows`` of the vocabulary by id map, or all of it (None)."""

    rows: int | None


@attrs.frozen
class Component:
    """One optional piece of a model: text, vision, mtp, dflash, dflash2, or one we don't know."""

    config: dict[str, Any]
    target: str | None = None
    resources: Mapping[str, ResourceObject] = attrs.field(factory=dict)
    proposal: Proposal | None = None


@attrs.frozen
class Use:
    """How far the input of one matrix may be quantised; without effect on a bf16 activation path."""

    parameter: str
    input: str
    policy: str
    auxiliaries: Mapping[str, Binding]


@attrs.frozen
class Manifest:
    """The whole header of an artifact, checked."""

    metadata: Mapping[str, Any]
    provenance: Mapping[str, Any]
    components: Mapping[str, Component]
    objects: Mapping[str, TensorObject | ResourceObject]
    bindings: Mapping[str, Binding]
    uses: tuple[Use, ...]
    files: tuple[FileSpan, ...]
