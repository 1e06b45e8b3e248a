"""Drafting in the loop: the text never changes, rounds are cut exactly, widths follow what pays."""

from __future__ import annotations

import attrs
import pytest

from ninfer.engine.device import Decode, Settle
from ninfer.engine.drafting import Drafting
from ninfer.engine.job import Committed, Finish, ThinkingPlan
from ninfer.engine.recovery import Recovery
from ninfer.engine.sequence import Sequence
from ninfer.prompt.prepared import Prepared
from ninfer.settings import EngineOptions
from ninfer.warmup import warm_up
from tests.sim.fake_device import STOP, Costs, FakeDevice, Hashed, Script, small
from tests.sim.harness import CLOSE, Reader, hear, hear_all, job, prompt, running

OPTIONS = EngineOptions(max_pending=64, checkpoint_every=64, junction_tokens=8, draft_tokens=4)
PLAN = ThinkingPlan(7, (901, 902, CLOSE, 903))
DRAFTERS = {
    "always right": lambda chain, index: True,
    "always wrong": lambda chain, index: False,
    "sometimes right": lambda chain, index: chain % 3 > 0,
}


def works(count: int = 4, tokens: int = 40):
    return [
        job(
            prompt(9 + 5 * n, seed=n, thinking=n % 2 == 1),
            tokens,
            seed=n,
            thinking=PLAN if n % 2 else None,
        )
        for n in range(count)
    ]


def drafts(device: FakeDevice) -> list[int]:
    return [row.draft for unit in device.log if isinstance(unit, Decode) for row in unit.rows]


@pytest.mark.parametrize("drafter", DRAFTERS.values(), ids=DRAFTERS)
@pytest.mark.parametrize("width", [1, 2, 5])
@pytest.mark.parametrize("lanes", [1, 4])
async def test_text_is_the_same_with_and_without_drafts(autojump_clock, drafter, width, lanes):
    plain = FakeDevice(small(lanes=lanes), Hashed(length=60))
    async with running(plain) as engine:
        expected = await hear_all(engine, works())
    device = FakeDevice(small(lanes=lanes, drafts=width), Hashed(length=60), drafter=drafter)
    async with running(device, attrs.evolve(OPTIONS, draft_tokens=width)) as engine:
        heard = await hear_all(engine, works())
    assert [one.tokens for one in heard] == [one.tokens for one in expected]
    assert [one.end.summary.thinking_tokens for one in heard] == [
        one.end.summary.thinking_tokens for one in expected
    ]
    assert max(drafts(device)) == width


async def test_a_round_publishes_each_token_and_counts_what_was_accepted(autojump_clock):
    device = FakeDevice(small(drafts=4), drafter=DRAFTERS["always right"])
    async with running(device, OPTIONS) as engine:
        heard = await hear(engine, job(5, 21))
        counters = engine.stats().counters
    summary = heard.end.summary
    assert (summary.spec_rounds, summary.drafted, summary.accepted) == (4, 16, 16)
    assert summary.accepted_per_position == (4, 4, 4, 4)
    assert (summary.decode_rounds, summary.fallback_steps) == (4, 0)
    assert (counters.spec_rounds, counters.spec_drafted, counters.spec_accepted) == (4, 16, 16)
    commits = [event for event in heard.events if isinstance(event, Committed)]
    assert [len(event.tokens) for event in commits] == [1] * 21
    assert (commits[-1].drafted, commits[-1].accepted) == (16, 16)


async def test_rejected_drafts_leave_no_trace(autojump_clock):
    device = FakeDevice(small(drafts=4), drafter=DRAFTERS["always wrong"])
    async with running(device, OPTIONS) as engine:
        heard = await hear(engine, job(5, 11))
    summary = heard.end.summary
    # The last rounds have fewer useful drafts; the very last token needs an ordinary step.
    assert drafts(device) == [4, 4, 4, 4, 4, 4, 3, 2, 1, 0]
    assert (summary.accepted, summary.accepted_per_position) == (0, (0, 0, 0, 0))
    assert summary.fallback_steps == 1


@pytest.mark.parametrize("length", [256 - n for n in range(8)])
async def test_no_round_reaches_beyond_the_context(autojump_clock, length):
    device = FakeDevice(small(drafts=4), drafter=DRAFTERS["always right"])
    async with running(device, OPTIONS) as engine:
        heard = await hear(engine, job(length, 100))
    assert heard.finish is Finish.CONTEXT
    assert len(heard.tokens) == 256 - length


@pytest.mark.parametrize("at", range(1, 12))
async def test_a_stop_inside_a_round_keeps_exactly_the_prefix_for_the_next_turn(autojump_clock, at):
    ask = prompt(20)
    answer = (*range(11, 11 + at), STOP, *range(50, 60))
    device = FakeDevice(small(drafts=4), Script({ask.ids: answer}), drafter=DRAFTERS["always right"])
    async with running(device, OPTIONS) as engine:
        first = await hear(engine, job(ask, 40))
        assert first.tokens == list(answer[: at + 1])
        turn = Prepared((*ask.ids, *first.tokens, 700, 701), False)
        second = await hear(engine, job(turn, 3))
    # Everything up to and with the stop token is known, unless the stop token was the round's bonus.
    in_round = (at - 1) % 5
    assert second.admitted.cached_tokens == 20 + at + (in_round != 4)
    assert second.tokens[0] == STOP or len(second.tokens) == 3


async def test_the_thinking_budget_is_never_drafted_across(autojump_clock):
    ask = prompt(6, thinking=True)
    answer = [10 + n for n in range(7)] + [0] * 4 + [30 + n for n in range(9)]
    for width in (1, 2, 3, 4):
        device = FakeDevice(
            small(drafts=width), Script({ask.ids: answer}), drafter=DRAFTERS["always right"]
        )
        options = attrs.evolve(OPTIONS, draft_tokens=width)
        async with running(device, options) as engine:
            heard = await hear(engine, job(ask, 60, thinking=PLAN))
        assert heard.tokens == [*answer[:7], *PLAN.control, *answer[11:], STOP]
        assert heard.end.summary.model_thinking_tokens == 7
        assert any(isinstance(unit, Settle) for unit in device.log)


async def test_batches_stay_compact(autojump_clock):
    device = FakeDevice(small(lanes=4, drafts=3, pages=300), Hashed())
    async with running(device, attrs.evolve(OPTIONS, draft_tokens=3)) as engine:
        await hear_all(engine, [job(prompt(9 + n, n), 60) for n in range(4)], gap=0.013)
    sizes = [len(unit.rows) for unit in device.log if isinstance(unit, Decode)]
    full = sizes.index(4)
    assert set(sizes[full : full + 8]) == {4}


async def test_a_judge_sees_only_what_is_committed(autojump_clock):
    judge = Reader(frozenset({13}))
    ask = prompt(5)
    device = FakeDevice(
        small(drafts=4), Script({ask.ids: (11, 12, 13, 14, 15, 16)}), drafter=DRAFTERS["always right"]
    )
    async with running(device, OPTIONS) as engine:
        heard = await hear(engine, job(ask, 30, judge=judge))
    assert judge.taken == heard.tokens == [11, 12, 13]


async def test_a_bad_row_inside_a_round_fails_its_request_alone(autojump_clock):
    device = FakeDevice(small(lanes=2, drafts=3), faults={4: "nan"})
    async with running(device, attrs.evolve(OPTIONS, draft_tokens=3)) as engine:
        heard = await hear_all(engine, [job(10, 20), job(12, 20)])
    assert sum(hasattr(one.end, "fault") for one in heard) == 1


# Width


@pytest.mark.parametrize(("drafter", "least", "most"), [("always right", 3.5, 4), ("always wrong", 0, 1.0)])
async def test_automatic_width_follows_acceptance(autojump_clock, drafter, least, most):
    costs = Costs(decode=0.010, draft_token=0.001)
    device = FakeDevice(
        small(drafts=4, max_context=1024, pages=200), costs=costs, drafter=DRAFTERS[drafter]
    )
    async with running(device, attrs.evolve(OPTIONS, draft_auto=True)) as engine:
        await hear(engine, job(10, 600))
    late = drafts(device)[-80:-8]
    assert least <= sum(late) / len(late) <= most


async def test_warming_up_measures_every_width_and_forgets_the_text(autojump_clock):
    device = FakeDevice(small(drafts=4), drafter=DRAFTERS["always wrong"])
    async with running(device, attrs.evolve(OPTIONS, draft_auto=True)) as engine:
        await warm_up(engine)
        drafting = engine.scheduler.drafting
    assert {width for _, width in drafting._cost} == set(range(5))
    assert (drafting.acceptance, drafting._lost) == (0.7, 0.0)


@pytest.mark.parametrize("context", [1, 2, 3, 4, 5, 8, 16])
@pytest.mark.parametrize("auto", [True, False])
async def test_warming_up_fits_the_smallest_context(autojump_clock, context, auto):
    device = FakeDevice(small(lanes=1, drafts=5, max_context=context))
    async with running(device, attrs.evolve(OPTIONS, draft_tokens=5, draft_auto=auto)) as engine:
        await warm_up(engine)


async def test_automatic_drafting_that_does_not_draft_runs_ahead(autojump_clock):
    """Plain steps are submitted before the last one was read; only what verifies has to wait."""
    device = FakeDevice(small(drafts=4, max_context=1024, pages=200), drafter=DRAFTERS["always wrong"])
    async with running(device, attrs.evolve(OPTIONS, draft_auto=True)) as engine:
        await hear(engine, job(10, 500))
    late = [row for unit in device.log if isinstance(unit, Decode) for row in unit.rows][100:-5]
    plain = [row.token is None for row in late if not row.draft and row.keep is None]
    assert sum(plain) >= 0.97 * len(plain) and len(plain) > 300
    assert not any(row.token is None for row in late if row.draft)


@pytest.mark.parametrize(("slope", "width"), [(0.0001, 4), (0.009, 0)])
def test_automatic_width_weighs_measured_costs(slope, width):
    seq = Sequence(job(5, 1000), 1, 1000)
    drafting = Drafting(4, auto=True)
    for asked in range(5):
        drafting.learn([seq], [asked], [asked], 0.010 + slope * asked)
    seq.acceptance = 0.8
    assert drafting.width([seq]) == width


@pytest.mark.parametrize("left", range(6))
def test_useful_drafts_end_one_before_the_limit(left):
    seq = Sequence(job(5, 10), 1, 10, outputs=[5] * (10 - left))
    assert Drafting(4).useful(seq, 4) == max(min(4, left - 1), 0)


async def test_a_request_returns_only_with_room_for_a_row_and_its_drafts(autojump_clock, monkeypatch):
    """With room for the row alone it would wait unpausable for pages, and its elders for those it has."""
    room: list[int] = []
    note = Recovery._note

    def noted(recovery: Recovery, seq: Sequence, snapshot: bool) -> None:
        if seq.reached >= seq.prompt_tokens:
            room.append(len(seq.pages) - min(seq.reached + 4, 64))
        note(recovery, seq, snapshot)

    monkeypatch.setattr(Recovery, "_note", noted)
    machine = small(lanes=3, pages=64, page_tokens=1, max_context=64, drafts=3)
    options = EngineOptions(prefix_reuse=False, draft_tokens=3, max_pending=64)
    async with running(FakeDevice(machine, Hashed(length=60)), options) as engine:
        await hear_all(engine, [job(prompt(12 + n, seed=n), 30) for n in range(5)])
    assert room and min(room) >= 0
