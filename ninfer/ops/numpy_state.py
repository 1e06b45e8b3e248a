"""What the NumPy verbs read and write beside their arguments: KV pages, slots, verification records.

The program owns these arrays and passes them in; the verbs know only the shapes below.  The one
thing a reader would get wrong: a row layout is always (tiles, tile, width).  Prefill rows sit in
tiles of ``TILE`` rows aligned to absolute positions, padded with zero rows at both ends; decode and
verify rows are tiles of one row.  BLAS gives a row the same bits whenever the tile shape and its place
in the tile are the same, and that is what makes a row independent of its neighbours.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

import attrs
import numpy as np
from numpy.typing import NDArray

from ninfer.ops.verbs import Step

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]
Scalar = TypeVar("Scalar", bound=np.generic)

TILE = 64  # rows of a prefill tile; also the chunk of the delta rule


class Pages(Protocol):
    """A paged KV cache holding float32 values that went through the cache format."""

    @property
    def page_tokens(self) -> int:
        """Tokens of a page."""

    @property
    def values(self) -> Floats:
        """(pages, layers, 2, kv_heads, page_tokens, head_dim), keys before values."""

    def append(self, layer: int, table: Ints, start: int, keys: Floats, values: Floats) -> None:
        """Store (rows, kv_heads, head_dim) keys and values at token indices ``start`` and on."""

    def span(self, layer: int, table: Ints, begin: int, end: int) -> tuple[Floats, Floats]:
        """Return keys and values of tokens ``begin .. end - 1``, each (kv_heads, tokens, head_dim)."""


@attrs.define(eq=False)
class Record:
    """What a verification leaves for ``fold``, for one lane; lists are by DeltaNet layer.

    keys (rows, key_heads, key_dim) are l2-normed; values (rows, value_heads, value_dim); decays and
    betas (rows, value_heads); columns (rows, channels) are raw convolution inputs.
    """

    keys: list[Floats] = attrs.field(factory=list)
    values: list[Floats] = attrs.field(factory=list)
    decays: list[Floats] = attrs.field(factory=list)
    betas: list[Floats] = attrs.field(factory=list)
    columns: list[Floats] = attrs.field(factory=list)
    hidden: Floats | None = None


@attrs.define(eq=False)
class Slots:
    """Views into the StateImages, first axis the slot.

    recurrent  (slots, layers, value_heads, key_dim, value_dim)
    history    (slots, layers, taps - 1, channels)  raw convolution inputs, oldest first
    hidden     (slots, hidden)                      final-normed hidden state of the last token
    records    by lane
    """

    recurrent: Floats
    history: Floats
    hidden: Floats
    records: dict[int, Record] = attrs.field(factory=dict)


@attrs.frozen
class Frame:
    """Where a step's rows sit: ``tiles`` tiles of ``tile`` rows, the first ``lead`` rows padding."""

    tiles: int
    tile: int
    lead: int
    rows: int

    def spread(self, values: NDArray[Scalar]) -> NDArray[Scalar]:
        """Put per-row values (rows, ...) in their places; padding rows are zero."""
        if self.tile == 1:
            return values.reshape(self.tiles, 1, *values.shape[1:])
        out = np.zeros((self.tiles * self.tile, *values.shape[1:]), values.dtype)
        out[self.lead : self.lead + self.rows] = values
        return out.reshape(self.tiles, self.tile, *values.shape[1:])

    def blank(self, tiled: Floats) -> Floats:
        """Make padding rows zero again, in place.  -> the same array."""
        flat = tiled.reshape(self.tiles * self.tile, -1)
        flat[: self.lead] = 0
        flat[self.lead + self.rows :] = 0
        return tiled

    def gather(self, tiled: Floats) -> Floats:
        """Take the real rows of a tiled array.  -> (rows, ...), a view."""
        flat = tiled.reshape(self.tiles * self.tile, *tiled.shape[2:])
        return flat[self.lead : self.lead + self.rows]


def frame_of(step: Step) -> Frame:
    """Say where the rows of a step sit."""
    if step.kind != "prefill":
        return Frame(step.rows, 1, 0, step.rows)
    lead = int(step.frontiers[0]) % TILE
    return Frame(-(-(lead + step.rows) // TILE), TILE, lead, step.rows)
