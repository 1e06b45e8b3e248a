"""Hugging Face checkpoint directories for tests: random tensors, hand-written safetensors."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from tests.artifact.synthetic import MOE_TEXT, TEXT, VISION

Tensors = dict[str, npt.NDArray[Any]]
NAMES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
SIDE_FILES = {
    "tokenizer.json": json.dumps({"added_tokens": [{"id": 120, "content": "<x>"}]}).encode(),
    "tokenizer_config.json": json.dumps({"added_tokens_decoder": {"121": {}, "120": {}}}).encode(),
    "chat_template.jinja": b"{{ messages }}",
    "generation_config.json": b"{}",
    "preprocessor_config.json": b"{}",
    "video_preprocessor_config.json": b"{}",
}


def safetensors(tensors: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """A safetensors file."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, values in tensors.items():
        raw = values.tobytes()
        span = [len(data), len(data) + len(raw)]
        header[name] = {
            "dtype": NAMES[values.dtype.name],
            "shape": list(values.shape),
            "data_offsets": span,
        }
        data += raw
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def hf_config(sparse: bool = False) -> dict[str, Any]:
    """``config.json`` of the tiny model, nested as the multimodal checkpoints have it."""
    kind = "qwen3_5_moe" if sparse else "qwen3_5"
    text = {**copy.deepcopy(MOE_TEXT if sparse else TEXT), "hidden_act": "silu", "attn_output_gate": True}
    del text["architectures"], text["tie_word_embeddings"]
    return {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": kind,
        "tie_word_embeddings": False,
        "text_config": text,
        "vision_config": {
            **VISION,
            "model_type": kind,
            "hidden_act": "gelu_pytorch_tanh",
            "in_channels": 3,
        },
    }


def _layer(c: dict[str, Any], kind: str, p: str) -> dict[str, tuple[int, ...]]:
    h, d = c["hidden_size"], c["head_dim"]
    found: dict[str, tuple[int, ...]] = {
        f"{p}input_layernorm.weight": (h,),
        f"{p}post_attention_layernorm.weight": (h,),
    }
    if kind == "full_attention":
        q, kv, a = c["num_attention_heads"] * d, c["num_key_value_heads"] * d, f"{p}self_attn."
        found |= {
            f"{a}q_proj.weight": (2 * q, h),
            f"{a}k_proj.weight": (kv, h),
            f"{a}v_proj.weight": (kv, h),
        }
        found |= {f"{a}o_proj.weight": (h, q), f"{a}q_norm.weight": (d,), f"{a}k_norm.weight": (d,)}
    else:
        k = c["linear_num_key_heads"] * c["linear_key_head_dim"]
        heads, width = c["linear_num_value_heads"], c["linear_value_head_dim"]
        v, g = heads * width, f"{p}linear_attn."
        found |= {f"{g}in_proj_qkv.weight": (2 * k + v, h), f"{g}in_proj_z.weight": (v, h)}
        found |= {f"{g}in_proj_a.weight": (heads, h), f"{g}in_proj_b.weight": (heads, h)}
        found |= {
            f"{g}conv1d.weight": (2 * k + v, 1, c["linear_conv_kernel_dim"]),
            f"{g}norm.weight": (width,),
        }
        found |= {f"{g}A_log": (heads,), f"{g}dt_bias": (heads,), f"{g}out_proj.weight": (h, v)}
    return found | _feed_forward(c, f"{p}mlp.")


def _swiglu(p: str, h: int, width: int) -> dict[str, tuple[int, ...]]:
    return {
        f"{p}gate_proj.weight": (width, h),
        f"{p}up_proj.weight": (width, h),
        f"{p}down_proj.weight": (h, width),
    }


def _feed_forward(c: dict[str, Any], p: str) -> dict[str, tuple[int, ...]]:
    h, experts = c["hidden_size"], c.get("num_experts")
    if experts is None:
        return _swiglu(p, h, c["intermediate_size"])
    w, s = c["moe_intermediate_size"], c["shared_expert_intermediate_size"]
    found = {f"{p}gate.weight": (experts, h), f"{p}shared_expert_gate.weight": (1, h)}
    found |= {f"{p}experts.gate_up_proj": (experts, 2 * w, h), f"{p}experts.down_proj": (experts, h, w)}
    return found | _swiglu(f"{p}shared_expert.", h, s)


def _vision(c: dict[str, Any], out: int) -> dict[str, tuple[int, ...]]:
    h, i, wide, p = c["hidden_size"], c["intermediate_size"], c["hidden_size"] * 4, "model.visual."
    patch = (h, 3, c["temporal_patch_size"], c["patch_size"], c["patch_size"])
    found: dict[str, tuple[int, ...]] = {
        f"{p}patch_embed.proj.weight": patch,
        f"{p}patch_embed.proj.bias": (h,),
    }
    found[f"{p}pos_embed.weight"] = (c["num_position_embeddings"], h)
    found |= {f"{p}merger.norm.{leaf}": (h,) for leaf in ("weight", "bias")}
    linears = {f"{p}merger.linear_fc1": (wide, wide), f"{p}merger.linear_fc2": (out, wide)}
    for n in range(c["depth"]):
        b = f"{p}blocks.{n}."
        found |= {f"{b}norm{m}.{leaf}": (h,) for m in (1, 2) for leaf in ("weight", "bias")}
        linears |= {f"{b}attn.qkv": (3 * h, h), f"{b}attn.proj": (h, h)}
        linears |= {f"{b}mlp.linear_fc1": (i, h), f"{b}mlp.linear_fc2": (h, i)}
    for name, shape in linears.items():
        found |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    return found


def hf_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Every tensor of a checkpoint with this config."""
    c, p = config["text_config"], "model.language_model."
    h, table = c["hidden_size"], (c["vocab_size"], c["hidden_size"])
    found = {f"{p}embed_tokens.weight": table, f"{p}norm.weight": (h,), "lm_head.weight": table}
    for n, kind in enumerate(c["layer_types"]):
        found |= _layer(c, kind, f"{p}layers.{n}.")
    found |= {"mtp.fc.weight": (h, 2 * h), "mtp.norm.weight": (h,)}
    found |= {"mtp.pre_fc_norm_embedding.weight": (h,), "mtp.pre_fc_norm_hidden.weight": (h,)}
    found |= _layer(c, "full_attention", "mtp.layers.0.")
    return found | _vision(config["vision_config"], h)


def hf_tensors(config: dict[str, Any], dtype: Any = ml_dtypes.bfloat16) -> Tensors:
    """Random values for every tensor."""
    rng = np.random.default_rng(0)
    shapes = hf_shapes(config)
    return {name: (rng.standard_normal(shape) * 0.1).astype(dtype) for name, shape in shapes.items()}


def write_hf(path: Path, tensors: Tensors, config: dict[str, Any], shards: int = 1) -> Path:
    """Write a checkpoint directory, single or sharded."""
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    for name, data in SIDE_FILES.items():
        (path / name).write_bytes(data)
    if shards == 1:
        (path / "model.safetensors").write_bytes(safetensors(tensors))
        return path
    names, weight_map = list(tensors), {}
    for n in range(shards):
        file = f"model-{n + 1:05d}-of-{shards:05d}.safetensors"
        part = {name: tensors[name] for name in names[n::shards]}
        (path / file).write_bytes(safetensors(part))
        weight_map |= dict.fromkeys(part, file)
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return path
