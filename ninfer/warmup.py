"""The generation that runs before the port opens: it proves that the engine answers, and warms it.

The one thing a reader would get wrong: it goes through the engine like any other request, so it is in
the engine's counters; ``Metrics.start_counting`` takes it out again.
"""

from __future__ import annotations

import attrs

from ninfer.engine.job import Done, Failed, Finish, Job, Sampling, Verdict
from ninfer.engine.loop import Engine
from ninfer.faults import Broken, StartupError
from ninfer.prompt.prepared import Prepared

PROMPT = (1, 2, 3)
TOKENS = 4


@attrs.frozen
class _Silent:
    """A judge that takes every token and shows nothing."""

    def take(self, token: int) -> Verdict:
        """Accept one token."""
        return Verdict()

    def finish(self) -> None:
        """Hold nothing."""


async def warm_up(engine: Engine) -> None:
    """Generate a few tokens; where widths are chosen, so many that each is measured.

    Raises ``StartupError`` when the engine cannot.
    """
    drafting = engine.scheduler.drafting
    job = Job(
        request_id="warm-up",
        prompt=Prepared(ids=PROMPT[: engine.device.geometry.max_context], thinking=False),
        sampling=Sampling(),
        max_tokens=TOKENS * (1 + drafting.widest * drafting.auto),
        judge=_Silent(),
        deadline=float("inf"),
    )
    with drafting.measuring(), engine.seat(), engine.submit(job) as events:
        last = [event async for event in events][-1]
    if isinstance(last, Failed):
        raise StartupError(f"the warm-up generation failed: {last.fault.message} ({explain(engine)})")
    if not isinstance(last, Done) or last.finish not in (Finish.OUTPUT_LIMIT, Finish.CONTEXT):
        raise Broken(f"the warm-up generation ended with {last}")


def explain(engine: Engine) -> str:
    """Say why an engine stopped, for the operator: the failure and what lies behind it."""
    problem = engine.failure
    if problem is None:
        return "no failure"
    cause = problem.__cause__
    behind = f" ({type(cause).__name__}: {cause})" if cause is not None else ""
    return f"{type(problem).__name__}: {problem}{behind}"
