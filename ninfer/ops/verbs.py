"""The verbs: every operation a model may use, one Protocol with two bodies.

``on_numpy`` is the readable float32 reference; ``on_cuda`` is held against it.  Verbs are cut at the
grain of fused kernels, so that ``model/*`` is written once and neither backend needs a second
graph.  Arrays are opaque: a model only passes them on.

Conventions
    T        rows (tokens) of this pass, S sequences laid end to end, H hidden width
    x        (T, H) residual stream; verbs that "add" return the new residual stream
    Weight   a matrix (N, K): y = x @ W.T, stored in any artifact format
    Step     what the rows are: see below; all its arrays live on the device

A row's result never depends on other rows, on its lane or on T: reduction order per row is fixed.

The one thing a reader would get wrong: text norms multiply by (1 + w), the Gated DeltaNet's
internal norm by w; each verb says which it applies.
"""

from __future__ import annotations

from typing import Any, Protocol

import attrs

Array = Any  # numpy.ndarray, or the CUDA backend's device array


@attrs.frozen
class Weight:
    """A matrix (rows N, columns K) in its storage format.

    ``format`` is an artifact format name (bf16, fp8_e4m3fn_row_bf16, q4_g64_fp16, ... nvfp4, fp32).
    ``data`` is backend-private: NumPy holds a decoded float32 matrix, CUDA the planes as stored.
    """

    rows: int
    columns: int
    format: str
    data: Any


@attrs.frozen
class Step:
    """One forward pass over T rows of S sequences.

    kind       "prefill" (S = 1, chunk form allowed), "decode" (one row a sequence),
               "tail" (a few rows of one sequence, computed as decode rows are),
               "verify" (several rows a sequence; recurrent state is recorded, not written)
    ids        (T,)    int32 token ids
    positions  (3, T)  int32 temporal, height and width position of each row
    offsets    (S+1,)  int32 rows of sequence s are offsets[s] .. offsets[s+1]-1
    frontiers  (S,)    int32 tokens of sequence s that have state before this pass
    tables     (S, P)  int32 KV pages of sequence s
    slots      (S,)    int32 StateImage slot of sequence s
    embeds     rows of media features that replace token embeddings, or None:
               (row indices (M,) int32, features (M, H))
    lanes      (S,)    int32 lane of sequence s: "verify" leaves its record there for ``fold``
    lags       (S,)    int32 twice the tokens that the slot of sequence s is behind, which its lane has
               noted, and 1 if this step brings it up; None: no slot is or may be (see Delta.lagging)
    first      keys below this index of every sequence do not exist (1 in the MTP layer, whose
               cache entry i is made of token i and the hidden state of token i - 1)
    """

    kind: str
    rows: int
    sequences: int
    ids: Array
    positions: Array
    offsets: Array
    frontiers: Array
    tables: Array
    slots: Array
    embeds: tuple[Array, Array] | None = None
    lanes: Array = None
    lags: Array = None
    first: int = 0


@attrs.frozen
class Routing:
    """What the router chose.  Backend-private arrays; a model only passes it on.

    normed   (T, H)          the normed input that experts read
    experts  (T, k) int32    chosen experts, best first
    weights  (T, k) float32  renormalised to sum 1
    shared   (T,)   float32  sigmoid gate of the shared expert
    """

    normed: Array
    experts: Array
    weights: Array
    shared: Array


class Verbs(Protocol):
    """What a backend offers to ``model/*``; bodies check shapes and raise ValueError."""

    def embed(self, table: Weight, step: Step) -> Array:
        """Look up token rows, then replace the rows that ``step.embeds`` names.  -> (T, H)."""

    def norm_project(self, x: Array, norm: Array, weights: tuple[Weight, ...]) -> tuple[Array, ...]:
        """n = (1+w) RMSNorm(x); one (T, N_i) output n @ W_i.T for each weight."""

    def norm_project_last(
        self, x: Array, norm: Array, few: tuple[Weight, ...], every: tuple[Weight, ...], wanted: Step
    ) -> tuple[Array, ...]:
        """``norm_project``: the ``wanted`` rows by each of ``few``, all rows by each of ``every``.

        Results have the bits that ``norm_project`` by few and every together gives them.
        """

    def attend(
        self,
        q: Array,
        gate: Array,
        k: Array,
        v: Array,
        q_norm: Array,
        k_norm: Array,
        layer: int,
        step: Step,
    ) -> Array:
        """Gated causal GQA over the paged cache of attention layer ``layer`` (counted among such).

        Per-head (1+w) norm of q and k; interleaved partial rotary by ``step.positions``; append
        k and v to the sequence's pages; attention with scale head_dim ** -0.5 over everything from
        ``step.first`` up to and including each row (zero where that is nothing); times
        sigmoid(gate).  -> (T, heads * head_dim).
        """

    def remember(self, k: Array, v: Array, k_norm: Array, layer: int, step: Step) -> None:
        """Append k and v to the sequences' pages as ``attend`` does, without attending."""

    def recall(self, q: Array, gate: Array, q_norm: Array, layer: int, step: Step) -> Array:
        """Attend as ``attend`` does to what is there, ``step``'s own keys and values included: prompts."""

    def delta_rule(
        self,
        qkv: tuple[Array, Array, Array],
        z: Array,
        a: Array,
        b: Array,
        convolution: Array,
        a_log: Array,
        dt_bias: Array,
        norm: Array,
        layer: int,
        step: Step,
    ) -> Array:
        """Gated DeltaNet of DeltaNet layer ``layer`` (counted among such) on the sequences' slots.

        Depthwise causal convolution (taps, channels in q, k, v order) with the slot's history,
        SiLU; l2-normed q, k; g = -exp(a_log) softplus(a + dt_bias); beta = sigmoid(b);
        S <- exp(g) S; u = beta (v - S k); S <- S + u k^T; o = S q / sqrt(key_dim);
        w-RMSNorm of each head's o times SiLU(z).  -> (T, value_width).
        "prefill" and "decode" advance the slot; "verify" records and leaves S and history alone.
        """

    def project_add(self, y: Array, weight: Weight, x: Array) -> Array:
        """x + y @ W.T: an output projection with the residual."""

    def norm_swiglu(self, x: Array, norm: Array, gate: Weight, up: Weight) -> Array:
        """n = (1+w) RMSNorm(x); silu(n @ gate.T) * (n @ up.T).  -> (T, I)."""

    def norm_route(
        self, x: Array, norm: Array, router: Weight, shared_score: Weight, per_token: int
    ) -> Routing:
        """n = (1+w) RMSNorm(x); softmax over all experts in float32; the best ``per_token``.

        Ties at the boundary go to the lower id; chosen weights are renormalised to sum 1.
        """

    def experts_swiglu(self, route: Routing, gate: Weight, up: Weight) -> Array:
        """silu(gate_e n) * up_e n for each chosen expert e.  -> (T, k, width).

        ``gate`` and ``up`` are stacked: rows e * width .. (e + 1) * width - 1 belong to expert e.
        """

    def experts_add(
        self,
        y: Array,
        route: Routing,
        down: Weight,
        shared: tuple[Weight, Weight, Weight],
        x: Array,
    ) -> Array:
        """x + sum_e weight_e down_e y_e + shared_gate * shared(n), shared = (gate, up, down)."""

    def final_norm(self, x: Array, norm: Array) -> Array:
        """(1+w) RMSNorm of every row: the hidden states that heads and drafters read."""

    def concat_norms(self, left: Array, left_norm: Array, right: Array, right_norm: Array) -> Array:
        """[(1+w) RMSNorm(left) | (1+w) RMSNorm(right)] side by side.  -> (T, 2H)."""

    def project(self, y: Array, weight: Weight) -> Array:
        """y @ W.T.  -> (T, N)."""

    def logits(self, hidden: Array, head: Weight) -> Array:
        """hidden @ head.T as float32.  -> (T, V)."""

    def last_of(self, x: Array, wanted: Step) -> Array:
        """The rows of ``x`` that are ``wanted``: the last rows of a pass, as a step of their own."""

    def last_rows(self, hidden: Array, step: Step) -> Array:
        """The last row of every sequence.  -> (S, H)."""

    def slot_hidden(self, step: Step) -> Array:
        """The hidden state saved in every sequence's slot: that of its last token.  -> (S, H)."""

    def previous_hidden(self, hidden: Array, step: Step) -> Array:
        """Row i becomes the hidden state of the token before it; first rows take the slot's.  -> (T, H)."""

    def keep_hidden(self, hidden: Array, step: Step) -> None:
        """Save every sequence's last row in its slot; in "verify", record all rows for ``fold``."""

    def fold(self, lanes: Array, slots: Array, keeps: Array) -> None:
        """Advance slots over the first ``keeps`` rows of their lanes' recorded verification.

        Recurrent state of every DeltaNet layer in decode's arithmetic order (bit for bit), the
        convolution history and the saved hidden state.  All three are (S,) int32; 0 keeps nothing.
        """

    def best(self, logits: Array, ids: Array | None) -> Array:
        """Argmax of each row, ties to the lower index; mapped through ``ids`` if given.  -> (T,) int32."""
