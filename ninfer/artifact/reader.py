"""Opening an artifact and asking it for configs, resources and parameters.

Owns ``Artifact``: the checked header over mapped files.  Promises that every complaint is an
``ArtifactError`` naming the file and the member, and that opening costs the header alone: weights are
read when asked for, continuation files opened when needed.

The one thing a reader would get wrong: ``open_artifact`` accepts a file whose optional components are
broken or incomplete; ``require`` is what checks a component, and the loader calls it for each one that
was selected.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ninfer.artifact import inventory, layouts
from ninfer.artifact.errors import ArtifactError, shown
from ninfer.artifact.files import PAGE, Payload, open_entry
from ninfer.artifact.formats import Corrupt
from ninfer.artifact.inventory import Inventory
from ninfer.artifact.legacy import read_legacy
from ninfer.artifact.manifest import Binding, Component, Manifest, Parameter, Part, Shape, TensorObject, Use
from ninfer.artifact.published import MODELS, Configs
from ninfer.artifact.schema import read_manifest
from ninfer.faults import StartupError
from ninfer.model.config import (
    DraftConfig,
    TextConfig,
    VisionConfig,
    read_draft_config,
    read_text_config,
    read_vision_config,
)

T = TypeVar("T")


def open_artifact(path: Path, *, models: Mapping[str, Configs] = MODELS) -> Artifact:
    """Open a .ninfer file of version 1, 2 or 3.

    ``models`` gives the configs that version 1 and 2 files name by model id.  Raises ArtifactError.
    """
    entry = open_entry(Path(path))
    try:
        manifest = read_manifest(entry) if entry.version == 3 else read_legacy(entry, models)
    except ArtifactError:
        entry.json.release()
        entry.file.close()
        raise
    entry.json.release()
    return Artifact(Path(path), entry.version, entry.file.size, manifest, Payload(entry, manifest.files))


def merge_parts(parameters: Iterable[Parameter]) -> tuple[Part, ...]:
    """Lay the parts of several parameters end to end, adjacent ranges of one object joined.

    Tells a loader that query, key and value are one contiguous range of one stored matrix.
    """
    parts: list[Part] = []
    for part in (part for parameter in parameters for part in parameter.parts):
        last = parts[-1] if parts else None
        if last is not None and last.object == part.object and last.end == part.begin:
            parts[-1] = Part(part.object, last.begin, part.end)
        else:
            parts.append(part)
    return tuple(parts)


class Artifact:
    """An open artifact.  A context manager; arrays that were handed out outlive ``close``."""

    def __init__(
        self, path: Path, version: int, entry_bytes: int, manifest: Manifest, data: Payload
    ) -> None:
        self.path = path
        self.version = version
        self.manifest = manifest
        self.size_bytes = entry_bytes + sum(PAGE + span.payload_bytes for span in manifest.files[1:])
        self._data = data
        self._inventories: dict[str, Inventory] = {}

    def __enter__(self) -> Artifact:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Unmap the files."""
        self._data.close()

    # What it is

    @property
    def name(self) -> str:
        """The public model id: ``metadata.name``, else the architecture."""
        return str(self.manifest.metadata.get("name", self.architecture))

    @property
    def architecture(self) -> str:
        """The first architecture of the text component."""
        return str(self.components["text"].config["architectures"][0])

    @property
    def components(self) -> Mapping[str, Component]:
        """The components that this artifact has, by id."""
        return self.manifest.components

    @property
    def uses(self) -> tuple[Use, ...]:
        """How far activations may be quantised, use by use."""
        return self.manifest.uses

    @property
    def bytes_read(self) -> int:
        """Payload bytes that have been asked for so far."""
        return self._data.bytes_read

    def formats(self) -> frozenset[str]:
        """The numeric formats of its tensors."""
        objects = self.manifest.objects.values()
        return frozenset(item.format for item in objects if isinstance(item, TensorObject))

    # Configs

    @cached_property
    def text_config(self) -> TextConfig:
        """The decoder's config, checked.  Raises ArtifactError."""
        return self._config("text", read_text_config)

    @cached_property
    def vision_config(self) -> VisionConfig:
        """The vision tower's config, checked.  Raises ArtifactError."""
        text = self.text_config
        return self._config("vision", lambda config: read_vision_config(config, text))

    def draft_config(self, component: str) -> DraftConfig:
        """The config of dflash or dflash2, checked.  Raises ArtifactError."""
        text = self.text_config
        return self._config(component, lambda config: read_draft_config(config, text))

    def _config(self, component: str, read: Callable[[Mapping[str, Any]], T]) -> T:
        try:
            return read(self.component(component).config)
        except ArtifactError:
            raise
        except StartupError as problem:
            member = f"components.{component}"
            raise ArtifactError(self.path, member, str(problem), "a consistent config") from problem

    def component(self, name: str) -> Component:
        """Return a component.  Raises ArtifactError if the artifact has none of that name."""
        if name not in self.components:
            has = ", ".join(self.components)
            raise self._fault("components", f"has no {name} component", f"one of its own: {has}")
        return self.components[name]

    # Resources

    def has_resource(self, role: str) -> bool:
        """Whether some component carries this file (``tokenizer.json``, ...)."""
        return any(role in component.resources for component in self.components.values())

    def resource(self, role: str) -> bytes:
        """Read a frontend file by its role.  Raises ArtifactError."""
        for component in self.components.values():
            if role in component.resources:
                item = component.resources[role]
                return bytes(self._data.view(item.offset, item.bytes))
        raise self._fault("resources", f"has no {role}", "that frontend file")

    # Parameters

    def has(self, parameter: str) -> bool:
        """Whether a logical parameter is bound."""
        return parameter in self.manifest.bindings

    def parameters(self) -> Iterable[str]:
        """The bound logical parameters, in file order."""
        return self.manifest.bindings.keys()

    def parameter(self, name: str) -> Parameter:
        """Look up a parameter; its shape comes from the model's config.

        A name outside the known components takes the shape of its only object, or one flat axis.
        Raises ArtifactError if it is not bound or has another shape.
        """
        binding = self.manifest.bindings.get(name)
        if binding is None:
            raise self._fault(f"bindings.{name}", "is not bound", "a tensor for this parameter")
        expected = self._expected_shape(name)
        if expected is None:
            return Parameter(name, _own_shape(binding), binding.parts)
        self._check_shape(name, binding, expected)
        self._check_kind(name, binding)
        return Parameter(name, expected, binding.parts)

    def raw(self, tensor: TensorObject) -> memoryview:
        """The stored bytes of an object, zero-copy when they lie in one file.  Raises ArtifactError."""
        return self._data.view(tensor.offset, tensor.bytes)

    def decode(self, name: str) -> npt.NDArray[Any]:
        """Read a parameter as float32 in its shape; int32 stays int32.  Raises ArtifactError."""
        parameter = self.parameter(name)
        pieces = [self._decode_part(part) for part in parameter.parts]
        if len({piece.dtype for piece in pieces}) > 1:
            raise self._fault(f"bindings.{name}", "mixes integers and floats", "parts of one kind")
        flat = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        return flat.reshape(parameter.shape)

    def _decode_part(self, part: Part) -> npt.NDArray[Any]:
        item = part.object
        self._check_supported(item)
        raw = self.raw(item)
        try:
            return layouts.decode_elements(raw, item.format, item.layout, item.shape, part.begin, part.end)
        except Corrupt as problem:
            raise self._fault(f"objects[{item.id}]", str(problem), f"legal {item.format} data") from None

    # Checks that need the config

    def knows(self, component: str) -> bool:
        """Whether this program knows what a component must hold."""
        return component in INVENTORIES

    def require(self, components: Iterable[str]) -> None:
        """Check selected components whole: each parameter bound, in its shape, in files that are there.

        ``proposal`` counts as a component.  Raises ArtifactError.
        """
        for component in components:
            known = self.inventory(component)
            for name in known.names():
                for part in self.parameter(name).parts:
                    self._check_supported(part.object)
                    self._data.touch(part.object.offset, part.object.bytes)
            if known.shape("proposal/token_ids") is not None:
                self._check_token_ids()
            self._check_uses(known)

    def inventory(self, component: str) -> Inventory:
        """The parameters that a component must have.  Raises ArtifactError if it is absent or unknown."""
        if component not in self._inventories:
            self._inventories[component] = self._inventory(component)
        return self._inventories[component]

    def _inventory(self, component: str) -> Inventory:
        if component == "proposal":
            proposal = self.component("text").proposal
            if proposal is None:
                raise self._fault("components.text", "has no proposal", "a drafting head")
            return inventory.proposal(self.text_config, proposal.rows)
        self.component(component)
        if not self.knows(component):
            raise self._fault(f"components.{component}", "is of a kind unknown here", "a known component")
        return INVENTORIES[component](self)

    def _expected_shape(self, name: str) -> Shape | None:
        component = name.split("/", 1)[0]
        if component == "proposal":
            present = self.components["text"].proposal is not None
        else:
            present = component in self.components and self.knows(component)
        return self.inventory(component).shape(name) if present else None

    def _check_shape(self, name: str, binding: Binding, expected: Shape) -> None:
        found = binding.parts[0].object.shape
        if binding.whole and _squeezed(found) != _squeezed(expected):
            raise self._fault(f"bindings.{name}", f"has shape {list(found)}", str(list(expected)))
        if binding.elements != math.prod(expected):
            want = f"{math.prod(expected)} for {list(expected)}"
            raise self._fault(f"bindings.{name}", f"has {binding.elements} elements", want)

    def _check_kind(self, name: str, binding: Binding) -> None:
        integer = name == "proposal/token_ids"
        if any((part.object.format == "int32") != integer for part in binding.parts):
            found = binding.parts[0].object.format
            raise self._fault(
                f"bindings.{name}", f"is {found}", "int32" if integer else "a floating format"
            )

    def _check_supported(self, item: TensorObject) -> None:
        try:
            layouts.encoded_bytes(item.format, item.layout, item.shape)
        except layouts.Unsupported as problem:
            member = f"objects[{item.id}]"
            raise self._fault(member, f"is stored as {problem}", "a format of this program") from None

    def _check_token_ids(self) -> None:
        ids, vocab = self.decode("proposal/token_ids"), self.text_config.vocab
        if ids.min() < 0 or ids.max() >= vocab or len(np.unique(ids)) != len(ids):
            raise self._fault(
                "bindings.proposal/token_ids",
                "repeats an id or leaves the vocabulary",
                f"different ids below {vocab}",
            )

    def _check_uses(self, known: Inventory) -> None:
        for use in self.uses:
            divisor = use.auxiliaries.get("activation_input_divisor")
            if divisor is None or known.shape(use.parameter) is None:
                continue
            value = float(self._decode_part(divisor.parts[0])[0])
            if not 0 < value < math.inf:
                member = f"uses[{shown(use.parameter)}].activation_input_divisor"
                raise self._fault(member, f"is {value}", "a positive finite number")

    def _fault(self, member: str, problem: str, expected: str) -> ArtifactError:
        return ArtifactError(self.path, member, problem, expected)


INVENTORIES: Mapping[str, Callable[[Artifact], Inventory]] = {
    "text": lambda artifact: inventory.text(artifact.text_config),
    "mtp": lambda artifact: inventory.mtp(artifact.text_config),
    "vision": lambda artifact: inventory.vision(artifact.vision_config),
    "dflash": lambda artifact: inventory.draft(artifact.draft_config("dflash"), "dflash"),
    "dflash2": lambda artifact: inventory.draft(artifact.draft_config("dflash2"), "dflash2"),
}


def _squeezed(shape: Shape) -> Shape:
    """Drop unit axes: they change nothing about where elements lie."""
    return tuple(dim for dim in shape if dim != 1)


def _own_shape(binding: Binding) -> Shape:
    return binding.parts[0].object.shape if binding.whole else (binding.elements,)
