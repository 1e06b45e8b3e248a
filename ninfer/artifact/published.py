"""Configs of the models that version 1 and 2 files name by id, in version 3's words.

Owns the dimensions that those files do not carry.
The one thing a reader would get wrong: Qwen3.8-27B has exactly the shapes of Qwen3.6-27B.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Configs = Mapping[str, Mapping[str, Any]]


def _layer_types(count: int) -> list[str]:
    return ["full_attention" if i % 4 == 3 else "linear_attention" for i in range(count)]


_COMMON: dict[str, Any] = {
    "vocab_size": 248_320,
    "max_position_embeddings": 262_144,
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-6,
    "head_dim": 256,
    "rope_parameters": {
        "rope_theta": 10_000_000,
        "partial_rotary_factor": 0.25,
        "mrope_section": [11, 11, 10],
    },
    "linear_num_key_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
}

_DENSE: dict[str, Any] = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    **_COMMON,
    "hidden_size": 5_120,
    "num_hidden_layers": 64,
    "layer_types": _layer_types(64),
    "num_attention_heads": 24,
    "num_key_value_heads": 4,
    "linear_num_value_heads": 48,
    "intermediate_size": 17_408,
}

_SPARSE: dict[str, Any] = {
    "architectures": ["Qwen3_5MoeForCausalLM"],
    "model_type": "qwen3_5_moe_text",
    **_COMMON,
    "hidden_size": 2_048,
    "num_hidden_layers": 40,
    "layer_types": _layer_types(40),
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "linear_num_value_heads": 32,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
}


def _vision(model_type: str, out: int) -> dict[str, Any]:
    return {
        "model_type": model_type,
        "depth": 27,
        "hidden_size": 1_152,
        "intermediate_size": 4_304,
        "num_heads": 16,
        "patch_size": 16,
        "temporal_patch_size": 2,
        "spatial_merge_size": 2,
        "num_position_embeddings": 2_304,
        "out_hidden_size": out,
    }


_DRAFT: dict[str, Any] = {
    "model_type": "qwen3",
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 262_144,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_theta": 10_000_000},
}

_DFLASH: dict[str, Any] = {
    "architectures": ["DFlashDraftModel"],
    **_DRAFT,
    "intermediate_size": 6_144,
    "num_hidden_layers": 6,
    "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
    "sliding_window": 4_096,
    "dflash_config": {"target_layer_ids": [1, 6, 11, 16, 22, 27, 32, 37], "mask_token_id": 248_077},
}

_DFLASH2: dict[str, Any] = {
    "architectures": ["DFlash2DraftModel"],
    **_DRAFT,
    "intermediate_size": 17_408,
    "num_hidden_layers": 5,
    "layer_types": ["sliding_attention"] * 5,
    "sliding_window": 2_048,
    "dflash_config": {
        "target_layer_ids": [5, 19, 33, 47, 61],
        "mask_token_id": 248_077,
        "conv_kernel_size": 2,
        "conv_group_size": 16,
        "selector_rank": 256,
        "selector_top_k": 16,
    },
}

_DENSE_PARTS: Configs = {
    "text": _DENSE,
    "vision": _vision("qwen3_5_vision", 5_120),
    "mtp": {"architectures": ["Qwen3_5MTP"]},
    "dflash2": _DFLASH2,
}
_SPARSE_PARTS: Configs = {
    "text": _SPARSE,
    "vision": _vision("qwen3_5_moe_vision", 2_048),
    "mtp": {"architectures": ["Qwen3_5MoeMTP"]},
    "dflash": _DFLASH,
}

MODELS: Mapping[str, Configs] = {
    "qwen3.6-27b": _DENSE_PARTS,
    "qwen3.8-27b": _DENSE_PARTS,
    "qwen3.6-35b-a3b": _SPARSE_PARTS,
}
