"""The bed of the suites here: the card."""

from __future__ import annotations

import pytest

from tests.suites.bed import Bed


@pytest.fixture(scope="session")
def bed() -> Bed:
    """The card of this process."""
    from tests.device.card import bench
    from tests.device.real import RealBed

    return RealBed(bench())
