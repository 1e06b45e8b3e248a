"""Configs are read strictly: a good one comes through, every inconsistent one names its member."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ninfer.faults import StartupError
from ninfer.model.config import read_draft_config, read_text_config, read_vision_config

TEXT: dict[str, Any] = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "hidden_size": 64,
    "vocab_size": 128,
    "num_hidden_layers": 2,
    "layer_types": ["linear_attention", "full_attention"],
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "rope_parameters": {
        "rope_theta": 10_000_000,
        "partial_rotary_factor": 0.25,
        "mrope_section": [11, 11, 10],
    },
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 32,
    "linear_num_value_heads": 6,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "intermediate_size": 128,
}
SPARSE = {
    **{key: value for key, value in TEXT.items() if key != "intermediate_size"},
    "architectures": ["Qwen3_5MoeForCausalLM"],
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 16,
}
VISION: dict[str, Any] = {
    "depth": 2,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_heads": 2,
    "patch_size": 16,
    "temporal_patch_size": 2,
    "spatial_merge_size": 2,
    "num_position_embeddings": 49,
    "out_hidden_size": 64,
}
DRAFT: dict[str, Any] = {
    "architectures": ["DFlash2DraftModel"],
    "num_hidden_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 16,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 64,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_theta": 1e7},
    "dflash_config": {
        "target_layer_ids": [0, 1],
        "mask_token_id": 127,
        "conv_kernel_size": 2,
        "conv_group_size": 16,
        "selector_rank": 8,
        "selector_top_k": 4,
    },
}


def test_a_dense_config_comes_through() -> None:
    config = read_text_config(TEXT)
    assert config.layers == 2
    assert config.rotary_dims == 64
    assert config.mrope_section == (11, 11, 10)
    assert (config.key_width, config.value_width, config.conv_channels) == (64, 96, 224)
    assert config.moe is None
    assert not config.tied_embeddings


def test_a_sparse_config_has_experts_and_no_dense_width() -> None:
    config = read_text_config(SPARSE)
    assert config.moe is not None
    assert (config.moe.experts, config.moe.per_token, config.moe.shared_width) == (8, 2, 16)
    assert config.intermediate == 0


def test_vision_width_is_the_texts_own() -> None:
    text = read_text_config(TEXT)
    silent = {key: value for key, value in VISION.items() if key != "out_hidden_size"}
    assert read_vision_config(silent, text).out_hidden == 64
    assert read_vision_config(VISION).out_hidden == 64
    with pytest.raises(StartupError, match="out_hidden_size"):
        read_vision_config(silent)
    with pytest.raises(StartupError, match="the text's 64"):
        read_vision_config({**VISION, "out_hidden_size": 63}, text)


def test_both_drafters_come_through() -> None:
    text = read_text_config(TEXT)
    second = read_draft_config(DRAFT, text)
    assert second.layer_windows == (16, None)
    assert (second.conv_taps, second.selector_rank) == (2, 8)
    first = read_draft_config({**DRAFT, "architectures": ["DFlashDraftModel"]}, text)
    assert (first.conv_taps, first.selector_rank, first.mask_token) == (0, 0, 127)


def _rope(**changes: Any) -> dict[str, Any]:
    return {"rope_parameters": {**TEXT["rope_parameters"], **changes}}


INCONSISTENT: dict[str, tuple[dict[str, Any], str]] = {
    "architecture unknown": ({"architectures": ["LlamaForCausalLM"]}, "architectures"),
    "architecture missing": ({"architectures": []}, "architectures"),
    "fewer kinds than layers": ({"num_hidden_layers": 3}, "layer_types"),
    "unknown kind": ({"layer_types": ["full_attention", "mamba"]}, "layer_types"),
    "kinds of another type": ({"layer_types": [1, 2]}, "layer_types"),
    "heads not grouped evenly": ({"num_attention_heads": 3}, "num_attention_heads"),
    "value heads not grouped evenly": ({"linear_num_value_heads": 5}, "linear_num_value_heads"),
    "sections that miss a pair": (_rope(mrope_section=[11, 11, 11]), "mrope_section"),
    "two sections": (_rope(mrope_section=[16, 16]), "mrope_section"),
    "negative section": (_rope(mrope_section=[33, -1, 0]), "mrope_section"),
    "odd rotated width": (_rope(partial_rotary_factor=65 / 256), "partial_rotary_factor"),
    "rotated beyond the head": (_rope(partial_rotary_factor=1.5), "partial_rotary_factor"),
    "no frequency base": (_rope(rope_theta=None), "rope_theta"),
    "no rotary section": ({"rope_parameters": None}, "rope_parameters"),
    "tied is a word": ({"tie_word_embeddings": "no"}, "tie_word_embeddings"),
    "epsilon zero": ({"rms_norm_eps": 0}, "rms_norm_eps"),
    "epsilon infinite": ({"rms_norm_eps": float("inf")}, "rms_norm_eps"),
    "one tap": ({"linear_conv_kernel_dim": 1}, "linear_conv_kernel_dim"),
}


@pytest.mark.parametrize(("changes", "member"), INCONSISTENT.values(), ids=INCONSISTENT.keys())
def test_an_inconsistent_text_config_names_its_member(changes: dict[str, Any], member: str) -> None:
    with pytest.raises(StartupError, match=rf"config\.(\w+\.)?{member}"):
        read_text_config({**TEXT, **changes})


Read = Callable[[dict[str, Any]], object]
READERS: dict[str, tuple[dict[str, Any], Read]] = {
    "text": (TEXT, read_text_config),
    "sparse": (SPARSE, read_text_config),
    "vision": (VISION, read_vision_config),
    "draft": (DRAFT, lambda config: read_draft_config(config, read_text_config(TEXT))),
}
COUNTS = [
    (kind, name)
    for kind, (config, _) in READERS.items()
    for name, value in config.items()
    if type(value) is int
]


@pytest.mark.parametrize(("kind", "name"), COUNTS)
@pytest.mark.parametrize("value", [None, 0, -1, True, 2.0, "2", 2**31, [2]], ids=repr)
def test_counts_are_positive_bounded_integers(kind: str, name: str, value: Any) -> None:
    config, read = READERS[kind]
    with pytest.raises(StartupError, match=name):
        read({**config, name: value})


@pytest.mark.parametrize(
    ("changes", "member"),
    [
        ({"num_experts_per_tok": 9}, "num_experts_per_tok"),
        ({"num_experts": 1}, "num_experts_per_tok"),
    ],
)
def test_no_more_experts_are_used_than_there_are(changes: dict[str, Any], member: str) -> None:
    with pytest.raises(StartupError, match=member):
        read_text_config({**SPARSE, **changes})


@pytest.mark.parametrize(
    ("changes", "member"),
    [
        ({"num_heads": 3}, "num_heads"),
        ({"hidden_size": 12}, "num_heads"),  # a head width of 6
        ({"num_position_embeddings": 50}, "num_position_embeddings"),
        ({"depth": 100_000}, "depth"),
    ],
)
def test_an_inconsistent_vision_config_names_its_member(changes: dict[str, Any], member: str) -> None:
    with pytest.raises(StartupError, match=member):
        read_vision_config({**VISION, **changes})


@pytest.mark.parametrize(
    ("changes", "member"),
    [
        ({"target_layer_ids": []}, "target_layer_ids"),
        ({"target_layer_ids": [2]}, "target_layer_ids"),
        ({"target_layer_ids": 1}, "target_layer_ids"),
        ({"mask_token_id": 128}, "mask_token_id"),
        ({"conv_group_size": 24}, "conv_group_size"),
    ],
)
def test_an_inconsistent_drafter_names_its_member(changes: dict[str, Any], member: str) -> None:
    config = {**DRAFT, "dflash_config": {**DRAFT["dflash_config"], **changes}}
    with pytest.raises(StartupError, match=member):
        read_draft_config(config, read_text_config(TEXT))
