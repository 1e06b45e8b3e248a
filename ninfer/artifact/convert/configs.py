"""From a checkpoint's ``config.json`` to component configs.

Owns which settings an artifact keeps, and the refusal of settings that this model family's mathematics
does not have here (biases, other activations, scaled rotary embeddings).

The one thing a reader would get wrong: a config that is silent about a setting means the family's
default; only an explicit other value is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from ninfer.artifact.errors import Member
from ninfer.faults import StartupError
from ninfer.model.config import TextConfig, VisionConfig, read_text_config, read_vision_config

KEPT = (
    "hidden_size",
    "vocab_size",
    "num_hidden_layers",
    "max_position_embeddings",
    "rms_norm_eps",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "linear_num_key_heads",
    "linear_key_head_dim",
    "linear_num_value_heads",
    "linear_value_head_dim",
    "linear_conv_kernel_dim",
)
DENSE = ("intermediate_size",)
SPARSE = (
    "num_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "shared_expert_intermediate_size",
)
VISION = (
    "depth",
    "hidden_size",
    "intermediate_size",
    "num_heads",
    "patch_size",
    "temporal_patch_size",
    "spatial_merge_size",
    "num_position_embeddings",
    "out_hidden_size",
)
TEXT_FIXED: Mapping[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "attention_bias": (False,),
    "attn_output_gate": (True,),
    "mtp_num_hidden_layers": (0, 1),
    "mtp_use_dedicated_embeddings": (False,),
    "mlp_only_layers": ([],),
}
VISION_FIXED: Mapping[str, tuple[Any, ...]] = {
    "hidden_act": ("gelu_pytorch_tanh",),
    "in_channels": (3,),
    "deepstack_visual_indexes": ([],),
}
FAMILIES = {"qwen3_5": False, "qwen3_5_moe": True}


@attrs.frozen
class Family:
    """What the checkpoint is: its component configs, read and raw, and where its text tensors are."""

    sparse: bool
    text: TextConfig
    vision: VisionConfig | None
    configs: Mapping[str, dict[str, Any]]
    multimodal: bool  # text tensors are below model.language_model

    @property
    def text_prefix(self) -> str:
        """What the decoder's tensor names begin with."""
        return "model.language_model." if self.multimodal else "model."


def read_family(config: Member) -> Family:
    """Read ``config.json``.  Raises ArtifactError, StartupError."""
    root = config.mapping()
    multimodal = "text_config" in root
    text = root["text_config"] if multimodal else config
    kind = root.get("model_type", Member(config.file, "model_type", None))
    sparse = FAMILIES[kind.one_of(*FAMILIES, *(f"{name}_text" for name in FAMILIES)).removesuffix("_text")]
    _refuse_others(text, TEXT_FIXED)
    tied = root.get("tie_word_embeddings", text.mapping().get("tie_word_embeddings"))
    configs = {"text": _text(text.value, sparse, bool(tied.value) if tied is not None else False)}
    stem = "Qwen3_5Moe" if sparse else "Qwen3_5"
    configs["mtp"] = {"architectures": [f"{stem}MTP"]}
    if "vision_config" in root:
        _refuse_others(root["vision_config"], VISION_FIXED)
        configs["vision"] = _vision(root["vision_config"].value, sparse)
    try:
        checked = read_text_config(configs["text"])
        vision = read_vision_config(configs["vision"], checked) if "vision" in configs else None
    except StartupError as problem:
        raise StartupError(f"{config.file}: {problem}") from problem
    return Family(sparse, checked, vision, configs, multimodal)


def _refuse_others(member: Member, fixed: Mapping[str, tuple[Any, ...]]) -> None:
    found = member.mapping()
    for name in found.keys() & fixed.keys():
        allowed = fixed[name]
        found[name].refuse_unless(found[name].value in allowed, " or ".join(map(str, allowed)))


def _text(config: Mapping[str, Any], sparse: bool, tied: bool) -> dict[str, Any]:
    stem, kind = ("Qwen3_5Moe", "qwen3_5_moe") if sparse else ("Qwen3_5", "qwen3_5")
    kept = (*KEPT, *(SPARSE if sparse else DENSE))
    return {
        "architectures": [f"{stem}ForCausalLM"],
        "model_type": f"{kind}_text",
        **{name: config[name] for name in kept if name in config},
        "layer_types": _layer_types(config),
        "tie_word_embeddings": tied,
        "rope_parameters": _rope(config),
    }


def _layer_types(config: Mapping[str, Any]) -> Any:
    every, count = config.get("full_attention_interval"), config.get("num_hidden_layers")
    if (
        "layer_types" in config
        or type(every) is not int
        or type(count) is not int
        or not 0 < every <= count
    ):
        return config.get("layer_types")
    return [
        "full_attention" if i % every == every - 1 else "linear_attention" for i in range(min(count, 4096))
    ]


def _rope(config: Mapping[str, Any]) -> dict[str, Any]:
    """Gather rotary settings, which older configs spread over three places."""
    found = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(found, dict):
        found = {}
    kind = found.get("rope_type", found.get("type", "default"))
    if kind not in ("default", "mrope"):
        raise StartupError(
            f"config.json: rope_type is {kind!r}; only plain rotary embeddings can be converted"
        )
    if found.get("mrope_interleaved", True) is not True:
        raise StartupError(
            "config.json: mrope_interleaved is not true; only interleaved axes can be converted"
        )
    names = ("rope_theta", "partial_rotary_factor", "mrope_section")
    return {name: found.get(name, config.get(name)) for name in names}


def _vision(config: Mapping[str, Any], sparse: bool) -> dict[str, Any]:
    kind = "qwen3_5_moe_vision" if sparse else "qwen3_5_vision"
    return {"model_type": kind, **{name: config[name] for name in VISION if name in config}}
