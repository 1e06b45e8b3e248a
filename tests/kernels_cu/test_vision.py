"""The vision suite on the emulator, and the order in which threads run."""

import numpy as np
import pytest

from ninfer.ops.gemm_bias import Plane
from ninfer.ops.vision_verbs import Patches
from tests.emulator import toolkit
from tests.suites.bed import EmulatedBed
from tests.suites.vision import *  # noqa: F403
from tests.suites.vision import BF16, rng_of, verbs_of


@pytest.mark.skipif(toolkit() is None, reason="needs CUDA headers and a host compiler")
def test_attention_keeps_its_bits_in_any_order_of_threads() -> None:
    shape = Patches(1, 10, 14, 2)
    values = rng_of(11).standard_normal((shape.count, 3 * 72)).astype(BF16)
    found = []
    for order in range(3):
        bed = EmulatedBed(order)
        device = bed.to(values)
        bands = (Plane.of(device).band(72 * i, 72) for i in range(3))
        verbs_of(bed).see(*bands, 1, shape)
        found.append(bed.back(device).view(np.uint16))
    assert (found[0] == found[1]).all() and (found[0] == found[2]).all()
