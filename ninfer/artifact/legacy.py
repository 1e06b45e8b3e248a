"""Reading version 1 and 2 headers into the same ``Manifest`` as version 3.

Owns the old member sets, the old names, and which logical parameters a fused parent holds in which order.
Row counts are not in the old files; they follow from the model's config (``published``).

The one thing a reader would get wrong: old files have one strict cursor: each object starts exactly
where the previous one ends, rounded up to 256 for tensors, and the last one ends the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import attrs

from ninfer.artifact import inventory
from ninfer.artifact.errors import Member, shown
from ninfer.artifact.files import Entry, FileSpan
from ninfer.artifact.formats import align
from ninfer.artifact.inventory import Inventory
from ninfer.artifact.layouts import LAYOUT_OF
from ninfer.artifact.manifest import (
    Binding,
    Component,
    Manifest,
    Part,
    Proposal,
    ResourceObject,
    TensorObject,
)
from ninfer.artifact.published import MODELS, Configs
from ninfer.artifact.schema import TENSOR_ALIGN, check_size, parse_json, read_shape
from ninfer.model.config import read_draft_config, read_text_config, read_vision_config

FORMATS = {
    "BF16": "bf16",
    "FP32": "fp32",
    "I32": "int32",
    "Q4G64_F16S": "q4_g64_fp16",
    "Q5G64_F16S": "q5_g64_fp16",
    "Q6G64_F16S": "q6_g64_fp16",
    "W8G32_F16S": "q8_g32_fp16",
}
RESOURCES = {
    "text": ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"),
    "vision": ("preprocessor_config.json", "video_preprocessor_config.json"),
}
RENAMED = (
    (re.compile(r"^text/draft_head_token_ids$"), "proposal/token_ids"),
    (re.compile(r"^text/draft_head$"), "proposal/head"),
    (re.compile(r"^mtp/layer/"), "mtp/layers/0/"),
    (re.compile(r"/(norm[12]?)/(weight|bias)$"), r"/\1_\2"),
    (re.compile(r"/moe/shared_down$"), "/moe/shared/down"),
)
FUSED: Mapping[str, tuple[str, ...]] = {
    "attention/query_key": ("query", "key"),
    "attention/gate_value": ("gate", "value"),
    "attention/query_key_gate_value": ("query", "key", "gate", "value"),
    "attention/query_key_value": ("query", "key", "value"),
    "attention/qkv": ("query", "key", "value"),
    "attention/qkv_bias": ("query_bias", "key_bias", "value_bias"),
    "gdn/query_key": ("query", "key"),
    "gdn/value_z": ("value", "z"),
    "gdn/query_key_value_z": ("query", "key", "value", "z"),
    "gdn/a_b_projection": ("a_projection", "b_projection"),
    "mlp/gate_up": ("gate", "up"),
    "moe/router_shared_gate": ("router", "shared_score"),
    "moe/shared_gate_up": ("shared/gate", "shared/up"),
    "moe/routed_gate_up": ("experts/*/gate", "experts/*/up"),
    "moe/routed_down": ("experts/*/down",),
}


def read_legacy(entry: Entry, models: Mapping[str, Configs] = MODELS) -> Manifest:
    """Read and check a version 1 or 2 header.  Raises ArtifactError."""
    root = parse_json(entry.file.path, entry.json)
    if entry.version == 1:
        fields = root.members(("model_id", "objects"))
        model = fields["model_id"]
    else:
        fields = root.members(("identity", "objects"))
        identity = fields["identity"].members(("model_id", "weights_id"))
        identity["weights_id"].string()
        model = identity["model_id"]
    configs = models[model.one_of(*models)]
    objects = _read_objects(fields["objects"], entry)
    bindings = dict(_bind(root, objects, configs))
    return Manifest(
        metadata={"name": model.string()},
        provenance={},
        components=_components(objects, bindings, configs),
        objects=objects,
        bindings=bindings,
        uses=(),
        files=(FileSpan(None, entry.payload_bytes),),
    )


def _read_objects(member: Member, entry: Entry) -> dict[str, TensorObject | ResourceObject]:
    objects: dict[str, TensorObject | ResourceObject] = {}
    cursor = 0
    for item in member.array(least=1):
        found = _read_object(item)
        if found.id in objects:
            item.fail(f"repeats name {shown(found.id)}", "unique names")
        start = align(cursor, TENSOR_ALIGN) if isinstance(found, TensorObject) else cursor
        if found.offset != start:
            item.fail(f"starts at byte {found.offset}", f"byte {start}, right after the previous object")
        cursor = found.offset + found.bytes
        if cursor > entry.payload_bytes:
            item.fail(f"ends at byte {cursor}", f"an end within the payload of {entry.payload_bytes} bytes")
        objects[found.id] = found
    if cursor != entry.payload_bytes:
        member.fail(f"end at byte {cursor}", f"the end of the payload of {entry.payload_bytes} bytes")
    return objects


def _read_object(item: Member) -> TensorObject | ResourceObject:
    kind = item.mapping().get("kind")
    if kind is None:
        item.fail("has no member 'kind'", "kind tensor or resource")
    if kind.one_of("tensor", "resource") == "resource":
        fields = item.members(("name", "kind", "encoding", "offset", "bytes"))
        fields["encoding"].one_of("raw-bytes-v1")
        return ResourceObject(fields["name"].string(), fields["offset"].uint(), fields["bytes"].uint())
    fields = item.members(("name", "kind", "shape", "format", "layout", "offset", "bytes"))
    form = _format(fields["format"])
    found = TensorObject(
        fields["name"].string(),
        read_shape(fields["shape"]),
        form,
        _layout(fields["layout"], form),
        fields["offset"].uint(),
        fields["bytes"].uint(1),
    )
    check_size(fields["bytes"], found)
    return found


def _format(member: Member) -> str:
    """Translate an old format name.

    The 4-bit and 8-bit floating formats of version 2 are recognised by their stem: a wrong guess can't
    pass, because the object's size is checked against the format.
    """
    name = member.string()
    if name.upper().startswith("NVFP4"):
        return "nvfp4"
    if name.upper().startswith("FP8"):
        return "fp8_e4m3fn_row_bf16"
    return FORMATS.get(name, name)


def _layout(member: Member, form: str) -> str:
    name = member.string().replace("-", "_")
    known = form in LAYOUT_OF and form in ("nvfp4", "fp8_e4m3fn_row_bf16")
    return LAYOUT_OF[form] if known else name


def inventories(configs: Configs) -> Inventory:
    """Every parameter that a model with these component configs can have, except the drafting head."""
    text = read_text_config(configs["text"])
    found = [inventory.text(text), inventory.mtp(text)]
    if "vision" in configs:
        found.append(inventory.vision(read_vision_config(configs["vision"], text)))
    for name in configs.keys() & {"dflash", "dflash2"}:
        found.append(inventory.draft(read_draft_config(configs[name], text), name))
    merged = {name: shape for part in found for name, shape in part.shapes.items()}
    return Inventory(merged, text.moe.experts if text.moe else 0)


def _bind(
    root: Member, objects: Mapping[str, TensorObject | ResourceObject], configs: Configs
) -> Iterator[tuple[str, Binding]]:
    known = inventories(configs)
    for item in objects.values():
        if not isinstance(item, TensorObject):
            continue
        name = item.id
        for pattern, new in RENAMED:
            name = pattern.sub(new, name)
        prefix, members = _members(name, known.experts)
        if not members:
            yield name, Binding((Part(item, 0, item.elements),), whole=True)
            continue
        yield from _split(root, item, [f"{prefix}/{member}" for member in members], known)


def _members(name: str, experts: int) -> tuple[str, list[str]]:
    """The directory and member names of a fused parent; no members when it is a parameter itself."""
    pieces = name.split("/")
    members = FUSED.get("/".join(pieces[-2:]), ())
    if any("*" in member for member in members):
        members = tuple(member.replace("*", str(e)) for e in range(experts) for member in members)
    return "/".join(pieces[:-1]), list(members)


def _split(
    root: Member, parent: TensorObject, names: list[str], known: Inventory
) -> Iterator[tuple[str, Binding]]:
    cursor = 0
    where = attrs.evolve(root, path=f"objects[{shown(parent.id)}]")
    for name in names:
        shape = known.shape(name)
        if shape is None:
            where.fail(f"holds {name}", "a parameter of this model")
        end = cursor + _elements(shape)
        if end > parent.elements:
            where.fail(f"has shape {list(parent.shape)}", "room for " + ", ".join(names[:4]))
        yield name, Binding((Part(parent, cursor, end),), whole=False)
        if name.startswith("dflash") and name.endswith(("/key", "/value")):
            alias = re.sub(r"/(key|value)$", r"/context_\1", name)
            yield alias, Binding((Part(parent, cursor, end),), whole=False)
        cursor = end
    if cursor != parent.elements:
        where.fail(f"has shape {list(parent.shape)}", f"{cursor} elements for " + ", ".join(names[:4]))


def _elements(shape: tuple[int, ...]) -> int:
    product = 1
    for dim in shape:
        product *= dim
    return product


def _components(
    objects: Mapping[str, TensorObject | ResourceObject], bindings: Mapping[str, Binding], configs: Configs
) -> dict[str, Component]:
    present = {name.split("/", 1)[0] for name in bindings}
    found = {}
    for name in configs.keys() & (present | {"text"}):
        files = {role: objects.get(f"frontend/{role}") for role in RESOURCES.get(name, ())}
        found[name] = Component(
            config=dict(configs[name]),
            target=None if name in ("text", "vision") else "text",
            resources={role: item for role, item in files.items() if isinstance(item, ResourceObject)},
            proposal=_proposal(bindings) if name == "text" else None,
        )
    return found


def _proposal(bindings: Mapping[str, Binding]) -> Proposal | None:
    head, ids = bindings.get("proposal/head"), bindings.get("proposal/token_ids")
    if head is None:
        return None
    return Proposal(ids.elements if ids is not None else None)
