"""The bed of the suites here: the emulator."""

from __future__ import annotations

import pytest

from tests.emulator import toolkit
from tests.suites.bed import Bed, EmulatedBed


@pytest.fixture
def bed() -> Bed:
    """An emulated card."""
    if toolkit() is None:
        pytest.skip("needs CUDA headers and a host compiler")
    return EmulatedBed()
