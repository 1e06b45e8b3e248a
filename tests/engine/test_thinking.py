"""The thinking budget: when control tokens are inserted, how they count, when they are not."""

from __future__ import annotations

import pytest

from ninfer.engine.device import Decode, Prefill
from ninfer.engine.job import Committed, Finish, ThinkingPlan
from ninfer.faults import Refused
from tests.sim.fake_device import STOP, FakeDevice, Script, small
from tests.sim.harness import CLOSE, Reader, hear, hear_all, job, prompt, running

CONTROL = (901, 902, CLOSE, 903)
PLAN = ThinkingPlan(budget=5, control=CONTROL)
ASK = prompt(6, thinking=True)


def script(*answer: int) -> FakeDevice:
    return FakeDevice(voice=Script({ASK.ids: answer}))


async def test_control_follows_the_budget_without_sampling(autojump_clock):
    device = script(11, 12, 13, 14, 15, 0, 0, 0, 0, 21, 22)  # zeros: where control stands
    async with running(device) as engine:
        heard = await hear(engine, job(ASK, 40, thinking=PLAN))
    assert heard.tokens == [11, 12, 13, 14, 15, *CONTROL, 21, 22, STOP]
    (control,) = (unit for unit in device.log if isinstance(unit, Prefill) and unit.start > 0)
    assert control.ids == (15, *CONTROL)
    assert control.sample
    summary = heard.end.summary
    assert (summary.model_thinking_tokens, summary.control_tokens, summary.thinking_tokens) == (5, 4, 9)
    assert (summary.control_units, summary.prefill_units, len(summary.output_tokens)) == (1, 1, 12)
    assert summary.computed_prefill_tokens == 6


async def test_control_is_published_piece_by_piece_through_the_judge(autojump_clock):
    judge = Reader(thinking=True)
    async with running(script(11, 12, 13, 14, 15, 0, 0, 0, 0, 21)) as engine:
        heard = await hear(engine, job(ASK, 40, thinking=PLAN, judge=judge))
    assert judge.taken == heard.tokens
    counts = [event.thinking_tokens for event in heard.events if isinstance(event, Committed)]
    assert counts == [1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 9]


@pytest.mark.parametrize("close_at", [1, 4, 5])
async def test_a_natural_close_wins_even_exactly_at_the_budget(autojump_clock, close_at):
    answer = [10] * (close_at - 1) + [CLOSE, 31, 32, 33, 34, 35, 36]
    async with running(script(*answer)) as engine:
        heard = await hear(engine, job(ASK, 40, thinking=PLAN))
    assert heard.tokens == [*answer, STOP]
    assert heard.end.summary.control_tokens == 0
    assert heard.end.summary.model_thinking_tokens == close_at


async def test_a_stop_at_the_budget_wins(autojump_clock):
    async with running(script(11, 12, 13, 14)) as engine:
        heard = await hear(engine, job(ASK, 40, thinking=PLAN))
    assert heard.tokens == [11, 12, 13, 14, STOP]
    assert heard.end.summary.control_tokens == 0


@pytest.mark.parametrize("max_tokens", [6, 8, 9])
async def test_capacity_beyond_the_budget_must_hold_control_and_one_more(autojump_clock, max_tokens):
    async with running(script()) as engine:
        with pytest.raises(Refused) as refusal:
            engine.submit(job(ASK, max_tokens, thinking=PLAN))
    assert refusal.value.fault.code == "thinking_budget_capacity_insufficient"


async def test_the_smallest_sufficient_capacity_ends_right_behind_control(autojump_clock):
    async with running(script(*[9] * 30)) as engine:
        heard = await hear(engine, job(ASK, 10, thinking=PLAN))
    assert heard.tokens == [9] * 5 + [*CONTROL, 9]
    assert heard.finish is Finish.OUTPUT_LIMIT


@pytest.mark.parametrize("max_tokens", [1, 4, 5])
async def test_a_budget_never_fires_when_the_output_ends_first(autojump_clock, max_tokens):
    async with running(script(*[9] * 30)) as engine:
        heard = await hear(engine, job(ASK, max_tokens, thinking=PLAN))
    assert heard.tokens == [9] * max_tokens
    assert heard.end.summary.control_tokens == 0


async def test_control_is_inserted_once_even_if_the_channel_stays_open(autojump_clock):
    plan = ThinkingPlan(budget=3, control=(901, 902))
    async with running(script(*[9] * 20)) as engine:
        heard = await hear(engine, job(ASK, 20, thinking=plan))
    assert heard.tokens[:6] == [9, 9, 9, 901, 902, 9]
    assert 901 not in heard.tokens[6:] + heard.tokens[:3]
    assert len(heard.tokens) == 20


async def test_a_stop_inside_control_ends_the_answer_there(autojump_clock):
    judge = Reader(frozenset({902}), thinking=True)
    async with running(script(*[9] * 20)) as engine:
        heard = await hear(engine, job(ASK, 20, thinking=PLAN, judge=judge))
    assert heard.tokens == [9] * 5 + [901, 902]
    assert heard.finish is Finish.STOP_TOKEN


async def test_penalties_do_not_count_control_and_company_does_not_change_the_text(autojump_clock):
    work = [lambda n=n: job(prompt(9 + n, n, thinking=True), 30, thinking=PLAN, seed=n) for n in range(4)]
    alone = []
    for one in work:
        async with running() as engine:
            alone.append((await hear(engine, one())).tokens)
    device = FakeDevice(small(lanes=4))
    async with running(device) as engine:
        together = await hear_all(engine, [one() for one in work])
    assert [heard.tokens for heard in together] == alone
    assert all(tokens[5:9] == list(CONTROL) for tokens in alone)
    assert device.lanes[0].generated == 26
    assert any(len(unit.rows) == 3 for unit in device.log if isinstance(unit, Decode))
