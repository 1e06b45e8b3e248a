"""The verbs in NumPy: float32 throughout, the reference that every other body is held against.

Promises that a row's bits do not depend on other rows, its lane or the batch size, and that prefill
rows do not depend on how a prompt was cut as long as cuts fall on multiples of ``TILE``.
The one thing a reader would get wrong: arrays between verbs are (tiles, tile, width); see
``numpy_state``.  Run under ``np.errstate(over="ignore")``.
"""

from __future__ import annotations

import attrs
import numpy as np

from ninfer.ops import numpy_delta
from ninfer.ops.numpy_attention import Rotary, attend_rows, attend_tiles, rotate
from ninfer.ops.numpy_experts import apply_experts, choose, mix, swiglu
from ninfer.ops.numpy_math import gain_of, shifted_norm, sigmoid, silu
from ninfer.ops.numpy_state import Floats, Frame, Ints, Pages, Slots, frame_of
from ninfer.ops.numpy_weights import multiply, rows_of
from ninfer.ops.verbs import Routing, Step, Weight


@attrs.define(eq=False)
class NumpyVerbs:
    """Verbs over one set of pages and slots.  ``key_dim`` is that of the DeltaNet heads."""

    eps: float
    key_dim: int
    rotary: Rotary
    pages: Pages
    slots: Slots
    _step: Step | None = None
    _frame: Frame = attrs.field(factory=lambda: Frame(0, 1, 0, 0))
    _angles: tuple[Floats, Floats] | None = None
    _gains: dict[int, tuple[Floats, Floats]] = attrs.field(factory=dict)

    def _enter(self, step: Step) -> Frame:
        """Remember what all layers of one step share."""
        if step is not self._step:
            self._step, self._frame = step, frame_of(step)
            positions = self._frame.spread(np.ascontiguousarray(step.positions.T))
            self._angles = self.rotary.angles(positions.reshape(-1, 3).T)
        return self._frame

    def _norm(self, x: Floats, weight: Floats) -> Floats:
        """(1 + weight) RMSNorm(x), the gain kept with the weight it belongs to."""
        known = self._gains.get(id(weight))
        if known is None:
            known = self._gains[id(weight)] = weight, gain_of(weight)
        return shifted_norm(x, weight, self.eps, known[1])

    def embed(self, table: Weight, step: Step) -> Floats:
        """Look up token rows, then replace the rows that ``step.embeds`` names."""
        rows = rows_of(table, step.ids)
        if step.embeds is not None:
            at, features = step.embeds
            rows[at] = features
        return self._enter(step).spread(rows)

    def norm_project(self, x: Floats, norm: Floats, weights: tuple[Weight, ...]) -> tuple[Floats, ...]:
        """n = (1+w) RMSNorm(x); n @ W_i.T for each weight."""
        return multiply(self._norm(x, norm), weights)

    def norm_project_last(
        self, x: Floats, norm: Floats, few: tuple[Weight, ...], every: tuple[Weight, ...], wanted: Step
    ) -> tuple[Floats, ...]:
        """``norm_project``: the ``wanted`` rows by ``few``, all rows by ``every``.

        One product of all: BLAS would sum otherwise where columns are fewer.
        """
        found = self.norm_project(x, norm, (*few, *every))
        return tuple(self.last_of(y, wanted) for y in found[: len(few)]) + found[len(few) :]

    def attend(
        self,
        q: Floats,
        gate: Floats,
        k: Floats,
        v: Floats,
        q_norm: Floats,
        k_norm: Floats,
        layer: int,
        step: Step,
    ) -> Floats:
        """Gated causal attention over the paged cache of attention layer ``layer``."""
        self.remember(k, v, k_norm, layer, step)
        return self.recall(q, gate, q_norm, layer, step)

    def remember(self, k: Floats, v: Floats, k_norm: Floats, layer: int, step: Step) -> None:
        """Append k and v to the sequences' pages without attending."""
        frame, dim = self._enter(step), len(k_norm)
        rows = frame.tiles * frame.tile
        keys = self._norm(k.reshape(rows, -1, dim), k_norm)
        assert self._angles is not None
        rotate(keys, self._angles)
        self._append(keys, v.reshape(rows, -1, dim), layer, step, frame)

    def recall(self, q: Floats, gate: Floats, q_norm: Floats, layer: int, step: Step) -> Floats:
        """Attend to what is there, ``step``'s own keys and values included."""
        frame, dim = self._enter(step), len(q_norm)
        heads = self._norm(q.reshape(frame.tiles * frame.tile, -1, dim), q_norm)
        assert self._angles is not None
        rotate(heads, self._angles)
        heads *= np.float32(dim**-0.5)
        groups = heads.reshape(frame.tiles, frame.tile, self.pages.values.shape[3], -1, dim)
        if frame.tile == 1:
            out = attend_rows(groups[:, 0], self.pages, layer, step)
        else:
            tiled = np.ascontiguousarray(groups.transpose(0, 2, 3, 1, 4))
            out = attend_tiles(tiled, self.pages, layer, step, frame).transpose(0, 3, 1, 2, 4)
        return frame.blank(out.reshape(gate.shape) * sigmoid(gate))

    def _append(self, keys: Floats, values: Floats, layer: int, step: Step, frame: Frame) -> None:
        keys, values = (part[frame.lead : frame.lead + frame.rows] for part in (keys, values))
        for s in range(step.sequences):
            rows = slice(step.offsets[s], step.offsets[s + 1])
            self.pages.append(layer, step.tables[s], int(step.frontiers[s]), keys[rows], values[rows])

    def delta_rule(
        self,
        qkv: tuple[Floats, Floats, Floats],
        z: Floats,
        a: Floats,
        b: Floats,
        convolution: Floats,
        a_log: Floats,
        dt_bias: Floats,
        norm: Floats,
        layer: int,
        step: Step,
    ) -> Floats:
        """Gated DeltaNet of layer ``layer``; "verify" records instead of advancing the slot."""
        frame, slots = self._enter(step), self.slots
        raw = np.concatenate(qkv, axis=-1)
        g, beta = numpy_delta.gates(a, b, a_log, dt_bias)
        if frame.tile == 1:
            mixed = numpy_delta.convolve_rows(raw[:, 0], convolution, layer, slots, step)
            q, k, v = numpy_delta.split_heads(mixed, qkv[0].shape[-1], self.key_dim, len(norm))
            inputs = numpy_delta.Inputs(q, k, v, g[:, 0], beta[:, 0])
            o = numpy_delta.run_rows(inputs, layer, slots, step)
        else:
            o = self._delta_tiles(raw, g, beta, convolution, qkv[0].shape[-1], len(norm), layer, step)
        return frame.blank(self._gated_norm(o.reshape(*z.shape[:2], -1, len(norm)), norm, z))

    def _delta_tiles(
        self,
        raw: Floats,
        g: Floats,
        beta: Floats,
        taps: Floats,
        key_width: int,
        value_dim: int,
        layer: int,
        step: Step,
    ) -> Floats:
        frame, slot = self._frame, step.slots[0]
        real = frame.spread(np.ones((frame.rows, 1), np.float32))
        mixed = numpy_delta.convolve_tiles(raw, taps, self.slots.history[slot, layer], frame)
        q, k, v = numpy_delta.split_heads(mixed, key_width, self.key_dim, value_dim)
        inputs = numpy_delta.Inputs(q, k, v, g * real, beta * real)
        return numpy_delta.chunked(inputs, self.slots.recurrent[slot, layer])

    def _gated_norm(self, o: Floats, norm: Floats, z: Floats) -> Floats:
        scale = np.vecdot(o, o)
        scale *= np.float32(1 / len(norm))
        scale += np.float32(self.eps)
        o /= np.sqrt(scale)[..., None]
        o *= norm
        return o.reshape(z.shape) * silu(z)

    def project_add(self, y: Floats, weight: Weight, x: Floats) -> Floats:
        """x + y @ W.T."""
        (out,) = multiply(y, (weight,))
        out += x
        return out

    def norm_swiglu(self, x: Floats, norm: Floats, gate: Weight, up: Weight) -> Floats:
        """silu(n @ gate.T) * (n @ up.T) of the normed input."""
        return swiglu(*multiply(self._norm(x, norm), (gate, up)))

    def norm_route(
        self, x: Floats, norm: Floats, router: Weight, shared_score: Weight, per_token: int
    ) -> Routing:
        """Choose experts for each row."""
        normed = self._norm(x, norm)
        logits, score = multiply(normed, (router, shared_score))
        experts, weights = choose(logits.reshape(-1, logits.shape[-1]), per_token)
        return Routing(normed, experts, weights, sigmoid(score))

    def experts_swiglu(self, route: Routing, gate: Weight, up: Weight) -> Floats:
        """silu(gate_e n) * up_e n for each chosen expert e.  -> (rows, k, width)."""
        grouped = route.normed.shape[1] > 1
        x = route.normed.reshape(len(route.experts), 1, -1)
        return swiglu(*(apply_experts(x, route.experts, w.data, grouped) for w in (gate, up)))

    def experts_add(
        self,
        y: Floats,
        route: Routing,
        down: Weight,
        shared: tuple[Weight, Weight, Weight],
        x: Floats,
    ) -> Floats:
        """x + sum_e weight_e down_e y_e + shared_gate * shared(n)."""
        routed = mix(apply_experts(y, route.experts, down.data, x.shape[1] > 1), route.weights)
        (common,) = multiply(swiglu(*multiply(route.normed, shared[:2])), shared[2:])
        common *= route.shared
        common += routed.reshape(x.shape)
        common += x
        return common

    def final_norm(self, x: Floats, norm: Floats) -> Floats:
        """(1+w) RMSNorm of every row."""
        return self._norm(x, norm)

    def concat_norms(self, left: Floats, left_norm: Floats, right: Floats, right_norm: Floats) -> Floats:
        """Both (1+w) RMSNorms side by side."""
        parts = self._norm(left, left_norm), self._norm(right, right_norm)
        return np.concatenate(parts, axis=-1)

    def project(self, y: Floats, weight: Weight) -> Floats:
        """y @ W.T."""
        return multiply(y, (weight,))[0]

    def logits(self, hidden: Floats, head: Weight) -> Floats:
        """hidden @ head.T.  -> (T, V)."""
        return self.project(hidden, head).reshape(-1, head.rows)

    def last_of(self, x: Floats, wanted: Step) -> Floats:
        """View the tiles of ``x`` that the ``wanted`` rows fill: its last."""
        return x[-frame_of(wanted).tiles :]

    def last_rows(self, hidden: Floats, step: Step) -> Floats:
        """The last row of every sequence, as tiles of one row."""
        rows = self._enter(step).gather(hidden)
        last: Floats = rows[step.offsets[1:] - 1]
        return last[:, None]

    def slot_hidden(self, step: Step) -> Floats:
        """The saved hidden state of every sequence, as tiles of one row."""
        saved: Floats = self.slots.hidden[step.slots]
        return saved[:, None]

    def previous_hidden(self, hidden: Floats, step: Step) -> Floats:
        """Row i becomes the hidden state of the token before it; first rows take the slot's."""
        frame = self._enter(step)
        rows = np.empty_like(frame.gather(hidden))
        rows[1:] = frame.gather(hidden)[:-1]
        rows[step.offsets[:-1]] = self.slots.hidden[step.slots]
        return frame.spread(rows)

    def spread(self, rows: Floats, step: Step) -> Floats:
        """Lay rows (T, width) out as the verbs of a step pass them on."""
        return self._enter(step).spread(rows)

    def keep_hidden(self, hidden: Floats, step: Step) -> None:
        """Save every sequence's last row in its slot; "verify" records all rows."""
        rows = self._enter(step).gather(hidden)
        if step.kind != "verify":
            self.slots.hidden[step.slots] = rows[step.offsets[1:] - 1]
            return
        for s in range(step.sequences):
            record = self.slots.records[int(step.lanes[s])]
            record.hidden = rows[step.offsets[s] : step.offsets[s + 1]]

    def fold(self, lanes: Ints, slots: Ints, keeps: Ints) -> None:
        """Advance slots over the first ``keeps`` rows of their lanes' records."""
        for lane, slot, keep in zip(lanes.tolist(), slots.tolist(), keeps.tolist(), strict=True):
            record = self.slots.records[lane]
            numpy_delta.fold(record, slot, keep, self.slots)
            if keep and record.hidden is not None:
                self.slots.hidden[slot] = record.hidden[keep - 1]

    def best(self, logits: Floats, ids: Ints | None) -> Ints:
        """Argmax of each row, ties to the lower index, mapped through ``ids`` if given."""
        chosen: Ints = logits.argmax(axis=-1).astype(np.int32)
        return chosen if ids is None else np.take(ids, chosen)
