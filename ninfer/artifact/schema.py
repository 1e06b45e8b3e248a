"""Reading the version 3 header: JSON text to a ``Manifest``, every rule of the container checked.

Owns the member sets, ordering, ranges and references.  Shapes of parameters need the model's config
and are checked later, in ``artifact``.

The one thing a reader would get wrong: a tensor with an unknown format or layout is no fault here; it
becomes one when somebody needs it.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ninfer.artifact.errors import ArtifactError, Member, shown
from ninfer.artifact.files import Entry, FileSpan
from ninfer.artifact.layouts import Unsupported, encoded_bytes
from ninfer.artifact.manifest import (
    Binding,
    Component,
    Manifest,
    Part,
    Proposal,
    ResourceObject,
    TensorObject,
    Use,
)

TENSOR_ALIGN = 256
MAX_RANK = 16
POLICIES = ("A16Only", "AllowA8", "AllowA4")
Objects = dict[str, TensorObject | ResourceObject]


class _Refused(ValueError):
    """A JSON construct that the container forbids."""


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise _Refused(f"has a duplicate member {shown(twice)}")
    return found


def _integer(text: str) -> int:
    if len(text) > 20:
        raise _Refused("has an integer of more than 64 bits")
    return int(text)


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _Refused("has a number out of range")
    return value


def _constant(text: str) -> float:
    raise _Refused(f"has {text}, which is not JSON")


def parse_json(path: Path, raw: memoryview) -> Member:
    """Parse header bytes strictly: UTF-8, no duplicate members, bounded depth, integers and numbers."""
    expected = "one UTF-8 JSON object without duplicate members"
    try:
        value = json.loads(
            str(raw, "utf-8"),
            object_pairs_hook=_pairs,
            parse_int=_integer,
            parse_float=_float,
            parse_constant=_constant,
        )
    except UnicodeDecodeError as problem:
        raise ArtifactError(path, "JSON", f"is not UTF-8 at byte {problem.start}", expected) from None
    except RecursionError:
        raise ArtifactError(path, "JSON", "is nested too deeply", expected) from None
    except _Refused as problem:
        raise ArtifactError(path, "JSON", str(problem), expected) from None
    except ValueError as problem:
        raise ArtifactError(path, "JSON", f"does not parse ({problem})", expected) from None
    return Member(path, "root", value)


def read_manifest(entry: Entry) -> Manifest:
    """Read and check a version 3 header.  Raises ArtifactError."""
    path = entry.file.path
    required = ("components", "objects", "bindings", "uses", "files")
    root = parse_json(path, entry.json).members(required, ("metadata", "provenance"))
    files = read_files(root["files"], entry)
    objects = read_objects(root["objects"], sum(span.payload_bytes for span in files))
    bindings = {
        Member(path, "bindings", name).string(): read_binding(member, objects)
        for name, member in root["bindings"].mapping().items()
    }
    metadata = root["metadata"].mapping() if "metadata" in root else {}
    if "name" in metadata:
        metadata["name"].string()
    return Manifest(
        metadata={name: member.value for name, member in metadata.items()},
        provenance=_free(root.get("provenance")),
        components=read_components(root["components"], objects),
        objects=objects,
        bindings=bindings,
        uses=read_uses(root["uses"], objects, bindings),
        files=files,
    )


def _free(member: Member | None) -> Mapping[str, Any]:
    if member is None:
        return {}
    member.mapping()
    return dict(member.value)


def read_files(member: Member, entry: Entry) -> tuple[FileSpan, ...]:
    """Read ``files[]``: the entry first, then plain sibling names; the entry's length must fit."""
    spans: list[FileSpan] = []
    for index, item in enumerate(member.array(least=1)):
        fields = item.members(("path", "payload_bytes"))
        name = _part_name(fields["path"], entry.file.path, spans) if index else None
        if not index:
            fields["path"].refuse_unless(fields["path"].value is None, "null for the entry file")
        spans.append(FileSpan(name, fields["payload_bytes"].uint(1)))
        if not index and spans[0].payload_bytes != entry.payload_bytes:
            start, size = entry.payload_start, entry.file.size
            fields["payload_bytes"].fail(
                f"is {spans[0].payload_bytes} in a file of {size} bytes whose payload starts at {start}",
                str(entry.payload_bytes),
            )
    return tuple(spans)


def _part_name(member: Member, entry: Path, spans: list[FileSpan]) -> str:
    name = member.string()
    plain = not set(name) & {"/", "\\"} and name not in (".", "..", entry.name)
    member.refuse_unless(plain, "the plain name of another file in the same directory")
    member.refuse_unless(all(span.name != name for span in spans), "a name not used before")
    return name


def read_objects(member: Member, payload: int) -> Objects:
    """Read ``objects[]``: unique ids, ascending, aligned, apart, inside ``payload`` bytes, sizes right."""
    objects: Objects = {}
    cursor = 0
    for item in member.array(least=1):
        found = _read_object(item)
        if found.id in objects:
            item.fail(f"repeats id {shown(found.id)}", "unique ids")
        if found.offset < cursor:
            item.fail(f"starts at byte {found.offset}", f"objects in order and apart, from byte {cursor}")
        cursor = found.offset + found.bytes
        if cursor > payload:
            item.fail(f"ends at byte {cursor}", f"an end within the payload of {payload} bytes")
        objects[found.id] = found
    return objects


def _read_object(item: Member) -> TensorObject | ResourceObject:
    kind = item.mapping().get("kind")
    if kind is None:
        item.fail("has no member 'kind'", "kind tensor or resource")
    if kind.one_of("tensor", "resource") == "resource":
        fields = item.members(("id", "kind", "encoding", "offset", "bytes"))
        fields["encoding"].one_of("raw_bytes_v1")
        return ResourceObject(fields["id"].string(), fields["offset"].uint(), fields["bytes"].uint())
    fields = item.members(("id", "kind", "shape", "format", "layout", "offset", "bytes"))
    fields["offset"].refuse_unless(
        fields["offset"].uint() % TENSOR_ALIGN == 0, f"a multiple of {TENSOR_ALIGN}"
    )
    found = TensorObject(
        fields["id"].string(),
        read_shape(fields["shape"]),
        fields["format"].string(),
        fields["layout"].string(),
        fields["offset"].uint(),
        fields["bytes"].uint(1),
    )
    check_size(fields["bytes"], found)
    return found


def read_shape(member: Member) -> tuple[int, ...]:
    """Read a shape: rank 0 to 16, every dimension at least 1, fewer than 2^64 elements."""
    dims = member.array()
    member.refuse_unless(len(dims) <= MAX_RANK, f"a rank of at most {MAX_RANK}")
    shape = tuple(dim.uint(1) for dim in dims)
    member.refuse_unless(math.prod(shape) < 2**64, "fewer than 2^64 elements")
    return shape


def check_size(member: Member, tensor: TensorObject) -> None:
    """Refuse ``bytes`` that is not the encoded size, where the format and layout are known."""
    try:
        size = encoded_bytes(tensor.format, tensor.layout, tensor.shape)
    except Unsupported:
        return
    member.refuse_unless(tensor.bytes == size, f"{size}, the size of {tensor.format} {list(tensor.shape)}")


def read_binding(member: Member, objects: Objects) -> Binding:
    """Read ``{object}`` or ``{parts}``: tensors that exist, element ranges inside them."""
    if "object" in member.mapping():
        tensor = _tensor(member.members(("object",))["object"], objects)
        return Binding((Part(tensor, 0, tensor.elements),), whole=True)
    parts = member.members(("parts",))["parts"].array(least=1)
    return Binding(tuple(_read_part(item, objects) for item in parts), whole=False)


def _read_part(item: Member, objects: Objects) -> Part:
    fields = item.members(("object", "range"))
    tensor = _tensor(fields["object"], objects)
    bounds = fields["range"].array()
    fields["range"].refuse_unless(len(bounds) == 2, "[begin, end)")
    begin, end = bounds[0].uint(), bounds[1].uint()
    inside = begin < end <= tensor.elements
    fields["range"].refuse_unless(inside, f"0 <= begin < end <= {tensor.elements}, in elements")
    return Part(tensor, begin, end)


def _tensor(member: Member, objects: Objects) -> TensorObject:
    found = objects.get(member.string())
    if not isinstance(found, TensorObject):
        member.fail(f"is {shown(member.value)}", "the id of a tensor object")
    return found


def read_components(member: Member, objects: Objects) -> dict[str, Component]:
    """Read ``components``: text is there, references hold, a proposal only on text."""
    found = member.mapping()
    if "text" not in found:
        member.fail("has no member 'text'", "a text component")
    for name in found:
        Member(member.file, "components", name).string()
    return {name: _read_component(name, item, objects, set(found)) for name, item in found.items()}


def _read_component(name: str, item: Member, objects: Objects, known: set[str]) -> Component:
    fields = item.members(("config",), ("target", "resources", "proposal"))
    fields["config"].mapping()
    if name == "text":
        check_architecture(fields["config"])
    target = fields["target"].string() if "target" in fields else None
    if target is not None:
        fields["target"].refuse_unless(target in known - {name}, "the name of another component")
    if "proposal" in fields and name != "text":
        fields["proposal"].fail("is not on text", "a proposal on the text component only")
    return Component(
        config=fields["config"].value,
        target=target,
        resources=dict(_resources(fields.get("resources"), objects)),
        proposal=_read_proposal(fields["proposal"]) if "proposal" in fields else None,
    )


def check_architecture(config: Member) -> str:
    """Read the first of a config's ``architectures``."""
    names = config.mapping().get("architectures")
    if names is None:
        config.fail("has no member 'architectures'", "an array with the name of the architecture")
    return names.array(least=1)[0].string()


def _resources(member: Member | None, objects: Objects) -> Iterator[tuple[str, ResourceObject]]:
    for role, item in member.mapping().items() if member is not None else ():
        found = objects.get(item.string())
        if not isinstance(found, ResourceObject):
            item.fail(f"is {shown(item.value)}", "the id of a resource object")
        yield role, found


def _read_proposal(member: Member) -> Proposal:
    fields = member.members(("domain",), ("rows",))
    if fields["domain"].one_of("full", "indexed") == "indexed":
        return Proposal(member.members(("domain", "rows"))["rows"].uint(1))
    member.members(("domain",))
    return Proposal(None)


def read_uses(member: Member, objects: Objects, bindings: Mapping[str, Binding]) -> tuple[Use, ...]:
    """Read ``uses[]``: unique (parameter, input), known policies, auxiliaries that are tensors."""
    found: dict[tuple[str, str], Use] = {}
    for item in member.array():
        fields = item.members(("parameter", "input"), ("activation_policy", "auxiliaries"))
        key = fields["parameter"].string(), fields["input"].string()
        fields["parameter"].refuse_unless(key[0] in bindings, "a bound parameter")
        if key in found:
            item.fail(f"repeats {shown(key[0])} with input {shown(key[1])}", "unique pairs")
        policy = (
            fields["activation_policy"].one_of(*POLICIES) if "activation_policy" in fields else "A16Only"
        )
        roles = fields["auxiliaries"].mapping() if "auxiliaries" in fields else {}
        bound = {role: _read_auxiliary(role, member, objects) for role, member in roles.items()}
        found[key] = Use(*key, policy, bound)
    return tuple(found.values())


def _read_auxiliary(role: str, member: Member, objects: Objects) -> Binding:
    binding = read_binding(member, objects)
    if role == "activation_input_divisor":
        scalar = binding.elements == 1 and binding.parts[0].object.format == "fp32"
        member.refuse_unless(scalar, "one fp32 scalar")
    return binding
