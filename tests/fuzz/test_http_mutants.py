"""Mutants against whole connections: an answer or a close, never a traceback, nothing left behind."""

from __future__ import annotations

import random

import pytest
import trio.testing

from ninfer.http.house import House
from tests.fuzz.http_mutants import SEEDS
from tests.fuzz.http_session import play, session
from tests.http.kit import make_site


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
async def test_mutants_get_an_answer_or_a_close(autojump_clock: trio.testing.MockClock, seed: int) -> None:
    tally = await play(seed, 1_000)
    assert tally.answers > tally.refusals > 300  # both kinds are exercised


async def test_valid_requests_are_all_served(autojump_clock: trio.testing.MockClock) -> None:
    site = make_site()
    for raw in SEEDS:
        heard = await session(raw, site, House(), random.Random(0))
        assert len(heard.statuses) == 1 and heard.statuses[0] in (200, 204, 404), raw
