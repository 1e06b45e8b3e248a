"""Which parameters a component has, and in which shapes.

Owns the logical names; the loaders, the converter and the synthetic builder all read them here.
The one thing a reader would get wrong: names of experts are kept once, with ``*`` for the expert's
number, so that an inventory stays small whatever a config claims.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import attrs

from ninfer.artifact.manifest import Shape
from ninfer.model.config import DraftConfig, LayerKind, TextConfig, VisionConfig

_EXPERT = re.compile(r"/experts/(0|[1-9][0-9]{0,9})/")


@attrs.frozen
class Inventory:
    """Logical names with their shapes; ``*`` in a name stands for each of ``experts`` numbers."""

    shapes: dict[str, Shape]
    experts: int = 0

    def shape(self, name: str) -> Shape | None:
        """Return the expected shape of a parameter, or None if it has no such parameter."""
        match = _EXPERT.search(name)
        if match is None:
            return self.shapes.get(name) if "*" not in name else None
        if int(match[1]) >= self.experts:
            return None
        return self.shapes.get(_EXPERT.sub("/experts/*/", name, count=1))

    def names(self) -> Iterator[str]:
        """Every logical name, experts spelled out."""
        for name in self.shapes:
            if "*" not in name:
                yield name
                continue
            for expert in range(self.experts):
                yield name.replace("*", str(expert))


def _attention(c: TextConfig) -> dict[str, Shape]:
    q, kv = c.heads * c.head_dim, c.kv_heads * c.head_dim
    shapes: dict[str, Shape] = {"query": (q, c.hidden), "key": (kv, c.hidden), "gate": (q, c.hidden)}
    shapes |= {"value": (kv, c.hidden), "query_norm": (c.head_dim,), "key_norm": (c.head_dim,)}
    return {f"attention/{name}": shape for name, shape in shapes.items()} | {
        "attention/output": (c.hidden, q)
    }


def _delta_net(c: TextConfig) -> dict[str, Shape]:
    h, heads = c.hidden, c.value_heads
    shapes: dict[str, Shape] = {"a_log": (heads,), "dt_bias": (heads,)}
    shapes |= {"convolution": (c.conv_taps, c.conv_channels)}
    shapes |= {"a_projection": (heads, h), "b_projection": (heads, h)}
    shapes |= {"query": (c.key_width, h), "key": (c.key_width, h)}
    shapes |= {"value": (c.value_width, h), "z": (c.value_width, h)}
    shapes |= {"norm": (c.value_dim,), "output": (h, c.value_width)}
    return {f"gdn/{name}": shape for name, shape in shapes.items()}


def _swiglu(prefix: str, hidden: int, width: int) -> dict[str, Shape]:
    return {
        f"{prefix}/gate": (width, hidden),
        f"{prefix}/up": (width, hidden),
        f"{prefix}/down": (hidden, width),
    }


def _feed_forward(c: TextConfig) -> dict[str, Shape]:
    if c.moe is None:
        return _swiglu("mlp", c.hidden, c.intermediate)
    router: dict[str, Shape] = {
        "moe/router": (c.moe.experts, c.hidden),
        "moe/shared_score": (1, c.hidden),
    }
    experts = _swiglu("moe/experts/*", c.hidden, c.moe.width)
    return router | experts | _swiglu("moe/shared", c.hidden, c.moe.shared_width)


def layer(c: TextConfig, kind: LayerKind) -> dict[str, Shape]:
    """Shapes of one decoder layer, names relative to the layer."""
    norms: dict[str, Shape] = {"input_norm": (c.hidden,), "post_attention_norm": (c.hidden,)}
    mixer = _attention(c) if kind == "full_attention" else _delta_net(c)
    return norms | mixer | _feed_forward(c)


def _below(prefix: str, shapes: dict[str, Shape]) -> dict[str, Shape]:
    return {f"{prefix}/{name}": shape for name, shape in shapes.items()}


def text(c: TextConfig) -> Inventory:
    """The decoder: embedding, layers, final norm, head (an alias of the embedding when tied)."""
    shapes: dict[str, Shape] = {"text/token_embedding": (c.vocab, c.hidden)}
    for index, kind in enumerate(c.layer_kinds):
        shapes |= _below(f"text/layers/{index}", layer(c, kind))
    shapes |= {"text/final_norm": (c.hidden,), "text/output_head": (c.vocab, c.hidden)}
    return Inventory(shapes, c.moe.experts if c.moe else 0)


def mtp(c: TextConfig) -> Inventory:
    """The multi-token-prediction layer."""
    stem: dict[str, Shape] = {"mtp/input_projection": (c.hidden, 2 * c.hidden)}
    stem |= {f"mtp/{name}_norm": (c.hidden,) for name in ("embedding", "hidden", "final")}
    return Inventory(
        stem | _below("mtp/layers/0", layer(c, "full_attention")), c.moe.experts if c.moe else 0
    )


def proposal(c: TextConfig, rows: int | None) -> Inventory:
    """The drafting head: ``rows`` of the vocabulary and their ids, or all of it (None)."""
    if rows is None:
        return Inventory({"proposal/head": (c.vocab, c.hidden)})
    return Inventory({"proposal/head": (rows, c.hidden), "proposal/token_ids": (rows,)})


def vision(c: VisionConfig) -> Inventory:
    """The vision tower and its merger."""
    h, patch = c.hidden, 3 * c.temporal_patch * c.patch * c.patch
    shapes: dict[str, Shape] = {"patch_embedding": (h, patch), "patch_embedding_bias": (h,)}
    shapes |= {"position_embedding": (c.positions, h)}
    block: dict[str, Shape] = {f"norm{n}_{part}": (h,) for n in (1, 2) for part in ("weight", "bias")}
    for name in ("query", "key", "value", "output"):
        block |= {f"attention/{name}": (h, h), f"attention/{name}_bias": (h,)}
    block |= {"mlp/fc1": (c.intermediate, h), "mlp/fc1_bias": (c.intermediate,)}
    block |= {"mlp/fc2": (h, c.intermediate), "mlp/fc2_bias": (h,)}
    for index in range(c.depth):
        shapes |= _below(f"layers/{index}", block)
    wide = h * c.merge * c.merge
    shapes |= {"merger/norm_weight": (h,), "merger/norm_bias": (h,)}
    shapes |= {"merger/fc1": (wide, wide), "merger/fc1_bias": (wide,)}
    shapes |= {"merger/fc2": (c.out_hidden, wide), "merger/fc2_bias": (c.out_hidden,)}
    return Inventory(_below("vision", shapes))


def draft(c: DraftConfig, component: str) -> Inventory:
    """A block drafter; ``component`` is dflash or dflash2."""
    h, q, kv = c.hidden, c.heads * c.head_dim, c.kv_heads * c.head_dim
    shapes: dict[str, Shape] = {"feature_projection": (h, h * len(c.target_layers))}
    shapes |= {"context_norm": (h,), "final_norm": (h,)}
    block: dict[str, Shape] = {"input_norm": (h,), "post_attention_norm": (h,)}
    block |= {"attention/query": (q, h), "attention/output": (h, q)}
    block |= {f"attention/{name}": (kv, h) for name in ("key", "value", "context_key", "context_value")}
    block |= {"attention/query_norm": (c.head_dim,), "attention/key_norm": (c.head_dim,)}
    block |= _swiglu("mlp", h, c.intermediate)
    if c.conv_taps:
        for name in ("attention_conv", "mlp_conv"):
            block[f"{name}/base_kernel"] = (2, c.conv_taps, h)
            block[f"{name}/kernel_projection"] = (2 * c.conv_taps * (h // c.conv_group), h)
        shapes["candidate_selector/hidden_projection"] = (c.selector_rank, h)
        for name in ("predecessor", "successor"):
            shapes[f"candidate_selector/{name}_codebook"] = (c.vocab, c.selector_rank)
    for index in range(c.layers):
        shapes |= _below(f"layers/{index}", block)
    return Inventory(_below(component, shapes))
