"""A bf16 checkpoint read under the logical parameter names of an artifact, and its recorded goldens."""

from __future__ import annotations

import json
import re
from functools import cached_property
from pathlib import Path
from typing import Any

import attrs
import ml_dtypes
import numpy as np

DTYPES: dict[str, Any] = {"BF16": ml_dtypes.bfloat16, "F32": np.float32, "I32": np.int32}

HEADS = {
    "text/token_embedding": "model.language_model.embed_tokens.weight",
    "text/output_head": "lm_head.weight",
    "text/final_norm": "model.language_model.norm.weight",
    "mtp/input_projection": "mtp.fc.weight",
    "mtp/embedding_norm": "mtp.pre_fc_norm_embedding.weight",
    "mtp/hidden_norm": "mtp.pre_fc_norm_hidden.weight",
    "mtp/final_norm": "mtp.norm.weight",
}
LAYER = {
    "input_norm": "input_layernorm.weight",
    "post_attention_norm": "post_attention_layernorm.weight",
    "attention/key": "self_attn.k_proj.weight",
    "attention/value": "self_attn.v_proj.weight",
    "attention/query_norm": "self_attn.q_norm.weight",
    "attention/key_norm": "self_attn.k_norm.weight",
    "attention/output": "self_attn.o_proj.weight",
    "gdn/z": "linear_attn.in_proj_z.weight",
    "gdn/a_projection": "linear_attn.in_proj_a.weight",
    "gdn/b_projection": "linear_attn.in_proj_b.weight",
    "gdn/a_log": "linear_attn.A_log",
    "gdn/dt_bias": "linear_attn.dt_bias",
    "gdn/norm": "linear_attn.norm.weight",
    "gdn/output": "linear_attn.out_proj.weight",
    "mlp/gate": "mlp.gate_proj.weight",
    "mlp/up": "mlp.up_proj.weight",
    "mlp/down": "mlp.down_proj.weight",
    "moe/router": "mlp.gate.weight",
    "moe/shared_score": "mlp.shared_expert_gate.weight",
    "moe/shared/gate": "mlp.shared_expert.gate_proj.weight",
    "moe/shared/up": "mlp.shared_expert.up_proj.weight",
    "moe/shared/down": "mlp.shared_expert.down_proj.weight",
}


VISION = (
    (r"layers/(\d+)/", r"blocks.\1."),
    (r"attention/", "attn."),
    (r"output", "proj"),
    (r"mlp/", "mlp."),
    (r"merger/", "merger."),
    (r"\bfc(\d)", r"linear_fc\1"),
    (r"patch_embedding", "patch_embed.proj"),
    (r"position_embedding", "pos_embed"),
    (r"_(bias|weight)$", r".\1"),
)


def vision_name(name: str) -> str:
    """The checkpoint name of a vision parameter."""
    for pattern, replacement in VISION:
        name = re.sub(pattern, replacement, name)
    return f"model.visual.{name}" + ("" if name.endswith((".weight", ".bias")) else ".weight")


def read_safetensors(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Map a safetensors file: names to arrays."""
    data = np.memmap(path, np.uint8, "r")
    length = int(data[:8].view("<u8")[0])
    header = json.loads(bytes(data[8 : 8 + length]))
    out = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = (8 + length + offset for offset in entry["data_offsets"])
            out[name] = np.array(data[begin:end]).view(DTYPES[entry["dtype"]]).reshape(entry["shape"])
    return out


@attrs.define(eq=False, slots=False)
class Checkpoint:
    """Parameters of a checkpoint directory by logical name."""

    path: Path

    @cached_property
    def config(self) -> dict[str, Any]:
        """The text config, with the architecture named as in an artifact."""
        config = json.loads((self.path / "config.json").read_text())
        text: dict[str, Any] = config["text_config"]
        sparse = "num_experts" in text
        return {**text, "architectures": ["Qwen3_5MoeForCausalLM" if sparse else "Qwen3_5ForCausalLM"]}

    @cached_property
    def vision(self) -> dict[str, Any]:
        """The vision config."""
        config: dict[str, Any] = json.loads((self.path / "config.json").read_text())["vision_config"]
        return config

    @cached_property
    def tensors(self) -> dict[str, np.ndarray[Any, Any]]:
        """All tensors under their checkpoint names."""
        files = sorted(self.path.glob("model*.safetensors"))
        return {name: array for file in files for name, array in read_safetensors(file).items()}

    def has(self, name: str) -> bool:
        """Whether a logical parameter exists."""
        try:
            self.decode(name)
        except KeyError:
            return False
        return True

    def decode(self, name: str) -> np.ndarray[Any, Any]:
        """Return a logical parameter as float32."""
        if name in HEADS:
            return self._tensor(HEADS[name])
        if name.startswith("vision/"):
            return self._vision(name.removeprefix("vision/"))
        found = re.fullmatch(r"(text|mtp)/layers/(\d+)/(.+)", name)
        if found is None:
            raise KeyError(name)
        component, number, part = found.groups()
        prefix = "model.language_model." if component == "text" else "mtp."
        return self._layer(f"{prefix}layers.{number}.", part)

    def _vision(self, name: str) -> np.ndarray[Any, Any]:
        part = re.fullmatch(r"(.+/)?(query|key|value)(_bias)?", name)
        if part is not None:
            third = ("query", "key", "value").index(part[2])
            both = self._tensor(vision_name(f"{part[1]}qkv{part[3] or ''}"))
            return np.split(both, 3)[third]
        array = self._tensor(vision_name(name))
        return array.reshape(len(array), -1) if name == "patch_embedding" else array

    def _tensor(self, name: str) -> np.ndarray[Any, Any]:
        return self.tensors[name].astype(np.float32)

    def _layer(self, at: str, part: str) -> np.ndarray[Any, Any]:
        if part in LAYER:
            return self._tensor(at + LAYER[part])
        if part in ("attention/query", "attention/gate"):
            return self._query_or_gate(at, part)
        if part in ("gdn/query", "gdn/key", "gdn/value"):
            return self._delta_part(at, part)
        if part == "gdn/convolution":
            return self._tensor(at + "linear_attn.conv1d.weight")[:, 0].T
        found = re.fullmatch(r"moe/experts/(\d+)/(gate|up|down)", part)
        if found is None:
            raise KeyError(part)
        return self._expert(at, int(found[1]), found[2])

    def _query_or_gate(self, at: str, part: str) -> np.ndarray[Any, Any]:
        both = self._tensor(at + "self_attn.q_proj.weight")
        heads = both.reshape(-1, 2, self.config["head_dim"], both.shape[1])
        return heads[:, int(part == "attention/gate")].reshape(-1, both.shape[1])

    def _delta_part(self, at: str, part: str) -> np.ndarray[Any, Any]:
        width = self.config["linear_num_key_heads"] * self.config["linear_key_head_dim"]
        begin, end = {
            "gdn/query": (0, width),
            "gdn/key": (width, 2 * width),
            "gdn/value": (2 * width, None),
        }[part]
        return self._tensor(at + "linear_attn.in_proj_qkv.weight")[begin:end]

    def _expert(self, at: str, expert: int, part: str) -> np.ndarray[Any, Any]:
        if part == "down":
            return self._tensor(at + "mlp.experts.down_proj")[expert]
        both = self._tensor(at + "mlp.experts.gate_up_proj")[expert]
        half = len(both) // 2
        return both[:half] if part == "gate" else both[half:]


@attrs.frozen(eq=False)
class Golden:
    """One recorded prompt."""

    name: str
    ids: tuple[int, ...]
    positions: np.ndarray[Any, Any]
    last_logits: np.ndarray[Any, Any]
    layer_norms: np.ndarray[Any, Any]
    greedy: tuple[int, ...]
    drafts: np.ndarray[Any, Any]
    pixels: np.ndarray[Any, Any] | None
    grid: tuple[int, int, int] | None
    extra: dict[str, np.ndarray[Any, Any]]


def goldens(path: Path) -> list[Golden]:
    """Read the recorded prompts of a checkpoint directory or a bundled artifact."""
    if path.suffix == ".ninfer":
        book = path.with_name(f"goldens-{path.stem}.json")
        tensors = dict(np.load(book.with_suffix(".npz")))
    else:
        book = path / "golden.json"
        tensors = read_safetensors(path / "golden.safetensors")
    out = []
    for index, prompt in enumerate(json.loads(book.read_text())["prompts"]):
        at = f"{index:02d}."
        mine = {name[3:]: array for name, array in tensors.items() if name.startswith(at)}
        pixels, grid = mine.get("pixels", mine.get("pixel_values")), mine.get("grid", mine.get("grid_thw"))
        out.append(
            Golden(
                name=prompt["name"],
                ids=tuple(mine["input_ids"].tolist()),
                positions=mine["position_ids"],
                last_logits=mine["last_logits"],
                layer_norms=mine["layer_norms"],
                greedy=tuple(mine["greedy_ids"].tolist()),
                drafts=mine["mtp_drafts"],
                pixels=pixels,
                grid=None if grid is None else tuple(grid.reshape(3).tolist()),
                extra=mine,
            )
        )
    return out
