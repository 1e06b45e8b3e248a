"""The Qwen3.5/3.6/3.8 hybrid decoder, dense and sparse: its mathematics, once, in verbs.

Runs unchanged on every backend and inside graph capture: no host reads of device arrays, no
branching on data.  The one thing a reader would get wrong: ``Layer.index`` counts layers of the
same kind (it names a KV cache or a recurrent state), not decoder layers.
"""

from __future__ import annotations

from ninfer.model.weights import Attention, Decoder, Delta, Dense, Layer, Sparse
from ninfer.ops.verbs import Array, Step, Verbs


def forward(verbs: Verbs, model: Decoder, step: Step) -> Array:
    """Run all layers.  -> (T, H) final-normed hidden states."""
    x = verbs.embed(model.embedding, step)
    norms = (*(layer.mixer.norm for layer in model.layers[1:]), None)
    for layer, norm in zip(model.layers, norms, strict=True):
        x = block(verbs, layer, x, step, norm)
    return verbs.final_norm(x, model.final_norm)


def block(verbs: Verbs, layer: Layer, x: Array, step: Step, norm: Array | None = None) -> Array:
    """One decoder layer: mixer, then feed-forward, both with residual; ``norm`` is the next.  -> (T, H)."""
    feed = layer.feed
    between = feed.norm if isinstance(feed, Dense) else None
    if isinstance(layer.mixer, Attention):
        x = attention(verbs, layer.mixer, layer.index, x, step, between)
    else:
        x = delta(verbs, layer.mixer, layer.index, x, step, between)
    return dense(verbs, feed, x, norm) if isinstance(feed, Dense) else sparse(verbs, feed, x, norm)


def attention(verbs: Verbs, w: Attention, index: int, x: Array, step: Step, norm: Array | None) -> Array:
    """Gated full attention with residual."""
    q, gate, k, v = verbs.norm_project(x, w.norm, (w.query, w.gate, w.key, w.value))
    y = verbs.attend(q, gate, k, v, w.query_norm, w.key_norm, index, step)
    return verbs.project_add(y, w.output, x, norm)


def delta(verbs: Verbs, w: Delta, index: int, x: Array, step: Step, norm: Array | None) -> Array:
    """Gated DeltaNet with residual."""
    q, k, v, z, a, b = verbs.norm_project(x, w.norm, (w.query, w.key, w.value, w.z, w.a, w.b))
    y = verbs.delta_rule((q, k, v), z, a, b, w.convolution, w.a_log, w.dt_bias, w.inner_norm, index, step)
    return verbs.project_add(y, w.output, x, norm)


def dense(verbs: Verbs, w: Dense, x: Array, norm: Array | None) -> Array:
    """SwiGLU feed-forward with residual."""
    return verbs.project_add(verbs.norm_swiglu(x, w.norm, w.gate, w.up), w.down, x, norm)


def sparse(verbs: Verbs, w: Sparse, x: Array, norm: Array | None) -> Array:
    """Mixture of experts with the shared expert and residual."""
    route = verbs.norm_route(x, w.norm, w.router, w.shared_score, w.per_token)
    y = verbs.experts_swiglu(route, w.gate, w.up)
    return verbs.experts_add(y, route, w.down, w.shared, x, norm)
