"""What the bundled model says when nothing is shared, kept or drafted: computed once a session."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from tests.whole.kit import in_turn, model, talk

TOKENS = 14


@pytest.fixture(scope="session")
def alone() -> list[list[int]]:
    """The answers to ``talk()``, one request at a time, every prompt computed afresh."""

    async def run() -> list[list[int]]:
        async with model(prefix_reuse=False) as world:
            return await in_turn(world, talk(tokens=TOKENS))

    return trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))
