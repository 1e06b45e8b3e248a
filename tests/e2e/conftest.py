"""One shared server for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.server import Live, running


@pytest.fixture(scope="session")
def live() -> Iterator[Live]:
    """The bundled dense model, eight lanes."""
    with running("--max-concurrency", "8", "--kv-capacity", "65536") as server:
        yield server
