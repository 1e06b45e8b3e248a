"""Fixtures shared by every room's tests: deterministic scheduling, paths to the bundled models."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import trio

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # parallel test runs share the cores

hypothesis.settings.register_profile("house", deadline=None, derandomize=True)
hypothesis.settings.load_profile("house")

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def scheduling_seed() -> Iterator[None]:
    """Trio shuffles runnable tasks; a fixed seed makes a failing order repeat."""
    trio._core._run._r.seed(0)
    random.seed(0)
    yield


@pytest.fixture(scope="session")
def fixtures() -> Path:
    """The directory of bundled artifacts and goldens."""
    return ROOT / "fixtures"


@pytest.fixture(scope="session")
def reference_models() -> Path:
    """The reference checkpoints, where this clone has them beside it."""
    path = ROOT.parent / "shared" / "models"
    if not path.is_dir():
        pytest.skip("reference checkpoints are not beside this clone")
    return path
