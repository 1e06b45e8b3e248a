"""How many tokens a round of three drafts publishes, against the recorded reference loop."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from ninfer.engine.job import Done, Job, Sampling, Summary
from ninfer.engine.loop import Engine
from ninfer.prompt.prepared import Prepared
from tests.model.checkpoint import Golden, goldens
from tests.sim.harness import Reader
from tests.sim.server import ARTIFACT
from tests.whole.kit import inline

WIDTH = 3


def reference(golden: Golden) -> tuple[int, int]:
    """Rounds, and tokens that they publish, if each step's recorded drafts are judged by greedy text."""
    greedy, at, rounds = golden.greedy, 0, 0
    while (left := len(greedy) - 1 - at) > 1:  # with one token left an ordinary step runs
        wanted = greedy[at + 1 : at + 1 + min(WIDTH, left - 1)]
        drafts = golden.drafts[at][: len(wanted)].tolist()
        right = next((i for i, token in enumerate(wanted) if drafts[i] != token), len(wanted))
        at, rounds = at + right + 1, rounds + 1
    return rounds, at


async def ours(golden: Golden, prompt: Prepared) -> Summary:
    """What the engine did to say the same."""
    device, options = inline(spec="mtp", draft_tokens=WIDTH, max_context=1536, prefix_reuse=False)
    engine = Engine(device, options)
    job = Job("r", prompt, Sampling(), len(golden.greedy), Reader(frozenset()), float("inf"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(engine.run)
        with engine.seat(), engine.submit(job) as events:
            last = [event async for event in events][-1]
        tasks.cancel_scope.cancel()
    assert isinstance(last, Done)
    assert last.summary.output_tokens == golden.greedy
    return last.summary


@pytest.mark.slow
async def test_tokens_a_round_are_those_of_the_reference_loop(autojump_clock: Any) -> None:
    ran = said = expected_rounds = expected_said = 0
    for golden in [golden for golden in goldens(ARTIFACT) if golden.pixels is None]:
        rounds, tokens = reference(golden)
        summary = await ours(golden, Prepared(golden.ids, False))
        assert abs(summary.spec_rounds - rounds) <= 1, golden.name
        ran, said = ran + summary.spec_rounds, said + summary.spec_rounds + summary.accepted
        expected_rounds, expected_said = expected_rounds + rounds, expected_said + tokens
    print(f"{said / ran:.3f} tokens a round, {expected_said / expected_rounds:.3f} in the reference loop")
    assert said / ran == pytest.approx(expected_said / expected_rounds, rel=0.05)
    assert said / ran > 3
