"""Frozen shapes of the Qwen3.5/3.6/3.8 hybrid family, read from an artifact's component configs.

Owns the reading and the consistency checks of ``components.*.config``; holds no weights.
Promises that a value it returns is usable: counts are positive and bounded, divisions come out even.
The one thing a reader would get wrong: ``rotary_dims`` is the number of rotated head dimensions
(64 of 256), so there are ``rotary_dims / 2`` frequency pairs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import attrs

from ninfer.faults import StartupError

LayerKind = Literal["linear_attention", "full_attention"]
ARCHITECTURES = {"Qwen3_5ForCausalLM": False, "Qwen3_5MoeForCausalLM": True}  # name -> sparse
DRAFTS = ("DFlashDraftModel", "DFlash2DraftModel")
COUNT_LIMIT = 2**31
DEPTH_LIMIT = 1024  # vision blocks; text layers are bounded by the list of their kinds


@attrs.frozen
class MoeConfig:
    """Sparse feed-forward: ``experts`` of width ``width``, ``per_token`` used, one shared expert."""

    experts: int
    per_token: int
    width: int
    shared_width: int


@attrs.frozen
class TextConfig:
    """The decoder.  Sizes are elements, counts are counts."""

    hidden: int
    vocab: int
    layer_kinds: tuple[LayerKind, ...]
    max_positions: int
    eps: float
    # full attention
    heads: int
    kv_heads: int
    head_dim: int
    rope_theta: float
    rotary_dims: int
    mrope_section: tuple[int, int, int]
    # Gated DeltaNet
    key_heads: int
    key_dim: int
    value_heads: int
    value_dim: int
    conv_taps: int
    # feed-forward
    intermediate: int = 0  # dense width; 0 when sparse
    moe: MoeConfig | None = None
    tied_embeddings: bool = False

    @property
    def layers(self) -> int:
        """How many decoder layers there are."""
        return len(self.layer_kinds)

    @property
    def key_width(self) -> int:
        """Width of the q (and of the k) part of a DeltaNet layer."""
        return self.key_heads * self.key_dim

    @property
    def value_width(self) -> int:
        """Width of the v (and of the z) part of a DeltaNet layer."""
        return self.value_heads * self.value_dim

    @property
    def conv_channels(self) -> int:
        """Channels of the causal convolution: q, k and v side by side."""
        return 2 * self.key_width + self.value_width


@attrs.frozen
class VisionConfig:
    """The vision tower."""

    depth: int
    hidden: int
    intermediate: int
    heads: int
    patch: int
    temporal_patch: int
    merge: int
    positions: int
    out_hidden: int


@attrs.frozen
class DraftConfig:
    """A block drafter (DFlash, or DFlash2 when ``conv_taps`` is not 0)."""

    hidden: int  # the target's
    vocab: int  # the target's
    intermediate: int
    layer_windows: tuple[int | None, ...]  # tokens that a sliding layer sees; None sees everything
    heads: int
    kv_heads: int
    head_dim: int
    max_positions: int
    eps: float
    rope_theta: float
    target_layers: tuple[int, ...]  # target layers whose output is tapped, counted from 0
    mask_token: int
    conv_taps: int = 0
    conv_group: int = 0
    selector_rank: int = 0
    selector_top: int = 0

    @property
    def layers(self) -> int:
        """How many draft layers there are."""
        return len(self.layer_windows)


Config = Mapping[str, Any]


def _bad(name: str, found: object, expected: str) -> StartupError:
    text = ascii(found)
    return StartupError(f"config.{name}: is {text[:60]}; expected {expected}")


def _require(good: bool, name: str, found: object, expected: str) -> None:
    if not good:
        raise _bad(name, found, expected)


def _count(config: Config, name: str, least: int = 1, most: int = COUNT_LIMIT - 1) -> int:
    value = config.get(name)
    if type(value) is not int or not least <= value <= most:
        raise _bad(name, value, f"an integer from {least} to {most}")
    return value


def _real(config: Config, name: str) -> float:
    value = config.get(name)
    if type(value) not in (int, float) or not 0 < float(value or 0) < math.inf:
        raise _bad(name, value, "a positive finite number")
    return float(value or 0)


def _counts(config: Config, name: str) -> tuple[int, ...]:
    value = config.get(name)
    if type(value) is not list:
        raise _bad(name, value, "an array of integers")
    return tuple(_count({f"{name}[{i}]": item}, f"{name}[{i}]", 0) for i, item in enumerate(value))


def _section(config: Config, name: str) -> Config:
    value = config.get(name)
    if not isinstance(value, dict):
        raise _bad(name, value, "an object")
    return value


def _layer_kinds(config: Config, *kinds: str) -> list[Any]:
    layers, found = _count(config, "num_hidden_layers"), config.get("layer_types")
    good = isinstance(found, list) and all(kind in kinds for kind in found)
    _require(good, "layer_types", found, "an array of " + " or ".join(kinds))
    assert isinstance(found, list)
    _require(
        len(found) == layers, "layer_types", f"{len(found)} long", f"{layers} items, as num_hidden_layers"
    )
    return found


def _heads(config: Config, many: str, few: str) -> tuple[int, int]:
    heads, groups = _count(config, many), _count(config, few)
    _require(heads % groups == 0, many, heads, f"a multiple of {few} {groups}")
    return heads, groups


def _architecture(config: Config, known: tuple[str, ...]) -> str:
    names = config.get("architectures")
    good = isinstance(names, list) and len(names) > 0 and names[0] in known
    _require(good, "architectures", names, " or ".join(known))
    assert isinstance(names, list)
    return str(names[0])


def read_text_config(config: Config) -> TextConfig:
    """Read and check the config of a text component.  Raises StartupError naming the member."""
    sparse = ARCHITECTURES[_architecture(config, tuple(ARCHITECTURES))]
    heads, kv_heads = _heads(config, "num_attention_heads", "num_key_value_heads")
    value_heads, key_heads = _heads(config, "linear_num_value_heads", "linear_num_key_heads")
    tied = config.get("tie_word_embeddings", False)
    _require(type(tied) is bool, "tie_word_embeddings", tied, "true or false")
    theta, rotary, section = _rope(_section(config, "rope_parameters"), _count(config, "head_dim"))
    return TextConfig(
        hidden=_count(config, "hidden_size"),
        vocab=_count(config, "vocab_size"),
        layer_kinds=tuple(_layer_kinds(config, "linear_attention", "full_attention")),
        max_positions=_count(config, "max_position_embeddings"),
        eps=_real(config, "rms_norm_eps"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=_count(config, "head_dim"),
        rope_theta=theta,
        rotary_dims=rotary,
        mrope_section=section,
        key_heads=key_heads,
        key_dim=_count(config, "linear_key_head_dim"),
        value_heads=value_heads,
        value_dim=_count(config, "linear_value_head_dim"),
        conv_taps=_count(config, "linear_conv_kernel_dim", 2),
        intermediate=0 if sparse else _count(config, "intermediate_size"),
        moe=_moe(config) if sparse else None,
        tied_embeddings=tied,
    )


def _moe(config: Config) -> MoeConfig:
    experts, chosen = _count(config, "num_experts"), _count(config, "num_experts_per_tok")
    _require(chosen <= experts, "num_experts_per_tok", chosen, f"at most num_experts {experts}")
    width, shared = (
        _count(config, "moe_intermediate_size"),
        _count(config, "shared_expert_intermediate_size"),
    )
    return MoeConfig(experts, chosen, width, shared)


def _rope(rope: Config, head_dim: int) -> tuple[float, int, tuple[int, int, int]]:
    """Frequency base, rotated dimensions, and how many frequency pairs each of the three axes has."""
    name = "rope_parameters.partial_rotary_factor"
    factor = _real(rope, "partial_rotary_factor")
    rotary = int(head_dim * min(factor, 1.0))
    _require(
        factor <= 1 and rotary > 0 and rotary % 2 == 0, name, factor, "an even number of rotated dimensions"
    )
    section = _counts(rope, "mrope_section")
    good = len(section) == 3 and sum(section) == rotary // 2
    _require(
        good, "rope_parameters.mrope_section", list(section), f"three counts that add up to {rotary // 2}"
    )
    return _real(rope, "rope_theta"), rotary, (section[0], section[1], section[2])


def read_vision_config(config: Config, text: TextConfig | None = None) -> VisionConfig:
    """Read and check the config of a vision component.

    Its output width is the text's hidden width; without ``text`` the config must say it itself.
    Raises StartupError naming the member.
    """
    hidden, heads = _heads(config, "hidden_size", "num_heads")
    _require(hidden // heads % 4 == 0, "num_heads", heads, "a head width that divides by 4")
    positions = _count(config, "num_position_embeddings")
    _require(
        math.isqrt(positions) ** 2 == positions, "num_position_embeddings", positions, "a square number"
    )
    given = "out_hidden_size" in config or text is None
    out = _count(config, "out_hidden_size") if given else 0
    if text is not None:
        _require(not given or out == text.hidden, "out_hidden_size", out, f"the text's {text.hidden}")
        out = text.hidden
    return VisionConfig(
        depth=_count(config, "depth", most=DEPTH_LIMIT),
        hidden=hidden,
        intermediate=_count(config, "intermediate_size"),
        heads=heads,
        patch=_count(config, "patch_size"),
        temporal_patch=_count(config, "temporal_patch_size"),
        merge=_count(config, "spatial_merge_size"),
        positions=positions,
        out_hidden=out,
    )


def read_draft_config(config: Config, text: TextConfig) -> DraftConfig:
    """Read and check the config of a dflash or dflash2 component.  Raises StartupError."""
    second = _architecture(config, DRAFTS) == DRAFTS[1]
    kinds = _layer_kinds(config, "sliding_attention", "full_attention")
    window = _count(config, "sliding_window") if "sliding_attention" in kinds else None
    heads, kv_heads = _heads(config, "num_attention_heads", "num_key_value_heads")
    inner = _section(config, "dflash_config")
    taps = _counts(inner, "target_layer_ids")
    good = len(taps) > 0 and all(tap < text.layers for tap in taps)
    _require(good, "dflash_config.target_layer_ids", list(taps), f"layers 0 to {text.layers - 1}")
    mask = _count(inner, "mask_token_id", 0)
    _require(mask < text.vocab, "dflash_config.mask_token_id", mask, f"an id below {text.vocab}")
    group = _count(inner, "conv_group_size") if second else 0
    _require(
        not group or text.hidden % group == 0, "dflash_config.conv_group_size", group, "a divisor of hidden"
    )
    return DraftConfig(
        hidden=text.hidden,
        vocab=text.vocab,
        intermediate=_count(config, "intermediate_size"),
        layer_windows=tuple(window if kind == "sliding_attention" else None for kind in kinds),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=_count(config, "head_dim"),
        max_positions=_count(config, "max_position_embeddings"),
        eps=_real(config, "rms_norm_eps"),
        rope_theta=_real(_section(config, "rope_parameters"), "rope_theta"),
        target_layers=taps,
        mask_token=mask,
        conv_taps=_count(inner, "conv_kernel_size") if second else 0,
        conv_group=group,
        selector_rank=_count(inner, "selector_rank") if second else 0,
        selector_top=_count(inner, "selector_top_k") if second else 0,
    )
