"""The weights of a decoder as frozen values, and how they are read by logical name.

Owns the mapping from roles (``Attention.query``) to logical parameter names
(``text/layers/3/attention/query``).  Matrices come from a backend's ``Loader``, which decides how
they are held; weights that one verb reads together are asked for together, so that a backend may
store them side by side.

The one thing a reader would get wrong: nothing here checks formats or copies bytes; a ``Source``
(an artifact) knows the formats, a ``Loader`` knows the device.
"""

from __future__ import annotations

import itertools
from typing import Any, Protocol

import attrs

from ninfer.model.config import TextConfig
from ninfer.ops.verbs import Array, Weight


class Source(Protocol):
    """Where parameters come from: an artifact, or a checkpoint in tests."""

    def decode(self, name: str) -> Any:
        """Return parameter ``name`` as a float32 (or int32) ndarray in its logical shape."""

    def has(self, name: str) -> bool:
        """Whether ``name`` is bound."""


class Loader(Protocol):
    """Turns parameter names into what a backend's verbs accept."""

    def has(self, name: str) -> bool:
        """Whether the parameter exists."""

    def weights(self, *names: str) -> tuple[Weight, ...]:
        """Load matrices that one verb reads together (same columns)."""

    def table(self, name: str) -> Weight:
        """Load an embedding, whose rows are looked up; it also serves as the head of a tied model."""

    def stack(self, names: tuple[str, ...]) -> Weight:
        """Load matrices of equal shape as one, rows of the first before rows of the second."""

    def vector(self, name: str) -> Array:
        """Load a small parameter (norm, bias, convolution) as a dense device array."""

    def indices(self, name: str) -> Array:
        """Load an int32 parameter."""


@attrs.frozen
class Attention:
    """Gated full attention.  ``query`` and ``gate`` are apart (checkpoints interleave them per head)."""

    norm: Array
    query: Weight
    gate: Weight
    key: Weight
    value: Weight
    query_norm: Array
    key_norm: Array
    output: Weight


@attrs.frozen
class Delta:
    """Gated DeltaNet.  ``convolution`` is (taps, channels in q, k, v order)."""

    norm: Array
    query: Weight
    key: Weight
    value: Weight
    z: Weight
    a: Weight
    b: Weight
    convolution: Array
    a_log: Array
    dt_bias: Array
    inner_norm: Array
    output: Weight


@attrs.frozen
class Dense:
    """SwiGLU feed-forward."""

    norm: Array
    gate: Weight
    up: Weight
    down: Weight


@attrs.frozen
class Sparse:
    """Mixture of experts: ``gate``, ``up`` and ``down`` are stacked by expert."""

    norm: Array
    per_token: int
    router: Weight
    shared_score: Weight
    gate: Weight
    up: Weight
    down: Weight
    shared: tuple[Weight, Weight, Weight]


@attrs.frozen
class Layer:
    """One decoder layer; ``index`` counts layers of the same mixer kind."""

    index: int
    mixer: Attention | Delta
    feed: Dense | Sparse


@attrs.frozen
class Proposal:
    """A head over some rows of the vocabulary; ``ids`` maps its rows to token ids (None: all rows)."""

    head: Weight
    ids: Array | None


@attrs.frozen
class Decoder:
    """The text model."""

    config: TextConfig
    embedding: Weight
    layers: tuple[Layer, ...]
    final_norm: Array
    head: Weight
    proposal: Proposal | None = None


@attrs.frozen
class Mtp:
    """The multi-token prediction head: one attention layer with its own cache."""

    embedding_norm: Array
    hidden_norm: Array
    input_projection: Weight
    layer: Layer
    final_norm: Array


def norms_behind(decoder: Decoder) -> list[tuple[Weight, Array]]:
    """Matrices whose products add to the residual stream, with the norm that begins the next product."""
    found = []
    for layer, behind in itertools.zip_longest(decoder.layers, decoder.layers[1:]):
        if isinstance(layer.feed, Dense):
            found.append((layer.mixer.output, layer.feed.norm))
            found += [(layer.feed.down, behind.mixer.norm)] if behind else []
    return found


def load_decoder(loader: Loader, config: TextConfig) -> Decoder:
    """Load the text component, without its drafting head."""
    embedding = loader.table("text/token_embedding")
    tied = config.tied_embeddings and not loader.has("text/output_head")
    head = embedding if tied else loader.weights("text/output_head")[0]
    counts = {"full_attention": 0, "linear_attention": 0}
    layers = []
    for number, kind in enumerate(config.layer_kinds):
        layers.append(load_layer(loader, config, f"text/layers/{number}", kind, counts[kind]))
        counts[kind] += 1
    return Decoder(
        config=config,
        embedding=embedding,
        layers=tuple(layers),
        final_norm=loader.vector("text/final_norm"),
        head=head,
    )


def load_proposal(loader: Loader) -> Proposal:
    """Load the drafting head; without an id map its rows are token ids."""
    (head,) = loader.weights("proposal/head")
    ids = loader.indices("proposal/token_ids") if loader.has("proposal/token_ids") else None
    return Proposal(head, ids)


def load_mtp(loader: Loader, config: TextConfig) -> Mtp:
    """Load the mtp component; its cache is one attention layer behind the decoder's."""
    (projection,) = loader.weights("mtp/input_projection")
    index = config.layer_kinds.count("full_attention")
    return Mtp(
        embedding_norm=loader.vector("mtp/embedding_norm"),
        hidden_norm=loader.vector("mtp/hidden_norm"),
        input_projection=projection,
        layer=load_layer(loader, config, "mtp/layers/0", "full_attention", index),
        final_norm=loader.vector("mtp/final_norm"),
    )


def load_layer(loader: Loader, config: TextConfig, at: str, kind: str, index: int) -> Layer:
    """Load one decoder layer under the name ``at``."""
    mixer = load_attention(loader, at) if kind == "full_attention" else load_delta(loader, at)
    feed = load_sparse(loader, at, config) if config.moe else load_dense(loader, at)
    return Layer(index, mixer, feed)


def load_attention(loader: Loader, at: str) -> Attention:
    """Load a full-attention mixer."""
    names = ("query", "gate", "key", "value")
    query, gate, key, value = loader.weights(*(f"{at}/attention/{name}" for name in names))
    (output,) = loader.weights(f"{at}/attention/output")
    return Attention(
        norm=loader.vector(f"{at}/input_norm"),
        query=query,
        gate=gate,
        key=key,
        value=value,
        query_norm=loader.vector(f"{at}/attention/query_norm"),
        key_norm=loader.vector(f"{at}/attention/key_norm"),
        output=output,
    )


def load_delta(loader: Loader, at: str) -> Delta:
    """Load a Gated DeltaNet mixer."""
    names = ("query", "key", "value", "z", "a_projection", "b_projection")
    query, key, value, z, a, b = loader.weights(*(f"{at}/gdn/{name}" for name in names))
    (output,) = loader.weights(f"{at}/gdn/output")
    return Delta(
        norm=loader.vector(f"{at}/input_norm"),
        query=query,
        key=key,
        value=value,
        z=z,
        a=a,
        b=b,
        convolution=loader.vector(f"{at}/gdn/convolution"),
        a_log=loader.vector(f"{at}/gdn/a_log"),
        dt_bias=loader.vector(f"{at}/gdn/dt_bias"),
        inner_norm=loader.vector(f"{at}/gdn/norm"),
        output=output,
    )


def load_dense(loader: Loader, at: str) -> Dense:
    """Load a dense feed-forward."""
    gate, up = loader.weights(f"{at}/mlp/gate", f"{at}/mlp/up")
    (down,) = loader.weights(f"{at}/mlp/down")
    return Dense(loader.vector(f"{at}/post_attention_norm"), gate, up, down)


def load_sparse(loader: Loader, at: str, config: TextConfig) -> Sparse:
    """Load a mixture of experts."""
    if config.moe is None:
        raise ValueError("load_sparse: the config has no experts")
    router, score = loader.weights(f"{at}/moe/router", f"{at}/moe/shared_score")
    names = range(config.moe.experts)
    gate, up, down = (
        loader.stack(tuple(f"{at}/moe/experts/{e}/{part}" for e in names))
        for part in ("gate", "up", "down")
    )
    shared_gate, shared_up = loader.weights(f"{at}/moe/shared/gate", f"{at}/moe/shared/up")
    (shared_down,) = loader.weights(f"{at}/moe/shared/down")
    return Sparse(
        norm=loader.vector(f"{at}/post_attention_norm"),
        per_token=config.moe.per_token,
        router=router,
        shared_score=score,
        gate=gate,
        up=up,
        down=down,
        shared=(shared_gate, shared_up, shared_down),
    )
