"""Named tolerances of device results against the NumPy twin.  Mend the kernel, never the number."""

from __future__ import annotations

import attrs
import numpy as np
from numpy.typing import NDArray


@attrs.frozen
class Tolerance:
    """Pass when all are finite and either every element is inside, or all three caps hold.

    inside      |x - ref| <= atol + rtol |ref|
    tail        largest share of elements outside
    worst       largest |x - ref| / (atol + rtol |ref|)
    relative    largest |x - ref|_2 / |ref|_2
    """

    atol: float
    rtol: float
    tail: float
    worst: float
    relative: float

    def check(self, got: NDArray[np.floating], want: NDArray[np.floating]) -> None:
        """Raise AssertionError saying by how much it misses."""
        got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
        assert got.shape == want.shape, (got.shape, want.shape)
        assert np.isfinite(got).all(), f"{(~np.isfinite(got)).sum()} of {got.size} are not finite"
        error = np.abs(got - want) / (self.atol + self.rtol * np.abs(want))
        tail, worst = float((error > 1).mean()), float(error.max(initial=0))
        relative = float(np.linalg.norm(got - want) / max(np.linalg.norm(want), 1e-30))
        fine = worst <= 1 or (tail <= self.tail and worst <= self.worst and relative <= self.relative)
        assert fine, f"tail {tail:.2e}, worst {worst:.2f}, relative {relative:.2e} exceed {self}"


INF = float("inf")
BF16_ELEMENTWISE = Tolerance(1e-3, 8e-3, 1e-3, 4, 4e-3)
BF16_REDUCTION = Tolerance(2e-3, 1.6e-2, 2e-3, 5, 8e-3)
LINEAR_TC = Tolerance(2e-3, 1.6e-2, 1, INF, 4e-3)
ATTENTION_INT8 = Tolerance(4e-3, 1.6e-2, 2e-3, 5, 8e-3)
FP32_TRANSCENDENTAL = Tolerance(1e-6, 1e-5, 1e-4, 2, 1e-5)
GDN_CONTROL_FP32 = Tolerance(1e-4, 4e-3, 1, INF, 2e-3)
GDN_OUTPUT_BF16 = Tolerance(1e-3, 1e-2, 2e-3, 5, 8e-3)
GDN_STATE_FP32 = Tolerance(5e-4, 5e-3, 2e-2, 5, 5e-3)
