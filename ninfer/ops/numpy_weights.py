"""How the NumPy backend holds weights: decoded to float32, transposed, joined where read together.

The one thing a reader would get wrong: ``Weight.data`` is not the matrix but ``Columns`` of a shared
(K, sum of N) array, so that one multiplication serves all weights of one verb.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol

import attrs
import numpy as np
from numpy.typing import NDArray

from ninfer.ops.numpy_state import Floats, Ints
from ninfer.ops.verbs import Weight


class Source(Protocol):
    """Where parameters come from: an artifact."""

    def decode(self, name: str) -> NDArray[np.generic]:
        """Return a parameter in its logical shape."""

    def has(self, name: str) -> bool:
        """Whether the parameter exists."""


@attrs.frozen(eq=False)
class Columns:
    """Columns ``begin .. end - 1`` of ``parent`` (K, N): one weight, transposed (``matrix``)."""

    parent: Floats
    begin: int
    end: int
    matrix: Floats = attrs.field(init=False)

    @matrix.default
    def _cut(self) -> Floats:
        return self.parent[:, self.begin : self.end]


@attrs.frozen(eq=False)
class NumpyLoader:
    """Loads weights for ``NumpyVerbs``."""

    source: Source

    def has(self, name: str) -> bool:
        """Whether the parameter exists."""
        return self.source.has(name)

    def weights(self, *names: str) -> tuple[Weight, ...]:
        """Load matrices of equal columns side by side."""
        return joined([self.vector(name) for name in names])

    def table(self, name: str) -> Weight:
        """Load an embedding: its rows stay contiguous, since they are looked up."""
        matrix = self.vector(name)
        return Weight(len(matrix), matrix.shape[1], "fp32", Columns(matrix.T, 0, len(matrix)))

    def stack(self, names: tuple[str, ...]) -> Weight:
        """Load equal matrices as one (experts, K, N) array."""
        data = np.stack([self.vector(name).T for name in names])
        return Weight(len(names) * data.shape[2], data.shape[1], "fp32", data)

    def vector(self, name: str) -> Floats:
        """Load a parameter as a dense float32 array."""
        return np.ascontiguousarray(self.source.decode(name), np.float32)

    def indices(self, name: str) -> Ints:
        """Load an int32 parameter."""
        return np.ascontiguousarray(self.source.decode(name), np.int32)


def joined(matrices: Sequence[Floats]) -> tuple[Weight, ...]:
    """Make weights of (N_i, K) matrices that share one transposed array."""
    parent = np.ascontiguousarray(np.concatenate(matrices).T)
    ends = np.cumsum([len(matrix) for matrix in matrices]).tolist()
    return tuple(
        Weight(len(matrix), matrix.shape[1], "fp32", Columns(parent, end - len(matrix), end))
        for matrix, end in zip(matrices, ends, strict=True)
    )


def multiply(x: Floats, weights: Sequence[Weight]) -> tuple[Floats, ...]:
    """x (tiles, tile, K) times each weight, in one multiplication where they lie side by side."""
    if len(weights) == 1:
        return (np.matmul(x, weights[0].data.matrix),)
    parts = [weight.data for weight in weights]
    base = parts[0].begin
    if not all(a.parent is b.parent and a.end == b.begin for a, b in pairwise(parts)):
        return tuple([np.matmul(x, part.matrix) for part in parts])
    y = np.matmul(x, parts[0].parent[:, base : parts[-1].end])
    return tuple([y[..., part.begin - base : part.end - base] for part in parts])


def rows_of(weight: Weight, ids: Ints) -> Floats:
    """Look up rows of a matrix.  -> (len(ids), K)."""
    rows: Floats = weight.data.matrix.T[ids]
    return rows
