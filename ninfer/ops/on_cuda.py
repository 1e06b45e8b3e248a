"""The verbs on CUDA: shapes checked, outputs taken from scratch, kernels launched, nothing clever.

Activations are bf16, the residual stream float32.  A step's kind chooses the road of every product
(prefill widens weights, rows stream them), so ``embed`` must be the first verb of a pass: it enters the
step.  Nothing here allocates, waits or reads back, so the same calls run eagerly and inside capture.

A product whose rows a norm will follow may leave what that norm needs.  It is kept for the very array
that the product returned, until the next one, and never beyond a pass: no norm is known behind the last.

The one thing a reader would get wrong: heads, drafts and logits always take the streaming road, also in
a prefill pass, so the token after a prompt is found in decode's arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from ninfer.kernels_cu.arrays import DeviceArray
from ninfer.ops.cuda_attention import AttentionKernels
from ninfer.ops.cuda_delta import Delta, DeltaRows
from ninfer.ops.cuda_experts import Experts, Pending
from ninfer.ops.cuda_sampler import Sampler
from ninfer.ops.cuda_state import DeltaWeights, Records, Shape, Take, pack_sequences
from ninfer.ops.linear import Ending, Rows
from ninfer.ops.linear_source import Left
from ninfer.ops.products import Products
from ninfer.ops.verbs import Routing, Step, Weight

Array = DeviceArray


@attrs.define(eq=False)
class CudaVerbs:
    """Verbs over one set of pages and slots; see the parts for what each owns.

    followers  the norm behind ``project_add``, by where the codes of its matrix lie
    """

    shape: Shape
    take: Take
    products: Products
    attention: AttentionKernels
    delta: Delta
    experts: Experts
    sampler: Sampler
    followers: Mapping[int, Array] = attrs.field(factory=dict)
    _wide: bool = False
    _left: tuple[Array, Left] | None = None

    def _launch(
        self, name: str, grid: int | tuple[int, int], *arguments: DeviceArray | int | float | bytes | None
    ) -> None:
        library = self.delta.library
        library.get("hidden.cu", name).launch(grid, 256, *arguments, dependent=self.delta.dependent)

    def _rows(self, x: Array, norm: Array) -> Rows:
        made, self._left = self._left, None
        left = made[1] if made and made[0] is x and made[1].norm is norm else None
        return Rows(x, norm, self.shape.eps, left)

    def embed(self, table: Weight, step: Step) -> Array:
        """Look up token rows, then replace the rows that ``step.embeds`` names; enters the step."""
        self._wide, self._left = step.kind == "prefill", None
        self.attention.enter(step)
        x = self.products.embed(table.data, step.ids)
        if step.embeds is not None:
            self.products.replace_rows(x, *step.embeds)
        return x

    def norm_project(self, x: Array, norm: Array, weights: tuple[Weight, ...]) -> tuple[Array, ...]:
        """n = (1+w) RMSNorm(x); n @ W_i.T for each weight, in bf16."""
        matrices = [weight.data for weight in weights]
        outs = self.products.places(x.shape[0], matrices, wide=self._wide)
        self.products(self._rows(x, norm), matrices, outs, Ending.STORE_BF16, wide=self._wide)
        return outs

    def norm_project_last(
        self, x: Array, norm: Array, few: tuple[Weight, ...], every: tuple[Weight, ...], wanted: Step
    ) -> tuple[Array, ...]:
        """``norm_project``: the ``wanted`` rows by ``few``, all rows by ``every``.

        Products sum in one order, whatever stands beside a matrix: docs/performance.md, few rows.
        """
        rest = self.norm_project(x, norm, every)
        return self.norm_project(self.last_of(x, wanted), norm, few) + rest

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
        """Gated causal attention over the paged cache of attention layer ``layer``."""
        return self.attention(q, gate, k, v, (q_norm, k_norm), layer, step)

    def remember(self, k: Array, v: Array, k_norm: Array, layer: int, step: Step) -> None:
        """Append k and v to the sequences' pages without attending."""
        self.attention.remember(k, v, k_norm, layer, step)

    def recall(self, q: Array, gate: Array, q_norm: Array, layer: int, step: Step) -> Array:
        """Attend to what is there, ``step``'s own keys and values included."""
        return self.attention.recall(q, gate, q_norm, layer, step)

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
        """Gated DeltaNet of layer ``layer``; "verify" records instead of advancing the slot."""
        weights = DeltaWeights(convolution, a_log, dt_bias, norm)
        return self.delta(DeltaRows(*qkv, z, a, b), weights, layer, step)

    def project_add(self, y: Array, weight: Weight, x: Array) -> Array:
        """x + y @ W.T, float32."""
        out = self.take(x.shape, "f32")
        left = self.products(
            *(Rows(y), [weight.data], [out], Ending.ADD_RESIDUAL, x),
            wide=self._wide,
            next_norm=self.followers.get(weight.data.codes),
        )
        self._left = (out, left) if left else None
        return out

    def norm_swiglu(self, x: Array, norm: Array, gate: Weight, up: Weight) -> Array:
        """silu(n @ gate.T) * (n @ up.T) of the normed input, in bf16."""
        out = self.take((x.shape[0], gate.rows), "bf16")
        self.products(self._rows(x, norm), [gate.data, up.data], [out], Ending.SWIGLU, wide=self._wide)
        return out

    def norm_route(
        self, x: Array, norm: Array, router: Weight, shared_score: Weight, per_token: int
    ) -> Routing:
        """Choose experts for each row."""
        return self.experts.route(x, norm, router.data, shared_score.data, per_token, self._wide)

    def experts_swiglu(self, route: Routing, gate: Weight, up: Weight) -> Pending:
        """silu(gate_e n) * up_e n for each chosen expert e, put off until ``experts_add``."""
        return Pending(gate.data, up.data)

    def experts_add(
        self,
        y: Pending,
        route: Routing,
        down: Weight,
        shared: tuple[Weight, Weight, Weight],
        x: Array,
    ) -> Array:
        """x + sum_e weight_e down_e y_e + shared_gate * shared(n), float32."""
        matrices = tuple(weight.data for weight in shared)
        return self.experts.add(y, route, down.data, (matrices[0], matrices[1], matrices[2]), x, self._wide)

    def final_norm(self, x: Array, norm: Array) -> Array:
        """(1+w) RMSNorm of every row, in bf16."""
        out = self.take(x.shape, "bf16")
        self.delta.library.get("plain.cu", "norm_any").launch(
            x.shape[0], 256, x, norm, out, x.shape[1], self.shape.eps, dependent=self.delta.dependent
        )
        return out

    def concat_norms(self, left: Array, left_norm: Array, right: Array, right_norm: Array) -> Array:
        """Both (1+w) RMSNorms side by side: left float32, right bf16, out bf16."""
        rows, width = left.shape
        if right.shape != left.shape:
            raise ValueError(f"concat_norms: {left.shape} beside {right.shape}")
        out = self.take((rows, 2 * width), "bf16")
        self._launch(
            "concat_norms", (rows, 2), out, left, left_norm, right, right_norm, width, self.shape.eps
        )
        return out

    def project(self, y: Array, weight: Weight) -> Array:
        """y @ W.T, float32."""
        out = self.take((y.shape[0], weight.rows), "f32")
        self.products(Rows(y), [weight.data], [out], Ending.STORE_F32, wide=self._wide)
        return out

    def logits(self, hidden: Array, head: Weight) -> Array:
        """hidden @ head.T.  -> (T, V) float32."""
        out = self.take((hidden.shape[0], head.rows), "f32")
        self.products(Rows(hidden), [head.data], [out], Ending.STORE_F32)
        return out

    def last_of(self, x: Array, wanted: Step) -> Array:
        """View the rows of ``x`` that are ``wanted``: its last."""
        return x.rows(x.shape[0] - wanted.rows, x.shape[0])

    def last_rows(self, hidden: Array, step: Step) -> Array:
        """The last row of every sequence."""
        width = hidden.shape[1]
        out = self.take((step.sequences, width), "bf16")
        self._launch("last_rows", step.sequences, out, hidden, step.offsets, width)
        return out

    def slot_hidden(self, step: Step) -> Array:
        """The saved hidden state of every sequence."""
        return self.hidden_of(step.slots)

    def hidden_of(self, slots: Array) -> Array:
        """The saved hidden states of slots (S,).  -> (S, H)."""
        count, width = slots.shape[0], self.shape.hidden
        out = self.take((count, width), "bf16")
        self._launch("slot_rows", count, out, self.delta.images.pack_hidden(), slots, width)
        return out

    def previous_hidden(self, hidden: Array, step: Step) -> Array:
        """Row i becomes the hidden state of the token before it; first rows take the slot's."""
        rows, width = hidden.shape
        out, saved = self.take((rows, width), "bf16"), self.delta.images.pack_hidden()
        self._launch("previous_rows", rows, out, hidden, saved, pack_sequences(step), step.slots, width)
        return out

    def keep_hidden(self, hidden: Array, step: Step) -> None:
        """Save every sequence's last row in its slot; "verify" records all rows."""
        rows, width = hidden.shape
        if step.kind != "verify":
            saved = self.delta.images.pack_hidden()
            self._launch("keep_rows", step.sequences, hidden, saved, step.offsets, step.slots, width)
            return
        records = self._records()
        self._launch(
            "record_rows",
            rows,
            hidden,
            records.hidden,
            records.rows,
            pack_sequences(step),
            step.lanes,
            width,
        )

    def _records(self) -> Records:
        if self.delta.records is None:
            raise ValueError("verify: no records were planned")
        return self.delta.records

    def fold(self, lanes: Array, slots: Array, keeps: Array) -> None:
        """Advance slots over the first ``keeps`` rows of their lanes' records."""
        records, saved = self._records(), self.delta.images.pack_hidden()
        self.delta.fold(lanes, slots, keeps)
        self._launch(
            "fold_rows", lanes.shape[0], records.hidden, records.rows, saved, lanes, slots, keeps,
            self.shape.hidden,
        )  # fmt: skip

    def best(self, logits: Array, ids: Array | None) -> Array:
        """Argmax of each row, ties to the lower index, mapped through ``ids`` if given."""
        return self.sampler.best(logits, ids)
