"""An artifact's weights in their stored layout, as the CUDA verbs take them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import numpy as np

from ninfer.artifact.reader import Artifact
from ninfer.kernels_cu.arrays import DeviceArray
from ninfer.ops.cuda_experts import bank_of
from ninfer.ops.stored import StoredMatrix, stored_matrix
from ninfer.ops.verbs import Weight


@attrs.define(eq=False)
class StoredLoader:
    """Implements ``model.weights.Loader``."""

    artifact: Artifact
    to: Callable[[Any], DeviceArray]
    _objects: dict[str, DeviceArray] = attrs.field(factory=dict)

    def has(self, name: str) -> bool:
        """Whether the parameter exists."""
        return self.artifact.has(name)

    def _object(self, item: Any) -> DeviceArray:
        if item.id not in self._objects:
            self._objects[item.id] = self.to(np.frombuffer(self.artifact.raw(item), np.uint8))
        return self._objects[item.id]

    def matrix(self, name: str) -> StoredMatrix:
        """Find a matrix."""
        (part,) = self.artifact.parameter(name).parts
        whole = stored_matrix(self._object(part.object), part.object.format, part.object.shape)
        return whole.take(part.begin // whole.columns, part.end // whole.columns)

    def _weight(self, name: str) -> Weight:
        matrix = self.matrix(name)
        return Weight(matrix.rows, matrix.columns, matrix.format, matrix)

    def weights(self, *names: str) -> tuple[Weight, ...]:
        """Load matrices."""
        return tuple(self._weight(name) for name in names)

    def table(self, name: str) -> Weight:
        """Load an embedding."""
        return self._weight(name)

    def stack(self, names: tuple[str, ...]) -> Weight:
        """Load experts as a bank."""
        bank = bank_of([self.matrix(name) for name in names])
        return Weight(bank.rows.rows, bank.rows.columns, bank.rows.format, bank)

    def vector(self, name: str) -> DeviceArray:
        """Load a small parameter as it is stored."""
        parameter = self.artifact.parameter(name)
        (part,) = parameter.parts
        raw, width = self._object(part.object), {"bf16": 2, "fp32": 4}[part.object.format]
        kind = {"bf16": "bf16", "fp32": "f32"}[part.object.format]
        return DeviceArray(raw.ptr + width * part.begin, parameter.shape, kind, raw)

    def indices(self, name: str) -> DeviceArray:
        """Load an int32 parameter."""
        return self.to(self.artifact.decode(name).astype(np.int32))
