"""The engine loop on a costed device: text, limits, stops, cancellation, deadlines, failure."""

from __future__ import annotations

import itertools

import anyio
import pytest
import trio

from ninfer.engine.device import Decode, DeviceFailed, Prefill
from ninfer.engine.job import Done, Failed, Finish
from ninfer.engine.loop import Engine
from ninfer.faults import Kind, Refused
from ninfer.prompt.prepared import MediaSpan, Prepared
from ninfer.settings import EngineOptions
from tests.sim.fake_device import STOP, FakeDevice, Hashed, Script, small
from tests.sim.harness import Reader, hear, hear_all, idle, job, prompt, running


async def test_a_script_is_heard_token_by_token_and_stops(autojump_clock):
    ask = prompt(5)
    device = FakeDevice(voice=Script({ask.ids: (11, 12, 13)}))
    async with running(device) as engine:
        heard = await hear(engine, job(ask))
    assert heard.tokens == [11, 12, 13, STOP]
    assert heard.finish is Finish.STOP_TOKEN
    assert heard.end.summary.output_tokens == (11, 12, 13, STOP)
    assert (heard.admitted.prompt_tokens, heard.admitted.cached_tokens) == (5, 0)


async def test_running_ahead_wastes_exactly_one_row_at_a_stop(autojump_clock):
    ask = prompt(5)
    device = FakeDevice(voice=Script({ask.ids: (11, 12, 13)}))
    async with running(device) as engine:
        await hear(engine, job(ask))
    decodes = [unit for unit in device.log if isinstance(unit, Decode)]
    assert len(decodes) == 4  # 12, 13, STOP and the row that ran behind STOP
    assert decodes[-1].rows[0].frontier == 8  # prompt, 11, 12, 13: it forwarded STOP itself
    assert all(row.token is None for unit in decodes for row in unit.rows)


async def test_the_output_limit_wastes_nothing(autojump_clock):
    device = FakeDevice()
    async with running(device) as engine:
        heard = await hear(engine, job(5, max_tokens=4))
    assert heard.finish is Finish.OUTPUT_LIMIT
    assert len(heard.tokens) == 4
    assert sum(isinstance(unit, Decode) for unit in device.log) == 3


@pytest.mark.parametrize("max_tokens", [0, 1])
async def test_tiny_limits(autojump_clock, max_tokens):
    device = FakeDevice()
    async with running(device) as engine:
        heard = await hear(engine, job(40, max_tokens=max_tokens))
    assert heard.finish is Finish.OUTPUT_LIMIT
    assert len(heard.tokens) == max_tokens
    assert heard.progress == [32, 40]
    assert not any(isinstance(unit, Decode) for unit in device.log)


@pytest.mark.parametrize("length", [256, 255, 250])
async def test_the_context_bounds_the_answer(autojump_clock, length):
    async with running() as engine:
        heard = await hear(engine, job(length, max_tokens=100))
    assert heard.finish is Finish.CONTEXT
    assert len(heard.tokens) == 256 - length


@pytest.mark.parametrize("lanes", range(1, 9))
async def test_text_does_not_depend_on_company(autojump_clock, lanes):
    works = [lambda n=n: job(prompt(5 + 11 * n, seed=n), 20, seed=n) for n in range(10)]
    alone = []
    for work in works:
        async with running(FakeDevice(small(lanes=1), voice=Hashed(length=30))) as engine:
            alone.append((await hear(engine, work())).tokens)
    device = FakeDevice(small(lanes=lanes, pages=256), voice=Hashed(length=30))
    async with running(device) as engine:
        together = await hear_all(engine, [work() for work in works])
    assert [heard.tokens for heard in together] == alone
    assert max(len(unit.rows) for unit in device.log if isinstance(unit, Decode)) == min(lanes, 10)


async def test_a_long_prompt_shares_cycles_with_the_decoding_batch(autojump_clock):
    device = FakeDevice()
    async with running(device) as engine:
        with engine.submit(job(5, 100)):
            await trio.sleep(0.05)
            begun = len(device.log)
            await hear(engine, job(160, 4))
    work = [type(unit) for unit in device.log[begun:] if isinstance(unit, Prefill | Decode)]
    first = work.index(Prefill)
    assert work[first - 1 : first + 9] == [Decode, Prefill] * 5
    assert sum(len(unit.rows) == 2 for unit in device.log[begun:] if isinstance(unit, Decode)) == 3


async def test_prompt_positions_and_media_reach_the_device_chunk_by_chunk(autojump_clock):
    span = MediaSpan(b"\1" * 32, (1, 4, 4), ((30, 4),))
    axis = tuple(range(60))
    ask = prompt(60, positions=(axis, axis, axis), media=(span,), rope_delta=-2)
    device = FakeDevice()
    async with running(device) as engine:
        await hear(engine, job(ask, 3))
    chunks = [unit for unit in device.log if isinstance(unit, Prefill)]
    assert [len(unit.ids) for unit in chunks] == [32, 28]
    assert [unit.media for unit in chunks] == [(span,), (span,)]
    assert chunks[1].positions == (axis[32:],) * 3
    rows = [unit.rows[0] for unit in device.log if isinstance(unit, Decode)]
    assert {row.rope_delta for row in rows} == {-2}


# Refusals


@pytest.mark.parametrize(
    ("work", "code"),
    [
        (job(prompt(0)), "invalid_prompt"),
        (job(prompt(257)), "context_length_exceeded"),
        (job(Prepared((1, 1000), False)), "invalid_prompt"),
        (job(Prepared((-1,), False)), "invalid_prompt"),
        (job(Prepared((1 << 31,), False)), "invalid_prompt"),
    ],
)
async def test_impossible_prompts_are_refused_before_they_queue(autojump_clock, work, code):
    async with running() as engine:
        with pytest.raises(Refused) as refusal:
            engine.submit(work)
    assert refusal.value.fault.code == code
    assert refusal.value.fault.kind is Kind.INVALID


async def test_a_full_house_is_refused_at_once(autojump_clock):
    async with running(options=EngineOptions(max_pending=1)) as engine:
        with engine.seat(), engine.seat(), engine.seat():
            with pytest.raises(Refused) as refusal, engine.seat():
                pass
            assert refusal.value.fault.code == "server_overloaded"
        with engine.seat():
            assert engine.stats().seats_taken == 1
    assert engine.stats().seats_taken == 0


# Deadlines


async def test_a_waiting_request_times_out_on_the_exact_second(autojump_clock):
    device = FakeDevice(small(lanes=1, max_context=4096, pages=512))
    async with running(device) as engine:
        with engine.seat() as seat:
            await trio.sleep(2)  # preparation counts
            async with engine.submit(job(5, 4000)):
                await trio.sleep(0.001)
                heard = await hear(engine, job(5, 4, deadline=seat.deadline, arrived=seat.arrived))
    assert isinstance(heard.end, Failed)
    assert heard.end.fault.kind is Kind.QUEUE_TIMEOUT
    assert heard.end.fault.code == "request_queue_timeout"
    assert heard.end.summary.ended == 30.0
    assert (heard.end.summary.arrived, heard.end.summary.submitted) == (0.0, pytest.approx(2.001))


async def test_preparation_that_outlasts_the_deadline_is_refused_at_it(autojump_clock):
    async with running() as engine:
        await trio.sleep(7)
        with pytest.raises(Refused) as refusal, engine.seat() as seat, seat.patience():
            await trio.sleep_forever()
        assert trio.current_time() == 37.0
        assert refusal.value.fault.code == "request_queue_timeout"


async def test_an_admitted_request_has_no_deadline(autojump_clock):
    async with running(FakeDevice(small(max_context=4096, pages=512))) as engine:
        heard = await hear(engine, job(5, 3500, deadline=1.0))
    assert heard.end.summary.ended > 30
    assert heard.finish is Finish.OUTPUT_LIMIT


# Cancellation


@pytest.mark.parametrize(
    ("wait", "phase"), [(0.0, "waiting"), (0.0105, "prefilling"), (0.1, "decode_ready")]
)
async def test_leaving_gives_lane_and_pages_back_at_the_next_unit_boundary(autojump_clock, wait, phase):
    device = FakeDevice(small(lanes=2, max_context=1024, pages=512))
    async with running(device) as engine:
        blockers = [engine.submit(job(5, 500)) for _ in range(2 if phase == "waiting" else 1)]
        await trio.sleep(0.05)
        ended = trio.Event()
        ends = []
        reader = engine.submit(job(500, 400, on_end=lambda end: (ends.append(end), ended.set())))
        await trio.sleep(wait)
        assert getattr(engine.stats(), phase) >= 1
        reader.close()
        before = trio.current_time()
        await ended.wait()
        assert trio.current_time() - before <= 0.0143  # one chunk and one batch at most
        assert engine.stats().running == len(blockers)
        assert engine.stats().pages.held <= 4 * len(blockers)
        assert ends[0].finish is Finish.CANCELLED
        for blocker in blockers:
            blocker.close()
        await idle(engine)
    assert len(ends) == 1


async def test_slow_readers_never_hold_up_the_batch(autojump_clock):
    async def gaps(stuck: int) -> list[float]:
        async with running(FakeDevice(small(lanes=8, pages=512))) as engine:
            silent = [engine.submit(job(5, 100)) for _ in range(stuck)]
            heard = await hear(engine, job(9, 50))
            for stream in silent:
                stream.close()
        times = [event.at for event in heard.events[2:-1]]
        return [round(b - a, 9) for a, b in itertools.pairwise(times)]

    assert set((await gaps(7))[8:]) == set((await gaps(0))[8:])


# Failure


@pytest.mark.parametrize("at", range(8))
async def test_a_lost_device_is_told_to_everyone_and_is_final(autojump_clock, at):
    device = FakeDevice(small(lanes=2), faults={at: "fail"})
    ends = []
    async with running(device) as engine:
        heard = await hear_all(engine, [job(40, 20, on_end=ends.append) for _ in range(4)])
        assert isinstance(engine.failure, DeviceFailed)
        with pytest.raises(Refused) as refusal:
            engine.submit(job())
        with pytest.raises(Refused), engine.seat():
            pass
    assert refusal.value.fault.kind is Kind.UNAVAILABLE
    assert all(isinstance(one.end, Failed) and one.end.fault.kind is Kind.INTERNAL for one in heard)
    assert len(ends) == 4


async def test_a_row_without_a_token_fails_its_request_alone(autojump_clock):
    device = FakeDevice(small(lanes=2), faults={6: "nan"})
    async with running(device) as engine:
        heard = await hear_all(engine, [job(10, 20), job(12, 20)])
    assert sorted(isinstance(one.end, Failed) for one in heard) == [False, True]
    (failed,) = (one for one in heard if isinstance(one.end, Failed))
    assert failed.end.fault.code == "non_finite_logits"


async def test_a_judge_that_breaks_fails_its_request_alone(autojump_clock):
    class Bug(Reader):
        def take(self, token):
            raise ZeroDivisionError

    async with running() as engine:
        heard = await hear_all(engine, [job(10, 20, judge=Bug()), job(12, 20)])
    assert isinstance(heard[0].end, Failed)
    assert heard[1].finish is Finish.OUTPUT_LIMIT


async def test_a_judge_that_breaks_at_the_end_fails_its_request_alone(autojump_clock):
    class Bug(Reader):
        def finish(self):
            raise ZeroDivisionError

    async with running() as engine:
        heard = await hear_all(engine, [job(10, 20, judge=Bug()), job(12, 20)])
    assert isinstance(heard[0].end, Failed)
    assert heard[1].finish is Finish.OUTPUT_LIMIT


async def test_stopping_the_engine_tells_open_requests(autojump_clock):
    engine = Engine(FakeDevice(), EngineOptions())
    heard = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(engine.run)
        stream = engine.submit(job(5, 100))
        await trio.sleep(0.1)
        tasks.cancel_scope.cancel()
    with stream:
        heard = [event async for event in stream]
    assert isinstance(heard[-1], Failed)
    assert heard[-1].fault.kind is Kind.UNAVAILABLE
    engine.check()


async def test_draining_refuses_newcomers_and_waits_for_seats(autojump_clock):
    async with running() as engine, anyio.create_task_group() as tasks:

        async def client():
            with engine.seat():
                await hear(engine, job(5, 10))

        tasks.start_soon(client)
        await trio.sleep(0.01)
        await engine.drain()
        assert engine.stats().seats_taken == 0
        with pytest.raises(Refused), engine.seat():
            pass


async def test_who_has_a_seat_may_still_submit_while_the_engine_drains(autojump_clock):
    async with running() as engine, anyio.create_task_group() as tasks:
        with engine.seat():
            tasks.start_soon(engine.drain)
            await trio.sleep(0.01)
            heard = await hear(engine, job(5, 10))
    assert heard.finish is Finish.OUTPUT_LIMIT


async def test_a_keeper_of_books_that_breaks_silences_no_other_request(autojump_clock):
    def broken(end):
        raise ZeroDivisionError

    engine = Engine(FakeDevice(), EngineOptions())
    streams = [engine.submit(job(5, 50, on_end=broken)) for _ in range(2)]
    await engine.run()
    assert isinstance(engine.failure, ZeroDivisionError)
    for stream in streams:
        with stream:
            assert isinstance([event async for event in stream][-1], Done | Failed)


@pytest.mark.parametrize(("company", "sizes"), [(False, [64, 64, 22]), (True, [16] * 9 + [6])])
async def test_chunks_are_short_only_while_others_decode(autojump_clock, company, sizes):
    device = FakeDevice(small(prefill_chunk=64))
    options = EngineOptions(max_pending=64, prefill_chunk=16)
    async with running(device, options) as engine:
        other = engine.submit(job(5, 200)) if company else None
        await trio.sleep(0.1)
        begun = len(device.log)
        await hear(engine, job(150, 2))
        if other is not None:
            other.close()
    assert [len(unit.ids) for unit in device.log[begun:] if isinstance(unit, Prefill)] == sizes
