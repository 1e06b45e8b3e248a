"""Where each logical parameter comes from in a Hugging Face checkpoint.

Owns the tensor names and the row arithmetic: which rows of which tensor make a parameter.
The one thing a reader would get wrong: ``q_proj`` rows are per head [query | gate], so query and gate
are interleaved slices of one tensor, not its halves.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import attrs

from ninfer.artifact.manifest import Shape
from ninfer.model.config import DraftConfig, TextConfig, VisionConfig

Span = tuple[int, int]


@attrs.frozen
class Source:
    """Rows of one tensor seen as a matrix; ``spans`` in order, None for all of them.

    ``shape`` is what the checkpoint must hold.  A row has ``columns`` elements: the last axis unless said
    otherwise, and one element where there is only one axis.  ``transposed`` swaps a small matrix's axes.
    """

    tensor: str
    shape: Shape
    spans: tuple[Span, ...] | None = None
    columns: int = attrs.field()
    transposed: bool = False

    @columns.default
    def _last_axis(self) -> int:
        return self.shape[-1] if len(self.shape) > 1 else 1

    @property
    def rows(self) -> tuple[Span, ...]:
        """The spans, spelled out."""
        return self.spans if self.spans is not None else ((0, math.prod(self.shape) // self.columns),)


Sources = dict[str, Source]


def merge(sources: Iterable[Source]) -> list[Source]:
    """Join neighbouring row spans of one tensor, so that a fused tensor is read in one sweep."""
    merged: list[Source] = []
    for source in sources:
        last = merged[-1] if merged else None
        joins = last is not None and last.tensor == source.tensor and not source.transposed
        if last is not None and joins and last.rows[-1][1] == source.rows[0][0]:
            begin, end = last.rows[-1][0], source.rows[0][1]
            spans = (*last.rows[:-1], (begin, end), *source.rows[1:])
            merged[-1] = attrs.evolve(last, spans=spans)
        else:
            merged.append(source)
    return merged


def _attention(c: TextConfig, prefix: str) -> Sources:
    h, d, q, kv = c.hidden, c.head_dim, c.heads * c.head_dim, c.kv_heads * c.head_dim
    fused = Source(f"{prefix}q_proj.weight", (2 * q, h))
    heads = range(c.heads)
    return {
        "attention/query": attrs.evolve(fused, spans=tuple((2 * d * i, 2 * d * i + d) for i in heads)),
        "attention/key": Source(f"{prefix}k_proj.weight", (kv, h)),
        "attention/gate": attrs.evolve(fused, spans=tuple((2 * d * i + d, 2 * d * (i + 1)) for i in heads)),
        "attention/value": Source(f"{prefix}v_proj.weight", (kv, h)),
        "attention/output": Source(f"{prefix}o_proj.weight", (h, q)),
        "attention/query_norm": Source(f"{prefix}q_norm.weight", (d,)),
        "attention/key_norm": Source(f"{prefix}k_norm.weight", (d,)),
    }


def _delta_net(c: TextConfig, prefix: str) -> Sources:
    h, k, v = c.hidden, c.key_width, c.value_width
    fused = Source(f"{prefix}in_proj_qkv.weight", (2 * k + v, h))
    return {
        "gdn/query": attrs.evolve(fused, spans=((0, k),)),
        "gdn/key": attrs.evolve(fused, spans=((k, 2 * k),)),
        "gdn/value": attrs.evolve(fused, spans=((2 * k, 2 * k + v),)),
        "gdn/z": Source(f"{prefix}in_proj_z.weight", (v, h)),
        "gdn/a_projection": Source(f"{prefix}in_proj_a.weight", (c.value_heads, h)),
        "gdn/b_projection": Source(f"{prefix}in_proj_b.weight", (c.value_heads, h)),
        "gdn/convolution": Source(
            f"{prefix}conv1d.weight", (c.conv_channels, 1, c.conv_taps), transposed=True
        ),
        "gdn/a_log": Source(f"{prefix}A_log", (c.value_heads,)),
        "gdn/dt_bias": Source(f"{prefix}dt_bias", (c.value_heads,)),
        "gdn/norm": Source(f"{prefix}norm.weight", (c.value_dim,)),
        "gdn/output": Source(f"{prefix}out_proj.weight", (h, v)),
    }


def _swiglu(name: str, prefix: str, hidden: int, width: int) -> Sources:
    return {
        f"{name}/gate": Source(f"{prefix}gate_proj.weight", (width, hidden)),
        f"{name}/up": Source(f"{prefix}up_proj.weight", (width, hidden)),
        f"{name}/down": Source(f"{prefix}down_proj.weight", (hidden, width)),
    }


def _feed_forward(c: TextConfig, prefix: str) -> Sources:
    if c.moe is None:
        return _swiglu("mlp", prefix, c.hidden, c.intermediate)
    h, e, w = c.hidden, c.moe.experts, c.moe.width
    gate_up = Source(f"{prefix}experts.gate_up_proj", (e, 2 * w, h))
    down = Source(f"{prefix}experts.down_proj", (e, h, w))
    found = {
        "moe/router": Source(f"{prefix}gate.weight", (e, h)),
        "moe/shared_score": Source(f"{prefix}shared_expert_gate.weight", (1, h)),
    }
    for i in range(e):
        start = 2 * w * i
        found[f"moe/experts/{i}/gate"] = attrs.evolve(gate_up, spans=((start, start + w),))
        found[f"moe/experts/{i}/up"] = attrs.evolve(gate_up, spans=((start + w, start + 2 * w),))
        found[f"moe/experts/{i}/down"] = attrs.evolve(down, spans=((h * i, h * (i + 1)),))
    return found | _swiglu("moe/shared", f"{prefix}shared_expert.", h, c.moe.shared_width)


def _layer(c: TextConfig, full: bool, prefix: str) -> Sources:
    norms = {
        "input_norm": Source(f"{prefix}input_layernorm.weight", (c.hidden,)),
        "post_attention_norm": Source(f"{prefix}post_attention_layernorm.weight", (c.hidden,)),
    }
    mixer = _attention(c, f"{prefix}self_attn.") if full else _delta_net(c, f"{prefix}linear_attn.")
    return norms | mixer | _feed_forward(c, f"{prefix}mlp.")


def _below(prefix: str, found: Sources) -> Sources:
    return {f"{prefix}/{name}": source for name, source in found.items()}


def text(c: TextConfig, prefix: str) -> Sources:
    """The decoder; ``prefix`` ends in a dot.  A tied head has no tensor of its own."""
    table = (c.vocab, c.hidden)
    found = {"text/token_embedding": Source(f"{prefix}embed_tokens.weight", table)}
    for i, kind in enumerate(c.layer_kinds):
        found |= _below(f"text/layers/{i}", _layer(c, kind == "full_attention", f"{prefix}layers.{i}."))
    found["text/final_norm"] = Source(f"{prefix}norm.weight", (c.hidden,))
    if not c.tied_embeddings:
        found["text/output_head"] = Source("lm_head.weight", table)
    return found


def mtp(c: TextConfig) -> Sources:
    """The multi-token-prediction layer; its projection takes (embedding, hidden)."""
    found = {
        "mtp/input_projection": Source("mtp.fc.weight", (c.hidden, 2 * c.hidden)),
        "mtp/embedding_norm": Source("mtp.pre_fc_norm_embedding.weight", (c.hidden,)),
        "mtp/hidden_norm": Source("mtp.pre_fc_norm_hidden.weight", (c.hidden,)),
        "mtp/final_norm": Source("mtp.norm.weight", (c.hidden,)),
    }
    return found | _below("mtp/layers/0", _layer(c, True, "mtp.layers.0."))


def _linear(
    name: str, tensor: str, rows: int, columns: int, spans: tuple[Span, ...] | None = None
) -> Sources:
    return {
        name: Source(f"{tensor}.weight", (rows, columns), spans),
        f"{name}_bias": Source(f"{tensor}.bias", (rows,)),
    }


def _vision_block(c: VisionConfig, prefix: str) -> Sources:
    h = c.hidden
    found: Sources = {}
    for n in (1, 2):
        for part in ("weight", "bias"):
            found[f"norm{n}_{part}"] = Source(f"{prefix}norm{n}.{part}", (h,))
    for i, name in enumerate(("query", "key", "value")):
        rows = ((h * i, h * (i + 1)),)
        found[f"attention/{name}"] = Source(f"{prefix}attn.qkv.weight", (3 * h, h), rows)
        found[f"attention/{name}_bias"] = Source(f"{prefix}attn.qkv.bias", (3 * h,), rows)
    found |= _linear("attention/output", f"{prefix}attn.proj", h, h)
    found |= _linear("mlp/fc1", f"{prefix}mlp.linear_fc1", c.intermediate, h)
    return found | _linear("mlp/fc2", f"{prefix}mlp.linear_fc2", h, c.intermediate)


def vision(c: VisionConfig) -> Sources:
    """The vision tower; patch columns run channel, time, y, x, as stored."""
    h, p, wide = c.hidden, "model.visual.", c.hidden * c.merge * c.merge
    patch = (h, 3, c.temporal_patch, c.patch, c.patch)
    columns = math.prod(patch[1:])
    found = {
        "patch_embedding": Source(f"{p}patch_embed.proj.weight", patch, columns=columns),
        "patch_embedding_bias": Source(f"{p}patch_embed.proj.bias", (h,)),
        "position_embedding": Source(f"{p}pos_embed.weight", (c.positions, h)),
        "merger/norm_weight": Source(f"{p}merger.norm.weight", (h,)),
        "merger/norm_bias": Source(f"{p}merger.norm.bias", (h,)),
    }
    for i in range(c.depth):
        found |= _below(f"layers/{i}", _vision_block(c, f"{p}blocks.{i}."))
    found |= _linear("merger/fc1", f"{p}merger.linear_fc1", wide, wide)
    found |= _linear("merger/fc2", f"{p}merger.linear_fc2", c.out_hidden, wide)
    return _below("vision", found)


def dflash(c: DraftConfig) -> Sources:
    """The block drafter; context keys and values are the layer's own projections."""
    h, q, kv = c.hidden, c.heads * c.head_dim, c.kv_heads * c.head_dim
    found = {
        "feature_projection": Source("fc.weight", (h, h * len(c.target_layers))),
        "context_norm": Source("hidden_norm.weight", (h,)),
        "final_norm": Source("norm.weight", (h,)),
    }
    for i in range(c.layers):
        p = f"layers.{i}."
        found |= _below(f"layers/{i}", {
            "input_norm": Source(f"{p}input_layernorm.weight", (h,)),
            "post_attention_norm": Source(f"{p}post_attention_layernorm.weight", (h,)),
            "attention/query": Source(f"{p}self_attn.q_proj.weight", (q, h)),
            "attention/key": Source(f"{p}self_attn.k_proj.weight", (kv, h)),
            "attention/value": Source(f"{p}self_attn.v_proj.weight", (kv, h)),
            "attention/output": Source(f"{p}self_attn.o_proj.weight", (h, q)),
            "attention/query_norm": Source(f"{p}self_attn.q_norm.weight", (c.head_dim,)),
            "attention/key_norm": Source(f"{p}self_attn.k_norm.weight", (c.head_dim,)),
        } | _swiglu("mlp", f"{p}mlp.", h, c.intermediate))  # fmt: skip
    return _below("dflash", found)
