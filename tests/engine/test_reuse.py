"""Prefix reuse as a request sees it: what is cached, why not more, and that text never changes."""

from __future__ import annotations

import attrs
import pytest

from ninfer.engine.device import CopyImage, CopyPage, Decode, HostLoad, HostSave, Prefill
from ninfer.engine.job import Committed
from ninfer.prompt.prepared import Mark, MarkKind, MediaSpan, Prepared
from ninfer.settings import ContextCosts, EngineOptions
from tests.sim.fake_device import STOP, FakeDevice, Hashed, small
from tests.sim.harness import Heard, hear, hear_all, job, prompt, running

OPTIONS = EngineOptions(max_pending=64, checkpoint_every=64, junction_tokens=8)
COLD = attrs.evolve(OPTIONS, prefix_reuse=False)


def joined(*parts: tuple[int, ...], **more) -> Prepared:
    return Prepared(tuple(token for part in parts for token in part), False, **more)


def computed(device: FakeDevice) -> int:
    return sum(len(unit.ids) for unit in device.log if isinstance(unit, Prefill))


async def talk(prompts: list[Prepared], options: EngineOptions = OPTIONS, **geometry: int) -> list[Heard]:
    """Send prompts one after another to one engine."""
    device = FakeDevice(small(**geometry), voice=Hashed(length=25))
    async with running(device, options) as engine:
        heard = [await hear(engine, job(one, 20)) for one in prompts]
        for one, ask in zip(heard, prompts, strict=True):
            summary = one.end.summary
            assert summary.cached_tokens == one.admitted.cached_tokens
            assert summary.cached_tokens + summary.computed_prefill_tokens == len(ask.ids)
    return heard


async def same_as_cold(prompts: list[Prepared], **geometry: int) -> list[int]:
    """Check that reuse changes no text; return what was cached each time."""
    warm, cold = await talk(prompts, **geometry), await talk(prompts, COLD, **geometry)
    assert [one.tokens for one in warm] == [one.tokens for one in cold]
    assert all(one.admitted.cached_tokens == 0 for one in cold)
    return [one.admitted.cached_tokens for one in warm]


async def test_a_conversation_goes_on_from_its_endpoint(autojump_clock):
    first = prompt(30)
    (one,) = await talk([first])
    second = joined(first.ids, tuple(one.tokens), (901, 902, 903))
    cached = await same_as_cold([first, second])
    known = len(first.ids) + len(one.tokens)
    assert cached == [0, known if one.tokens[-1] == STOP else known - 1]


async def test_an_exact_full_hit_computes_nothing_and_still_samples(autojump_clock):
    ask = prompt(40, marks=(Mark(40, MarkKind.INPUT),))
    device = FakeDevice()
    async with running(device, OPTIONS) as engine:
        first = await hear(engine, job(ask, 9))
        begun = len(device.log)
        second = await hear(engine, job(ask, 9))
    assert second.tokens == first.tokens
    assert second.admitted.cached_tokens == 40
    assert second.progress == []
    assert (second.end.summary.computed_prefill_tokens, second.end.summary.miss_reason) == (0, None)
    (feed,) = (unit for unit in device.log[begun:] if isinstance(unit, Prefill))
    assert (feed.start, feed.ids, feed.sample) == (40, (), True)


async def test_an_exact_full_hit_of_a_prompt_only_request_runs_no_unit(autojump_clock):
    ask = prompt(40, marks=(Mark(40, MarkKind.INPUT),))
    device = FakeDevice()
    async with running(device, OPTIONS) as engine:
        await hear(engine, job(ask, 0))
        before = device.work
        heard = await hear(engine, job(ask, 0))
    assert device.work == before
    assert heard.admitted.cached_tokens == 40


@pytest.mark.parametrize("kind", list(MarkKind))
async def test_marks_are_captured_where_they_stand(autojump_clock, kind):
    shared = prompt(37).ids
    marks = (Mark(37, kind),)
    asks = [joined(shared, prompt(20, seed=n).ids, marks=marks) for n in (1, 2, 3)]
    assert await same_as_cold(asks) == [0, 37, 37]


async def test_a_junction_is_captured_by_the_second_sibling_without_any_hint(autojump_clock):
    shared = prompt(37).ids
    asks = [joined(shared, prompt(20, seed=n).ids) for n in (1, 2, 3, 4)]
    assert await same_as_cold(asks) == [0, 0, 37, 37]


async def test_a_long_prompt_leaves_regular_checkpoints(autojump_clock):
    long = prompt(200).ids
    asks = [joined(long), joined(long[:150], (901, 902)), joined(long[:64], (903,))]
    assert await same_as_cold(asks, slots=12) == [0, 128, 64]


async def test_at_most_four_shared_marks_and_explicit_beats_implicit(autojump_clock):
    base = prompt(100).ids
    marks = [Mark(10 * n, MarkKind.EXPLICIT) for n in range(1, 7)] + [Mark(95, MarkKind.IMPLICIT)]
    asks = [joined(base, marks=tuple(marks))]
    asks += [joined(base[:n], (990 + i,)) for i, n in enumerate((15, 25, 35, 45, 55, 65, 97))]
    options = attrs.evolve(OPTIONS, junction_tokens=1000, checkpoint_every=1000)
    heard = await talk(asks, options, slots=40, lanes=1)
    assert [one.admitted.cached_tokens for one in heard][1:] == [0, 0, 30, 40, 50, 60, 60]


@pytest.mark.parametrize("at", [0, 5, 36, 39])
async def test_a_changed_token_loses_exactly_what_follows(autojump_clock, at):
    base = list(prompt(40).ids)
    marks = tuple(Mark(n, MarkKind.EXPLICIT) for n in (8, 24, 37))
    changed = [*base[:at], 999, *base[at + 1 :]]
    cached = await same_as_cold([joined(tuple(base), marks=marks), joined(tuple(changed))], slots=10)
    assert cached[1] == max(n for n in (0, 8, 24, 37) if n <= at)


# Media


def pictured(digest: int, grid: tuple[int, int, int] = (1, 4, 4), shift: int = 0) -> Prepared:
    """30 text tokens, 4 placeholder rows, 20 text tokens; positions as after a 4x4 grid."""
    ids = (*prompt(30).ids, *([998] * 4), *prompt(20, seed=5).ids)
    text = tuple(range(30))
    rest = tuple(32 + shift + i for i in range(20))
    axes = (text + (30,) * 4 + rest, (*text, 30, 30, 31, 31, *rest), text + (30, 31) * 2 + rest)
    span = MediaSpan(bytes([digest]) * 32, grid, ((30, 4),))
    return Prepared(
        ids, False, axes, -2 + shift, (span,), tuple(Mark(n, MarkKind.EXPLICIT) for n in (20, 34, 50))
    )


async def test_media_inside_a_cached_prefix_is_not_computed_again(autojump_clock):
    assert await same_as_cold([pictured(1), pictured(1)], slots=10) == [0, 50]


@pytest.mark.parametrize("other", [pictured(2), pictured(1, (1, 2, 8)), joined(pictured(1).ids)])
async def test_another_picture_never_hits_although_the_tokens_are_the_same(autojump_clock, other):
    cached = await same_as_cold([pictured(1), other, other], slots=12)
    assert cached[1] == 20
    assert cached[2] >= 30


async def test_other_positions_never_hit(autojump_clock):
    assert await same_as_cold([pictured(1), pictured(1, shift=1)], slots=12) == [0, 34]


@pytest.mark.parametrize("index", [31, 32, 33])
async def test_a_mark_inside_a_picture_is_ignored(autojump_clock, index):
    ask = attrs.evolve(pictured(1), marks=(Mark(index, MarkKind.EXPLICIT),))
    options = attrs.evolve(OPTIONS, junction_tokens=1000)
    heard = await talk([ask, attrs.evolve(ask, ids=(*ask.ids[:40], 991, *ask.ids[41:]))], options)
    assert heard[1].admitted.cached_tokens == 0


# Choice, off, sessions, reasons


async def test_reuse_can_be_switched_off(autojump_clock):
    heard = await talk([prompt(40), prompt(40)], COLD)
    assert [one.admitted.cached_tokens for one in heard] == [0, 0]
    assert heard[1].end.summary.miss_reason == "prefix reuse is off"


async def test_every_miss_has_a_reason(autojump_clock):
    shared = prompt(37).ids
    asks = [joined(shared, prompt(20, seed=n).ids) for n in (1, 2, 3)] + [prompt(9, seed=77)]
    reasons = [one.end.summary.miss_reason for one in await talk(asks)]
    assert reasons == [
        "nothing retained begins like this prompt",
        "first difference at token 37, nearest checkpoint at 0: nobody had branched off there before",
        "first difference at token 37, nearest checkpoint at 37: nothing retained goes on",
        "nothing retained begins like this prompt",
    ]


async def test_a_session_keeps_only_its_latest_endpoint_dear(autojump_clock):
    device = FakeDevice(small(lanes=1, slots=2, pages=128))
    async with running(device, OPTIONS) as engine:
        turn = prompt(20)
        for _ in range(4):
            heard = await hear(engine, job(turn, 5, session="s"))
            turn = joined(turn.ids, tuple(heard.tokens), (777,))
        cache = engine.scheduler.memory.cache
        assert list(cache.sessions) == ["s"]
        assert cache.sessions["s"].checkpoint
        await hear(engine, job(turn, 5, session="s", session_write=False))
        assert cache.sessions["s"].frontier < len(turn.ids)


@pytest.mark.parametrize(("rate", "loads"), [(1e9, True), (1e3, False)])
async def test_copying_is_chosen_only_where_it_beats_computing(autojump_clock, rate, loads):
    costs = ContextCosts(0.0, rate, 1e-3, 0.0)
    options = attrs.evolve(OPTIONS, costs=costs)
    geometry = {"lanes": 1, "slots": 1, "pages": 32, "host_bytes": 100_000}
    device = FakeDevice(small(**geometry))
    async with running(device, options) as engine:
        first = await hear(engine, job(prompt(90), 3))
        await hear(engine, job(prompt(240, seed=2), 3))
        again = await hear(engine, job(prompt(90), 3))
    assert again.tokens == first.tokens
    assert any(isinstance(unit, HostSave) for unit in device.log) == loads
    assert any(isinstance(unit, HostLoad) for unit in device.log) == loads
    assert again.admitted.cached_tokens == (64 if loads else 0)


# Tails


async def test_two_requests_that_share_a_half_filled_page_part_without_harm(autojump_clock):
    shared = prompt(13).ids
    marks = (Mark(13, MarkKind.EXPLICIT),)
    asks = [joined(shared, (900 + n,), marks=marks) for n in range(4)]
    device = FakeDevice(small(lanes=4, slots=9))
    async with running(device, OPTIONS) as engine:
        await hear(engine, job(asks[0], 2))
        together = await hear_all(engine, [job(ask, 30) for ask in asks])
    assert [one.admitted.cached_tokens for one in together] == [13] * 4
    alone = []
    for ask in asks:
        async with running(FakeDevice(), COLD) as engine:
            alone.append((await hear(engine, job(ask, 30))).tokens)
    assert [one.tokens for one in together] == alone
    assert sum(isinstance(unit, CopyPage) for unit in device.log) >= 4


@pytest.mark.parametrize(("page_tokens", "pages"), [(1, 600), (16, 40), (256, 6)])
async def test_any_page_size_and_one_span_a_lane_work_through_the_same_table(
    autojump_clock, page_tokens, pages
):
    """A page as large as the context is the contiguous mapping: one span for each lane."""
    shared = prompt(37).ids
    asks = [joined(shared, prompt(20, seed=n).ids) for n in (1, 2, 3, 4)]
    assert await same_as_cold(asks, page_tokens=page_tokens, pages=pages) == [0, 0, 37, 37]


async def test_the_last_slot_is_taken_over_rather_than_lost(autojump_clock):
    """With no slot to spare, a conversation goes on in the very slot that holds its endpoint."""
    device = FakeDevice(small(lanes=1, slots=1))
    async with running(device, OPTIONS) as engine:
        heard = await hear(engine, job(prompt(20), 5))
        copies = sum(isinstance(unit, CopyImage) for unit in device.log)
        again = await hear(engine, job(joined(prompt(20).ids, tuple(heard.tokens), (5,)), 5))
    assert again.admitted.cached_tokens == 24
    assert sum(isinstance(unit, CopyImage) for unit in device.log) == copies == 0
    assert any(isinstance(unit, Decode) for unit in device.log)
    assert [event.tokens for event in again.events if isinstance(event, Committed)]
