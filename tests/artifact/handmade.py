"""Files made by hand, byte by byte: edited version 3 headers, and writers for versions 1 and 2.

Owns no product code on the writing side but the codecs, so that the reader is not tested against its own
writer alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ninfer.artifact.layouts import encode

MAGIC = b"NINFER\0"
ARTIFACT_ID = bytes(range(16))
Root = dict[str, Any]
Array = npt.NDArray[Any]

TEXT_ROLES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")
VISION_ROLES = ("preprocessor_config.json", "video_preprocessor_config.json")
OLD_FORMATS = {
    "bf16": ("BF16", "contiguous-le-v1"),
    "fp32": ("FP32", "contiguous-le-v1"),
    "int32": ("I32", "contiguous-le-v1"),
    "q4_g64_fp16": ("Q4G64_F16S", "row-split-k128-v1"),
    "q5_g64_fp16": ("Q5G64_F16S", "row-split-k128-v1"),
    "q6_g64_fp16": ("Q6G64_F16S", "row-split-k128-v1"),
    "q8_g32_fp16": ("W8G32_F16S", "row-split-k128-v1"),
    "nvfp4": ("NVFP4", "block-scale-k16-m128x4-v1"),
    "fp8_e4m3fn_row_bf16": ("FP8_E4M3FN_ROW_BF16S", "row-scale-v1"),
}


def page(size: int) -> int:
    """Round up to a page."""
    return -(-size // 4096) * 4096


def assemble(root: Root | bytes, payload: bytes, version: int = 3) -> bytes:
    """An entry file from a header (JSON or raw text) and a payload."""
    text = root if isinstance(root, bytes) else json.dumps(root).encode()
    head = MAGIC + bytes([version]) + len(text).to_bytes(8, "little")
    head += (ARTIFACT_ID if version == 3 else b"") + text
    return head.ljust(page(len(head)), b"\0") + payload


def take_apart(path: Path) -> tuple[Root, bytes]:
    """The header and the payload of a version 3 entry file."""
    data = path.read_bytes()
    count = int.from_bytes(data[8:16], "little")
    return json.loads(data[32 : 32 + count]), data[page(32 + count) :]


def small_root() -> tuple[Root, bytes]:
    """A minimal legal version 3 header: two tensors, a resource, one of everything that can be wrong."""
    values = np.arange(512, dtype=np.float32).reshape(8, 64) / 512
    q8 = encode(values, "q8_g32_fp16").tobytes()
    one = encode(np.float32(2.5), "fp32").tobytes()
    payload = b"{}".ljust(256, b"\0") + q8.ljust(-(-len(q8) // 256) * 256, b"\0") + one
    objects = [
        {"id": "r", "kind": "resource", "encoding": "raw_bytes_v1", "offset": 0, "bytes": 2},
        {
            "id": "w",
            "kind": "tensor",
            "shape": [8, 64],
            "format": "q8_g32_fp16",
            "layout": "row_split_k128_v1",
            "offset": 256,
            "bytes": len(q8),
        },
        {
            "id": "s",
            "kind": "tensor",
            "shape": [],
            "format": "fp32",
            "layout": "contiguous_le_v1",
            "offset": len(payload) - 4,
            "bytes": 4,
        },
    ]
    use = {
        "parameter": "extra/w",
        "input": "extra/x",
        "activation_policy": "AllowA4",
        "auxiliaries": {"activation_input_divisor": {"object": "s"}},
    }
    root: Root = {
        "metadata": {"name": "small"},
        "components": {
            "text": {
                "config": {"architectures": ["Qwen3_5ForCausalLM"]},
                "resources": {"tokenizer.json": "r"},
            },
            "extra": {"config": {}, "target": "text"},
        },
        "objects": objects,
        "bindings": {
            "extra/w": {"object": "w"},
            "extra/part": {
                "parts": [{"object": "w", "range": [64, 128]}, {"object": "w", "range": [0, 64]}]
            },
        },
        "uses": [use],
        "files": [{"path": None, "payload_bytes": len(payload)}],
    }
    return root, payload


def write_edited(path: Path, edit: Callable[[Root], Any]) -> Path:
    """The minimal file with its header changed."""
    root, payload = small_root()
    edit(root)
    path.write_bytes(assemble(root, payload))
    return path


class OldWriter:
    """Lays out objects as versions 1 and 2 do: one cursor, 256 for tensors, 1 for resources."""

    def __init__(self) -> None:
        self.objects: list[Root] = []
        self.payload = bytearray()

    def tensor(self, name: str, values: Array, form: str) -> None:
        """Append a tensor."""
        self.payload += bytes(-len(self.payload) % 256)
        data = encode(values, form).tobytes()
        old, layout = OLD_FORMATS[form]
        record = {"name": name, "kind": "tensor", "shape": list(values.shape), "format": old}
        self.objects.append({**record, "layout": layout, "offset": len(self.payload), "bytes": len(data)})
        self.payload += data

    def resource(self, name: str, data: bytes) -> None:
        """Append a resource."""
        record = {"name": name, "kind": "resource", "encoding": "raw-bytes-v1"}
        self.objects.append({**record, "offset": len(self.payload), "bytes": len(data)})
        self.payload += data

    def root(self, version: int, model: str) -> Root:
        """The header."""
        head = {"model_id": model}
        return {
            **(head if version == 1 else {"identity": {**head, "weights_id": "groupwise-int"}}),
            "objects": self.objects,
        }


class OldModel:
    """Writes logical weights under the old names, fused as the old files fuse them."""

    def __init__(self, weights: Mapping[str, Array], choose: Callable[[str, Array], str]) -> None:
        self.weights, self.choose = weights, choose
        self.used: set[str] = set()
        self.out = OldWriter()

    def put(self, name: str, *members: str) -> None:
        """One object: its members' rows end to end."""
        self.used |= set(members)
        values = [self.weights[member] for member in members]
        joined = np.concatenate(values) if len(values) > 1 else values[0]
        self.out.tensor(name, joined, self.choose(members[0], values[0]))

    def below(self, new: str, old: str, *pairs: tuple[str, tuple[str, ...]]) -> None:
        """Several objects of one layer: (old leaf, new leaves)."""
        for leaf, members in pairs:
            self.put(f"{old}/{leaf}", *(f"{new}/{member}" for member in members))

    def same(self, new: str, old: str, *leaves: str) -> None:
        """Objects whose leaf kept its name."""
        self.below(new, old, *((leaf, (leaf,)) for leaf in leaves))


def _attention(model: OldModel, new: str, old: str, one_parent: bool) -> None:
    a = "attention/"
    if one_parent:
        members = tuple(a + name for name in ("query", "key", "gate", "value"))
        model.below(new, old, (a + "query_key_gate_value", members))
    else:
        model.below(new, old, (a + "query_key", (a + "query", a + "key")))
        model.below(new, old, (a + "gate_value", (a + "gate", a + "value")))
    model.same(new, old, a + "query_norm", a + "key_norm", a + "output")


def _delta_net(model: OldModel, new: str, old: str, sparse: bool) -> None:
    g = "gdn/"
    if sparse:
        members = tuple(g + name for name in ("query", "key", "value", "z"))
        model.below(new, old, (g + "query_key_value_z", members))
        model.below(new, old, (g + "a_b_projection", (g + "a_projection", g + "b_projection")))
    else:
        model.below(new, old, (g + "query_key", (g + "query", g + "key")))
        model.below(new, old, (g + "value_z", (g + "value", g + "z")))
        model.same(new, old, g + "a_projection", g + "b_projection")
    model.same(new, old, *(g + name for name in ("a_log", "dt_bias", "convolution", "norm", "output")))


def _feed_forward(model: OldModel, new: str, old: str, experts: int) -> None:
    if not experts:
        model.below(new, old, ("mlp/gate_up", ("mlp/gate", "mlp/up")))
        model.same(new, old, "mlp/down")
        return
    m = "moe/"
    gate_up = tuple(f"{m}experts/{e}/{leaf}" for e in range(experts) for leaf in ("gate", "up"))
    down = tuple(f"{m}experts/{e}/down" for e in range(experts))
    model.below(new, old, (m + "router_shared_gate", (m + "router", m + "shared_score")))
    model.below(new, old, (m + "routed_gate_up", gate_up), (m + "routed_down", down))
    model.below(new, old, (m + "shared_gate_up", (m + "shared/gate", m + "shared/up")))
    model.below(new, old, (m + "shared_down", (m + "shared/down",)))


def _layer(model: OldModel, new: str, old: str, full: bool, experts: int, one_parent: bool) -> None:
    model.same(new, old, "input_norm", "post_attention_norm")
    if full:
        _attention(model, new, old, one_parent)
    else:
        _delta_net(model, new, old, bool(experts))
    _feed_forward(model, new, old, experts)


def _vision(model: OldModel, depth: int) -> None:
    v = "vision"
    model.same(v, v, "patch_embedding", "patch_embedding_bias", "position_embedding")
    for i in range(depth):
        new = old = f"{v}/layers/{i}"
        for n in (1, 2):
            for leaf in ("weight", "bias"):
                model.below(new, old, (f"norm{n}/{leaf}", (f"norm{n}_{leaf}",)))
        for suffix in ("", "_bias"):
            parts = tuple(f"attention/{name}{suffix}" for name in ("query", "key", "value"))
            model.below(new, old, (f"attention/qkv{suffix}", parts))
            model.same(
                new, old, *(f"{name}{suffix}" for name in ("attention/output", "mlp/fc1", "mlp/fc2"))
            )
    for leaf in ("weight", "bias"):
        model.below(f"{v}/merger", f"{v}/merger", (f"norm/{leaf}", (f"norm_{leaf}",)))
    model.same(f"{v}/merger", f"{v}/merger", "fc1", "fc1_bias", "fc2", "fc2_bias")


def _dflash(model: OldModel, layers: int) -> None:
    d = "dflash"
    model.same(d, d, "feature_projection", "context_norm", "final_norm")
    for i in range(layers):
        new = old = f"{d}/layers/{i}"
        model.same(
            new, old, "input_norm", "post_attention_norm", "attention/query_norm", "attention/key_norm"
        )
        parts = tuple(f"attention/{name}" for name in ("query", "key", "value"))
        model.below(new, old, ("attention/query_key_value", parts))
        model.same(new, old, "attention/output", "mlp/down")
        model.below(new, old, ("mlp/gate_up", ("mlp/gate", "mlp/up")))


def old_model(
    parts: Mapping[str, Root], weights: Mapping[str, Array], choose: Callable[[str, Array], str]
) -> OldModel:
    """Lay out a whole model the old way."""
    text, model = parts["text"], OldModel(weights, choose)
    experts = text.get("num_experts", 0)
    model.put("text/token_embedding", "text/token_embedding")
    for i, kind in enumerate(text["layer_types"]):
        name = f"text/layers/{i}"
        _layer(model, name, name, kind == "full_attention", experts, bool(experts))
    model.same("text", "text", "final_norm", "output_head")
    model.put("text/draft_head", "proposal/head")
    model.put("text/draft_head_token_ids", "proposal/token_ids")
    model.same("mtp", "mtp", "input_projection", "embedding_norm", "hidden_norm", "final_norm")
    _layer(model, "mtp/layers/0", "mtp/layer", True, experts, True)
    _vision(model, parts["vision"]["depth"])
    if "dflash" in parts:
        _dflash(model, parts["dflash"]["num_hidden_layers"])
    for role in (*TEXT_ROLES, *VISION_ROLES):
        model.out.resource(f"frontend/{role}", role.encode())
    return model
