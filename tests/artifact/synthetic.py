"""Small models made of random numbers, planned and written as artifacts; and readers' opposite numbers.

Owns the tiny configs.  ``random_weights`` is deterministic for a config, so three files written from it
in three versions must decode alike.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ninfer.artifact import inventory
from ninfer.artifact.inventory import Inventory
from ninfer.artifact.manifest import Proposal
from ninfer.artifact.write import ComponentPlan, Plan, Slice, planned, write_artifact
from ninfer.model.config import read_draft_config, read_text_config, read_vision_config

TEXT: dict[str, Any] = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "hidden_size": 64,
    "vocab_size": 128,
    "num_hidden_layers": 2,
    "layer_types": ["linear_attention", "full_attention"],
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "rope_parameters": {"rope_theta": 1e7, "partial_rotary_factor": 0.5, "mrope_section": [3, 3, 2]},
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 32,
    "linear_num_value_heads": 4,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "intermediate_size": 128,
}
MOE_TEXT: dict[str, Any] = {
    **{name: value for name, value in TEXT.items() if name != "intermediate_size"},
    "architectures": ["Qwen3_5MoeForCausalLM"],
    "model_type": "qwen3_5_moe_text",
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
}
VISION: dict[str, Any] = {
    "model_type": "qwen3_5_vision",
    "depth": 1,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_heads": 2,
    "patch_size": 4,
    "temporal_patch_size": 2,
    "spatial_merge_size": 2,
    "num_position_embeddings": 16,
}
DFLASH: dict[str, Any] = {
    "architectures": ["DFlashDraftModel"],
    "model_type": "qwen3",
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_theta": 1e7},
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 32,
    "dflash_config": {"target_layer_ids": [0, 1], "mask_token_id": 127},
}
TEXT_FILES = {
    "tokenizer.json": b"{}",
    "tokenizer_config.json": b"{}",
    "chat_template.jinja": b"{{ messages }}",
    "generation_config.json": b"{}",
}
VISION_FILES = {"preprocessor_config.json": b"{}", "video_preprocessor_config.json": b"{ }"}
PROPOSAL_ROWS = 32
Array = npt.NDArray[Any]


def configs(sparse: bool = False) -> dict[str, dict[str, Any]]:
    """Component configs of the tiny dense or sparse model; the sparse one has a block drafter."""
    arch = "Qwen3_5MoeMTP" if sparse else "Qwen3_5MTP"
    found = {"text": MOE_TEXT if sparse else TEXT, "vision": VISION, "mtp": {"architectures": [arch]}}
    return copy.deepcopy(found | ({"dflash": DFLASH} if sparse else {}))


def inventories(parts: Mapping[str, dict[str, Any]]) -> dict[str, Inventory]:
    """What each component holds, the drafting head included."""
    text = read_text_config(parts["text"])
    found = {"text": inventory.text(text), "proposal": inventory.proposal(text, PROPOSAL_ROWS)}
    if "mtp" in parts:
        found["mtp"] = inventory.mtp(text)
    if "vision" in parts:
        found["vision"] = inventory.vision(read_vision_config(parts["vision"], text))
    if "dflash" in parts:
        found["dflash"] = inventory.draft(read_draft_config(parts["dflash"], text), "dflash")
    return found


def random_weights(parts: Mapping[str, dict[str, Any]], seed: int = 0) -> dict[str, Array]:
    """A value for every parameter: float32, and int32 for the ids of the drafting head."""
    rng = np.random.default_rng(seed)
    found: dict[str, Array] = {}
    for known in inventories(parts).values():
        for name in known.names():
            shape = known.shape(name)
            assert shape is not None
            found[name] = rng.standard_normal(shape).astype(np.float32) * np.float32(0.1)
    for name in found:
        if "/attention/context_" in name:
            found[name] = found[name.replace("context_", "")]
    ids = rng.permutation(parts["text"]["vocab_size"])[:PROPOSAL_ROWS]
    found["proposal/token_ids"] = np.sort(ids).astype(np.int32)
    return found


def choose_format(name: str, values: Array, matrix: str = "q8_g32_fp16") -> str:
    """The format of a parameter when matrices are stored in ``matrix``."""
    if values.dtype == np.int32:
        return "int32"
    if name.endswith(("/a_log", "/dt_bias")):
        return "fp32"
    plain = ("convolution", "position_embedding", "router", "shared_score", "a_projection", "b_projection")
    return matrix if values.ndim == 2 and not name.endswith(plain) else "bf16"


def plan_of(
    parts: Mapping[str, dict[str, Any]],
    weights: Mapping[str, Array],
    *,
    name: str = "tiny",
    format_of: Callable[[str, Array], str] = choose_format,
) -> Plan:
    """Plan one whole object for every parameter."""
    known = {key: ComponentPlan(config) for key, config in parts.items()}
    known["text"] = ComponentPlan(parts["text"], TEXT_FILES, proposal=Proposal(PROPOSAL_ROWS))
    if "vision" in parts:
        known["vision"] = ComponentPlan(parts["vision"], VISION_FILES)
    tensors = tuple(planned(key, values, format_of(key, values)) for key, values in weights.items())
    return Plan(name, known, tensors, {key: (Slice(key),) for key in weights})


def write_tiny(path: Path, *, sparse: bool = False, **options: Any) -> dict[str, Array]:
    """Write a random tiny model; returns its weights before quantisation."""
    parts = configs(sparse)
    weights = random_weights(parts)
    write_artifact(path, plan_of(parts, weights), **options)
    return weights
