"""The Qwen3.5/3.6/3.8 hybrid decoder, dense and sparse: its mathematics, once, in verbs.

Runs unchanged on every backend and inside graph capture: no host reads of device arrays, no
branching on data.  The one thing a reader would get wrong: ``Layer.index`` counts layers of the
same kind (it names a KV cache or a recurrent state), not decoder layers.
"""

from __future__ import annotations

from ninfer.model.weights import Attention, Decoder, Delta, Dense, Layer, Sparse
from ninfer.ops.verbs import Array, Step, Verbs


def forward(verbs: Verbs, model: Decoder, step: Step, wanted: Step | None = None) -> Array:
    """Run all layers.  -> (T, H) final-normed hidden states, of the ``wanted`` rows where that is given.

    ``wanted`` is the last rows of ``step`` as a step of their own: nobody reads the others' hidden states,
    so the last layer takes of them no more than its cache or its state needs.
    """
    x = verbs.embed(model.embedding, step)
    *before, last = model.layers
    for layer in before:
        x = block(verbs, layer, x, step)
    return verbs.final_norm(block(verbs, last, x, step, wanted), model.final_norm)


def block(verbs: Verbs, layer: Layer, x: Array, step: Step, wanted: Step | None = None) -> Array:
    """One decoder layer: mixer, then feed-forward, both with residual.  -> (T, H), or ``wanted`` rows."""
    if isinstance(layer.mixer, Attention):
        x = attention(verbs, layer.mixer, layer.index, x, step, wanted)
    else:
        x = delta(verbs, layer.mixer, layer.index, x, step, wanted)
    if isinstance(layer.feed, Dense):
        return dense(verbs, layer.feed, x)
    return sparse(verbs, layer.feed, x)


def attention(
    verbs: Verbs, w: Attention, index: int, x: Array, step: Step, wanted: Step | None = None
) -> Array:
    """Gated full attention with residual, of the ``wanted`` rows where that is given."""
    if wanted is None:
        q, gate, k, v = verbs.norm_project(x, w.norm, (w.query, w.gate, w.key, w.value))
        y = verbs.attend(q, gate, k, v, w.query_norm, w.key_norm, index, step)
    else:
        q, gate, k, v = verbs.norm_project_last(x, w.norm, (w.query, w.gate), (w.key, w.value), wanted)
        verbs.remember(k, v, w.key_norm, index, step)
        x, y = verbs.last_of(x, wanted), verbs.recall(q, gate, w.query_norm, index, wanted)
    return verbs.project_add(y, w.output, x)


def delta(verbs: Verbs, w: Delta, index: int, x: Array, step: Step, wanted: Step | None = None) -> Array:
    """Gated DeltaNet with residual, of the ``wanted`` rows where that is given."""
    q, k, v, z, a, b = verbs.norm_project(x, w.norm, (w.query, w.key, w.value, w.z, w.a, w.b))
    y = verbs.delta_rule((q, k, v), z, a, b, w.convolution, w.a_log, w.dt_bias, w.inner_norm, index, step)
    if wanted is not None:
        x, y = verbs.last_of(x, wanted), verbs.last_of(y, wanted)
    return verbs.project_add(y, w.output, x)


def dense(verbs: Verbs, w: Dense, x: Array) -> Array:
    """SwiGLU feed-forward with residual."""
    return verbs.project_add(verbs.norm_swiglu(x, w.norm, w.gate, w.up), w.down, x)


def sparse(verbs: Verbs, w: Sparse, x: Array) -> Array:
    """Mixture of experts with the shared expert and residual."""
    route = verbs.norm_route(x, w.norm, w.router, w.shared_score, w.per_token)
    y = verbs.experts_swiglu(route, w.gate, w.up)
    return verbs.experts_add(y, route, w.down, w.shared, x)
