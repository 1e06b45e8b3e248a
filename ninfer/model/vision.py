"""The vision tower: patches of one picture or clip to rows that replace placeholder embeddings.

Owns its weights and its mathematics, in vision verbs.  The one thing a reader would get wrong: the
merger normalises single patches first and joins the four of a block afterwards.
"""

from __future__ import annotations

import attrs

from ninfer.model.config import VisionConfig
from ninfer.model.weights import Loader
from ninfer.ops.verbs import Array
from ninfer.ops.vision_verbs import Affine, Linear, Patches, VisionVerbs


@attrs.frozen
class Block:
    """One transformer block."""

    norm1: Affine
    query: Linear
    key: Linear
    value: Linear
    output: Linear
    norm2: Affine
    fc1: Linear
    fc2: Linear


@attrs.frozen
class Tower:
    """The whole tower."""

    config: VisionConfig
    patch: Linear
    positions: Array
    blocks: tuple[Block, ...]
    merger_norm: Affine
    merger_fc1: Linear
    merger_fc2: Linear


def encode(verbs: VisionVerbs, tower: Tower, pixels: Array, shape: Patches) -> Array:
    """Turn one item's patches into feature rows.  -> (shape.tokens, text hidden)."""
    return read(verbs, tower, verbs.embed_patches(pixels, tower.patch, tower.positions, shape), shape)


def read(verbs: VisionVerbs, tower: Tower, x: Array, shape: Patches) -> Array:
    """Turn embedded patches into feature rows: everything that needs no pixels."""
    for w in tower.blocks:
        x = _look(verbs, w, x, tower.config.heads, shape)
        x = verbs.linear_add(verbs.normed_gelu(x, w.norm2, w.fc1), w.fc2, x)
    joined = verbs.merge(x, tower.merger_norm, shape)
    return verbs.linear(verbs.linear_gelu(joined, tower.merger_fc1), tower.merger_fc2)


def _look(verbs: VisionVerbs, w: Block, x: Array, heads: int, shape: Patches) -> Array:
    """The half of a block that attends; a function of its own, so that its arrays end with it."""
    q, k, v = verbs.normed(x, w.norm1, (w.query, w.key, w.value))
    return verbs.linear_add(verbs.see(q, k, v, heads, shape), w.output, x)


def load_tower(loader: Loader, config: VisionConfig) -> Tower:
    """Load the vision component."""
    (patch,) = _linears(loader, "vision/patch_embedding")
    fc1, fc2 = (_linears(loader, f"vision/merger/{name}")[0] for name in ("fc1", "fc2"))
    return Tower(
        config=config,
        patch=patch,
        positions=loader.vector("vision/position_embedding"),
        blocks=tuple(_block(loader, f"vision/layers/{i}") for i in range(config.depth)),
        merger_norm=_affine(loader, "vision/merger/norm"),
        merger_fc1=fc1,
        merger_fc2=fc2,
    )


def _block(loader: Loader, at: str) -> Block:
    query, key, value = _linears(loader, *(f"{at}/attention/{name}" for name in ("query", "key", "value")))
    (output,) = _linears(loader, f"{at}/attention/output")
    fc1, fc2 = (_linears(loader, f"{at}/mlp/{name}")[0] for name in ("fc1", "fc2"))
    norm1, norm2 = _affine(loader, f"{at}/norm1"), _affine(loader, f"{at}/norm2")
    return Block(norm1, query, key, value, output, norm2, fc1, fc2)


def _linears(loader: Loader, *names: str) -> tuple[Linear, ...]:
    weights = loader.weights(*names)
    return tuple(
        Linear(weight, loader.vector(f"{name}_bias")) for name, weight in zip(names, weights, strict=True)
    )


def _affine(loader: Loader, at: str) -> Affine:
    return Affine(loader.vector(f"{at}_weight"), loader.vector(f"{at}_bias"))
