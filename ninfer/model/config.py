"""Frozen shapes of the Qwen3.5/3.6/3.8 hybrid family, read from an artifact's component configs.

Owns the reading and the consistency checks of ``components.*.config``; holds no weights.
The one thing a reader would get wrong: ``rotary_dims`` is the number of rotated head dimensions
(64 of 256), so there are ``rotary_dims / 2`` frequency pairs.
"""

from __future__ import annotations

from typing import Literal

import attrs

LayerKind = Literal["linear_attention", "full_attention"]


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
