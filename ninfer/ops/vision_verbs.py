"""The verbs of the vision tower: a second, small vocabulary beside ``verbs``.

One media item at a time, P patches in merge-block order (block row, block column, then the rows and
columns inside a block), slices of time one after another.  The one thing a reader would get wrong: all
norms here are LayerNorms with weight and bias, and every linear layer has a bias.
"""

from __future__ import annotations

from typing import Protocol

import attrs

from ninfer.ops.verbs import Array, Weight


@attrs.frozen
class Patches:
    """The shape of one item: patches in time, height and width, and the side of a merge block."""

    time: int
    height: int
    width: int
    merge: int

    @property
    def count(self) -> int:
        """All patches."""
        return self.time * self.height * self.width

    @property
    def tokens(self) -> int:
        """Feature rows after merging."""
        return self.count // self.merge**2


@attrs.frozen
class Affine:
    """Weight and bias of a LayerNorm."""

    weight: Array
    bias: Array


@attrs.frozen
class Linear:
    """A matrix with its bias: y = x @ W.T + b."""

    weight: Weight
    bias: Array


class VisionVerbs(Protocol):
    """What a backend offers to ``model/vision``."""

    def embed_patches(self, pixels: Array, linear: Linear, table: Array, shape: Patches) -> Array:
        """Project (P, channels * time * y * x) pixels and add positions.  -> (P, hidden).

        ``pixels`` is float32 in -1..1, or uint8 to be taken as value / 127.5 - 1.  ``table``
        (side * side, hidden) is resampled bilinearly with its corners on the image's corners and
        repeated over time.
        """

    def normed(self, x: Array, norm: Affine, linears: tuple[Linear, ...]) -> tuple[Array, ...]:
        """LayerNorm, then each linear layer."""

    def see(self, q: Array, k: Array, v: Array, heads: int, shape: Patches) -> Array:
        """Attention among the patches of one time slice, with a two-axis rotary embedding.

        Of ``head_dim / 2`` angles the first half turns with the row, the second with the column
        (base 10,000); dimension d pairs with d + head_dim / 2.
        """

    def linear_add(self, y: Array, linear: Linear, x: Array) -> Array:
        """x + y @ W.T + b."""

    def normed_gelu(self, x: Array, norm: Affine, linear: Linear) -> Array:
        """gelu(LayerNorm(x) @ W.T + b), the tanh form."""

    def merge(self, x: Array, norm: Affine, shape: Patches) -> Array:
        """LayerNorm of every patch, then the patches of a block side by side.  -> (tokens, 4 hidden)."""

    def linear_gelu(self, y: Array, linear: Linear) -> Array:
        """gelu(y @ W.T + b), the exact (erf) form."""

    def linear(self, y: Array, linear: Linear) -> Array:
        """y @ W.T + b."""
