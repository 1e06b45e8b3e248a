"""A random model small enough for exact tests: both families, with an MTP layer."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

import attrs
import numpy as np

from ninfer.runtime.build import build_numpy
from ninfer.runtime.program import NumpyProgram
from ninfer.settings import EngineOptions

VOCAB = 96  # rows of the head
KNOWN = 90  # ids that the tokenizer knows
DENSE: dict[str, Any] = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "hidden_size": 64,
    "vocab_size": VOCAB,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "layer_types": ["linear_attention", "linear_attention", "full_attention"],
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.25, "mrope_section": [3, 3, 2]},
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_num_value_heads": 4,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "tie_word_embeddings": False,
}
SPARSE: dict[str, Any] = {
    **{name: value for name, value in DENSE.items() if name != "intermediate_size"},
    "architectures": ["Qwen3_5MoeForCausalLM"],
    "model_type": "qwen3_5_moe_text",
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
}


def shape_of(name: str, config: dict[str, Any]) -> tuple[int, ...]:
    """The logical shape of a parameter."""
    hidden, dim = config["hidden_size"], config["head_dim"]
    query, key = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    heads = config["linear_num_value_heads"]
    narrow = config["linear_num_key_heads"] * config["linear_key_head_dim"]
    wide = heads * config["linear_value_head_dim"]
    width = config.get("moe_intermediate_size", config.get("intermediate_size"))
    shapes: dict[str, tuple[int, ...]] = {
        "attention/query": (query, hidden),
        "attention/gate": (query, hidden),
        "attention/key": (key, hidden),
        "attention/value": (key, hidden),
        "attention/output": (hidden, query),
        "query_norm": (dim,),
        "key_norm": (dim,),
        "gdn/query": (narrow, hidden),
        "gdn/key": (narrow, hidden),
        "gdn/value": (wide, hidden),
        "gdn/z": (wide, hidden),
        "gdn/output": (hidden, wide),
        "a_projection": (heads, hidden),
        "b_projection": (heads, hidden),
        "a_log": (heads,),
        "dt_bias": (heads,),
        "convolution": (config["linear_conv_kernel_dim"], 2 * narrow + wide),
        "gdn/norm": (config["linear_value_head_dim"],),
        "/gate": (width, hidden),
        "/up": (width, hidden),
        "/down": (hidden, width),
        "router": (config.get("num_experts", 0), hidden),
        "shared_score": (1, hidden),
        "input_projection": (hidden, 2 * hidden),
        "token_embedding": (VOCAB, hidden),
        "output_head": (VOCAB, hidden),
        "proposal/head": (VOCAB // 2, hidden),
        "proposal/token_ids": (VOCAB // 2,),
        "_norm": (hidden,),
    }
    return next(shape for part, shape in shapes.items() if name.endswith(part))


@attrs.frozen
class Piece:
    """A component."""

    config: dict[str, Any]


@attrs.frozen(eq=False)
class ToyModel:
    """Stands in for an artifact; every parameter is random but fixed by its name."""

    config: dict[str, Any]
    changed: dict[str, Any] = attrs.field(factory=dict)

    @property
    def components(self) -> dict[str, Piece]:
        """Text and mtp."""
        return {"text": Piece(self.config), "mtp": Piece({})}

    def has(self, name: str) -> bool:
        """Everything exists."""
        return True

    def decode(self, name: str) -> Any:
        """Make up a parameter."""
        return self.changed[name] if name in self.changed else parameter(name, shape_of(name, self.config))

    def has_resource(self, role: str) -> bool:
        """There is a tokenizer."""
        return role == "tokenizer.json"

    def resource(self, role: str) -> bytes:
        """A tokenizer that knows ``KNOWN`` ids."""
        return json.dumps({"model": {"vocab": {f"t{i}": i for i in range(KNOWN)}}}).encode()


@lru_cache(maxsize=512)
def parameter(name: str, shape: tuple[int, ...]) -> Any:
    """A random parameter, seeded by its name."""
    random = np.random.default_rng(list(name.encode()))
    if name == "proposal/token_ids":
        return np.sort(random.permutation(VOCAB)[: shape[0]]).astype(np.int32)
    scale = 1.5 / np.sqrt(shape[-1]) if len(shape) == 2 else 0.3
    return (random.standard_normal(shape) * scale).astype(np.float32)


def toy_program(
    config: dict[str, Any] = DENSE, changed: dict[str, Any] | None = None, **options: Any
) -> NumpyProgram:
    """Build a program of a toy model; pages of 16 tokens, 256 of context unless said otherwise."""
    chosen = {"max_context": 256, "page_tokens": 16, "kv_dtype": "bf16", **options}
    return build_numpy(ToyModel(config, changed or {}), EngineOptions(**chosen), lambda text: None)
