"""Drafts are the same bits however late the drafter is told of plain steps, whatever happens in between.

The engine runs over the real program twice: once the drafter is told of every plain step at once, once as
late as the program likes.  Pauses, snapshots, replays, reuse, cancelled readers, stops and thinking budgets
come in between.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import attrs
import trio
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ninfer.engine.device import Unit
from ninfer.engine.drafting import Drafting
from ninfer.engine.job import Finish, Job, Sampling, ThinkingPlan, Verdict
from ninfer.engine.loop import Engine
from ninfer.prompt.prepared import Mark, MarkKind, Prepared
from ninfer.runtime import arrears
from ninfer.runtime.program import NumpyProgram
from ninfer.settings import ContextCosts, EngineOptions
from tests.runtime.test_engine import Answered
from tests.toy import toy_program

WIDEST = 3
Draft = tuple[int, int, tuple[int, ...]]  # lane, frontier, tokens


@attrs.define
class Curt:
    """Stops after ``length`` tokens, leaves after ``leaves``; thinks until the control token 71."""

    length: int
    leaves: int
    thinking: bool
    seen: list[int] = attrs.field(factory=list)
    leave: Callable[[], None] | None = None

    def take(self, token: int) -> Verdict:
        """Note one token."""
        self.seen.append(token)
        self.thinking = self.thinking and token != 71
        if len(self.seen) == self.leaves and self.leave is not None:
            self.leave()
        return Verdict(Finish.STOP_STRING if len(self.seen) == self.length else None, self.thinking)

    def finish(self) -> None:
        """Nothing is held."""


@attrs.define(eq=False)
class Scripted(Drafting):
    """Widths as they were written down beforehand."""

    script: tuple[int, ...] = (0,)

    def width(self, rows: Any) -> int:
        """Return the width of this round."""
        return self.script[self.rounds % len(self.script)]


@attrs.define(eq=False)
class Noting:
    """A device without a thread that notes every draft that is made."""

    program: NumpyProgram
    drafts: list[Draft] = attrs.field(factory=list)

    @property
    def geometry(self) -> Any:
        """The program's."""
        return self.program.geometry

    def submit(self, unit: Unit) -> Answered:
        """Run at once."""
        with patch.object(NumpyProgram, "_propose", self._propose):
            return Answered(self.program.run(unit))

    def _propose(self, rows: Any) -> Any:
        found = PROPOSE(self.program, rows)
        self.drafts += [(row.lane, row.frontier, tuple(found[row.lane])) for row in rows]
        return found


@attrs.frozen
class Ask:
    """One request of the schedule; it leaves after ``leaves`` tokens."""

    length: int
    tokens: int
    stops: int
    leaves: int
    budget: int | None
    hot: bool
    common: bool
    marked: bool

    def job(self, number: int) -> Job:
        first = 0 if self.common else number
        ids = tuple(3 + (first * 31 + 7 * i) % 80 for i in range(self.length))
        marks = (Mark(self.length // 2, MarkKind.EXPLICIT),) if self.marked and self.length > 2 else ()
        plan = None if self.budget is None else ThinkingPlan(self.budget, (70, 71))
        if plan is not None and not plan.fits(self.tokens):
            plan = None
        sampling = Sampling(temperature=1.0, presence=0.3, seed=number) if self.hot else Sampling()
        judge = Curt(self.stops, self.leaves, plan is not None)
        prepared = Prepared(ids, plan is not None, marks=marks)
        return Job(
            f"r{number}", prepared, sampling, self.tokens, judge, float("inf"), thinking=plan, session="one"
        )


ASKS = st.builds(
    Ask,
    st.integers(1, 40),
    st.integers(20, 70),
    st.sampled_from([500, 500, 3, 13, 30]),
    st.sampled_from([500, 500, 2, 11, 40]),
    st.sampled_from([None, None, 0, 1, 4, 9]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)


PROPOSE = NumpyProgram._propose


async def run(asks: list[Ask], script: tuple[int, ...], options: EngineOptions) -> list[Draft]:
    device = Noting(toy_program(**attrs.asdict(options, recurse=False)))
    device.program.pages.values[:] = float("nan")
    engine = Engine(device, options)
    engine.scheduler.drafting = Scripted(WIDEST, True, script=script)
    jobs = [ask.job(number) for number, ask in enumerate(asks)]
    for job in jobs:
        job.judge.leave = engine.submit(job).close  # type: ignore[attr-defined]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(engine.run)
        await engine.rest()
        engine.check()
        nursery.cancel_scope.cancel()
    assert engine.failure is None, engine.failure
    device.drafts.append((-1, -1, tuple(token for job in jobs for token in job.judge.seen)))
    return device.drafts


LONG = [Ask(20 + 5 * n, 60, 500, 500, None, n % 2 == 1, False, False) for n in range(4)]


@example(LONG, [0, 0, 0, 0, 1, 3, 0, 0, 3, 0, 0, 1], 3, 16, 7, 1 << 24)  # many snapshots
@example(LONG, [0, 0, 0, 0, 1, 3, 0, 0, 3, 0, 0, 1], 3, 16, 7, 0)  # many replays
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(ASKS, min_size=3, max_size=6),
    st.lists(st.sampled_from([0, 0, 0, 0, 1, 3]), min_size=2, max_size=12),
    st.sampled_from([2, 3, 4]),
    st.sampled_from([8, 16, 64]),
    st.sampled_from([7, 8]),
    st.sampled_from([1 << 24, 0]),
)
def test_drafts_do_not_depend_on_when_the_drafter_is_told(asks, script, lanes, chunk, pages, host):
    options = EngineOptions(
        max_context=112,
        page_tokens=16,
        max_concurrency=lanes,
        prefill_chunk=chunk,
        kv_capacity=16 * pages,
        spec="mtp",
        draft_tokens=WIDEST,
        draft_auto=True,
        host_context_bytes=host,
        costs=ContextCosts(0.0, 1e12, 1e-3, 0.0),
    )
    found = []
    for most in (1, arrears.MOST):
        with patch.object(arrears, "MOST", most):
            found.append(trio.run(run, asks, tuple(script), options))
    assert found[0] == found[1]
