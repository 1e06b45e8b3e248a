"""The media room on a mock clock: one build each, memory in order of arrival, nothing left behind."""

from __future__ import annotations

import base64
import gc
import itertools
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

import anyio
import anyio.to_thread
import attrs
import pytest
import trio

from ninfer.faults import Fault, Kind, Refused
from ninfer.frontend import build_media
from ninfer.media import patches
from ninfer.media import room as rooms
from ninfer.media.account import Account
from ninfer.media.decode import DecodeLimits
from ninfer.media.fetch import Fetcher
from ninfer.media.room import MediaRoom, RoomLimits
from ninfer.media.sources import Purse
from ninfer.prompt.conversation import Conversation, MediaPart, Message, TextPart
from ninfer.prompt.prepared import Preparation
from ninfer.settings import MediaOptions
from tests.media.hostile import Configs
from tests.media.pictures import SMALL, animated, build, saved, scene
from tests.sim.everywhere import cancelled_everywhere

T = TypeVar("T")
LARGE = 512 * 512 * 6  # bytes of a prepared picture of 512 x 512


@attrs.define(eq=False)
class Origin:
    """Remote media: address to bytes, each taking a second; ``asked`` lists what was fetched."""

    files: dict[str, bytes] = attrs.field(factory=dict)
    asked: list[str] = attrs.field(factory=list)
    busy: int = 0
    busiest: int = 0

    async def fetch(self, url: str, param: str, purse: Purse) -> list[bytes]:
        self.asked.append(url)
        self.busy += 1
        self.busiest = max(self.busy, self.busiest)
        try:
            await anyio.sleep(1)
            if url not in self.files:
                raise Refused(Fault(Kind.FETCH_FAILED, "no", "media_fetch_failed", param))
            purse.take(len(self.files[url]), param)
            return [self.files[url]]
        finally:
            self.busy -= 1


@attrs.define(eq=False)
class Workers:
    """Worker threads of a mock clock: every piece of work takes a tenth of a second."""

    done: int = 0

    async def __call__(self, work: Callable[[], T], /) -> T:
        await anyio.sleep(0.1)
        self.done += 1
        return work()


def make_room(live: int = 1 << 30, keep: int = 0, **limits: Any) -> MediaRoom:
    origin: Any = Origin()
    assert isinstance(Fetcher().policy, str)  # what ``origin`` stands in for
    return MediaRoom(origin, SMALL, DecodeLimits(), Account(live, keep), Workers(), RoomLimits(**limits))


@cache
def picture(seed: int = 0, side: int = 512) -> bytes:
    return saved(scene(side, side, seed), "PNG")


def uri(data: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(data).decode()


def talk(*sources: str, kind: Any = "image") -> Conversation:
    parts = [MediaPart(kind, source, f"messages[0].content[{n}]") for n, source in enumerate(sources)]
    return Conversation((Message("user", (TextPart("look"), *parts)),))


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    """Count the builds."""
    built: list[bytes] = []
    real = patches.preprocess

    def preprocess(plan: Any, data: bytes, param: str, pulse: Any) -> Any:
        built.append(data)
        return real(plan, data, param, pulse)

    monkeypatch.setattr(rooms, "preprocess", preprocess)
    yield built


def assert_empty(room: MediaRoom) -> None:
    """Nothing is alive, awaited, being built or decoded."""
    room.account.check()
    assert room.account.statistics().live_bytes == room.account.cached <= room.account.keep
    assert not room._builds and not room._decoding
    assert not room._memory._line and not room._canvas._line
    assert room._entrance.borrowed_tokens == 0


async def use(room: MediaRoom, conversation: Conversation, seconds: float = 1.0) -> Preparation:
    costs = Preparation()
    async with room.items(conversation, costs):
        room.account.check()
        await anyio.sleep(seconds)
    return costs


async def refusal(room: MediaRoom, conversation: Conversation) -> Fault:
    try:
        await use(room, conversation)
    except Refused as refused:
        fault = refused.fault
    assert_empty(room)
    return fault


async def test_items_come_in_the_order_of_the_conversation(autojump_clock: Any) -> None:
    room = make_room()
    clip = animated("WEBP", [scene(64, 64, n) for n in range(4)], lossless=True)
    asked = talk(uri(picture(0)), uri(picture(1, 64)), uri(picture(0)))
    moving = MediaPart("video", uri(clip), "messages[1].content[0]")
    asked = attrs.evolve(asked, messages=(*asked.messages, Message("user", (moving,))))
    async with room.items(asked, Preparation()) as items:
        assert [item.kind for item in items] == ["image", "image", "image", "video"]
        assert [item.grid for item in items] == [(1, 32, 32), (1, 4, 4), (1, 32, 32), (2, 4, 4)]
        assert items[0].payload is items[2].payload and items[0].digest == items[2].digest
        assert (items[0].payload == build(picture(0)).rows).all()
        assert not items[0].payload.flags.writeable
        assert room.account.live == LARGE + 64 * 64 * 6 + 2 * 64 * 64 * 6
    assert_empty(room)


async def test_sixteen_requests_with_eight_large_pictures_share_room_for_two(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = make_room(live=2 * LARGE)
    finished = []
    with counted(monkeypatch) as built:

        async def request(n: int) -> None:
            await use(room, talk(uri(picture(n % 8))))
            finished.append(n)

        async with trio.open_nursery() as nursery:
            for n in range(16):
                nursery.start_soon(request, n)
    assert sorted(finished) == list(range(16)) and len(built) <= 16
    assert_empty(room)
    assert room.account.live == 0


async def test_requests_for_two_of_three_pictures_do_not_lock_each_other(autojump_clock: Any) -> None:
    room = make_room(live=2 * LARGE, keep=LARGE)
    pairs = [pair for _ in range(3) for pair in itertools.permutations(range(4), 2)]
    async with trio.open_nursery() as nursery:
        for a, b in pairs:
            nursery.start_soon(use, room, talk(uri(picture(a)), uri(picture(b))))
    assert_empty(room)
    assert room.account.live == LARGE  # what the cache keeps


async def test_nobody_overtakes_in_the_line_for_memory(autojump_clock: Any) -> None:
    room, order = make_room(live=2 * LARGE), []

    async def request(name: str, *pictures: int) -> None:
        async with room.items(talk(*(uri(picture(n)) for n in pictures)), Preparation()):
            order.append(name)
            await anyio.sleep(5)

    async with trio.open_nursery() as nursery:
        for name, pictures in (("first", (0,)), ("both", (1, 2)), ("small", (3,))):
            nursery.start_soon(request, name, *pictures)
            await anyio.sleep(1)
    assert order == ["first", "both", "small"]


async def test_identical_media_are_built_once_however_many_ask(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    room, costs = make_room(keep=LARGE), []
    with counted(monkeypatch) as built:

        async def request() -> None:
            costs.append(await use(room, talk(uri(picture()), uri(picture()))))

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(request)
        costs.append(await use(room, talk(uri(picture()))))
    assert len(built) == 1
    assert sum(cost.built_patch_bytes for cost in costs) == LARGE
    assert sum(cost.singleflight_waits for cost in costs) >= 4
    assert (costs[-1].cache_hits, costs[-1].cache_misses) == (1, 0)
    assert costs[-1].reused_patch_bytes == LARGE and costs[-1].media_preprocess_work == 0
    assert_empty(room)


async def test_costs_say_what_was_done(autojump_clock: Any) -> None:
    room = make_room()
    assert isinstance(room.fetcher, Origin)
    room.fetcher.files["http://a/"] = picture()
    costs = await use(room, talk("http://a/", uri(picture(1))))
    assert costs.media_items == 2 and costs.media_bytes == len(picture()) + len(picture(1))
    assert costs.raw_patches == 2048 and costs.vision_tokens == 512
    assert costs.patch_bytes == costs.built_patch_bytes == 2 * LARGE
    assert (costs.cache_hits, costs.cache_misses, costs.reused_patch_bytes) == (0, 2, 0)
    assert costs.acquisition == pytest.approx(1.1) and costs.media_preprocess == pytest.approx(0.1)
    assert costs.media_preprocess_work > 0


async def test_an_address_named_twice_is_fetched_once_and_many_side_by_side(autojump_clock: Any) -> None:
    room = make_room(fetches=3)
    origin = room.fetcher
    assert isinstance(origin, Origin)
    origin.files = {f"http://a/{n}": picture(n % 2, 64) for n in range(7)}
    began = trio.current_time()
    await use(room, talk(*origin.files, "http://a/0"), 0)
    assert sorted(origin.asked) == sorted(origin.files) and origin.busiest == 3
    assert trio.current_time() - began == pytest.approx(3 + 3 * 0.1 + 0.1)


async def test_a_broken_picture_names_its_part_and_leaves_nothing(autojump_clock: Any) -> None:
    room = make_room(keep=1 << 30)
    damaged = picture()[:-4000]
    for _ in range(3):
        fault = await refusal(room, talk(uri(picture(1)), uri(damaged), uri(picture(2))))
        assert (fault.code, fault.param) == ("invalid_media", "messages[0].content[1]")
    assert (await refusal(room, talk(uri(b"hello")))).code == "invalid_media"
    assert (await refusal(room, talk("http://nowhere/"))).code == "media_fetch_failed"


async def test_a_refused_source_is_let_go_without_the_collector(autojump_clock: Any) -> None:
    room = make_room()
    room.run_blocking = anyio.to_thread.run_sync
    body = picture()[:-4000]
    assert isinstance(room.fetcher, Origin)
    room.fetcher.files["http://a/"] = body
    before = sys.getrefcount(body)
    gc.disable()
    try:
        code = None
        try:
            await use(room, talk("http://a/"))
        except Refused as refused:
            code = refused.fault.code
        for _ in range(200):  # a worker lets go of what it raised a moment after it has answered
            if not room._builds and sys.getrefcount(body) == before:
                break
            await anyio.to_thread.run_sync(time.sleep, 0.005)
        assert code == "invalid_media"
        assert_empty(room)
        assert sys.getrefcount(body) == before
    finally:
        gc.enable()


async def test_those_who_wait_for_a_build_that_fails_fail_too(autojump_clock: Any) -> None:
    room, faults = make_room(), []

    async def request() -> None:
        try:
            await use(room, talk(uri(picture()[:-4000])))
        except Refused as refused:
            faults.append(refused.fault.code)

    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(request)
    assert faults == ["invalid_media"] * 4
    assert_empty(room)


async def test_a_builder_that_leaves_hands_the_work_on(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    room, scope = make_room(), trio.CancelScope()
    with counted(monkeypatch) as built:

        async def leaver() -> None:
            with scope:
                await use(room, talk(uri(picture())))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(leaver)
            await anyio.sleep(0.05)
            nursery.start_soon(use, room, talk(uri(picture())))
            await anyio.sleep(0.1)  # the leaver builds now
            scope.cancel()
    assert len(built) == 1
    assert_empty(room)


async def test_what_can_never_fit_is_refused_at_once(autojump_clock: Any) -> None:
    tight = make_room(live=2 * LARGE - 1)
    fault = await refusal(tight, talk(uri(picture(0)), uri(picture(1))))
    assert (fault.code, fault.param) == ("media_budget_exceeded", "messages[0].content[1]")
    await use(tight, talk(uri(picture(0)), uri(picture(0))))  # one payload, however often it is shown
    crowd = talk(*["data:;base64,AAAA"] * (rooms.MAX_PATCHES // 16 + 1))
    room = make_room()
    assert (await refusal(room, crowd)).code == "media_budget_exceeded"
    assert isinstance(room.run_blocking, Workers) and not room.run_blocking.done
    patches = talk(*(uri(picture(n % 3)) for n in range(rooms.MAX_PATCHES // 1024 + 1)))
    assert (await refusal(room, patches)).param == f"messages[0].content[{rooms.MAX_PATCHES // 1024}]"


async def test_sources_have_a_budget_for_each_item_and_for_all(autojump_clock: Any) -> None:
    size = len(picture())
    for limits, where in (({"item_bytes": size - 9}, 0), ({"request_bytes": 2 * size}, 2)):
        fault = await refusal(make_room(**limits), talk(*[uri(picture())] * 3))
        assert (fault.code, fault.param) == ("media_budget_exceeded", f"messages[0].content[{where}]")
    room = make_room(request_bytes=2 * size)
    assert isinstance(room.fetcher, Origin)
    room.fetcher.files = dict.fromkeys(["http://a/", "http://b/", "http://c/"], picture())
    assert (await refusal(room, talk(*room.fetcher.files))).code == "media_budget_exceeded"


async def test_source_bytes_are_let_go_once_the_media_are_ready(autojump_clock: Any) -> None:
    room = make_room()
    body = picture(5)[:] + b"tail"
    assert isinstance(room.fetcher, Origin)
    room.fetcher.files["http://a/"] = body
    before = sys.getrefcount(body)
    async with room.items(talk("http://a/"), Preparation()):
        assert sys.getrefcount(body) == before


async def test_only_so_many_pixels_are_decoded_at_one_time(autojump_clock: Any) -> None:
    room, most = make_room(decoding_pixels=2 * 512 * 512), 0
    took = MediaRoom._take_canvas

    def watch(self: MediaRoom, pixels: int) -> bool:
        nonlocal most
        taken = took(self, pixels)
        most = max(most, self._decoding)
        return taken

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MediaRoom, "_take_canvas", watch)
        await use(room, talk(*(uri(picture(n)) for n in range(6))))
        assert most == 2 * 512 * 512
        alone = make_room(decoding_pixels=1)
        await use(alone, talk(*(uri(picture(n)) for n in range(2))))
    assert_empty(room)


async def test_only_so_many_requests_prepare_at_one_time(autojump_clock: Any) -> None:
    room = make_room(preparing=2)
    origin = room.fetcher
    assert isinstance(origin, Origin)
    origin.files = {f"http://a/{n}": picture(n, 64) for n in range(5)}
    async with trio.open_nursery() as nursery:
        for url in origin.files:
            nursery.start_soon(use, room, talk(url), 100)  # being used holds up nobody
    assert origin.busiest == 2


async def test_text_passes_at_once(autojump_clock: Any) -> None:
    room = make_room(preparing=1)
    began = trio.current_time()
    costs = await use(room, Conversation((Message("user", (TextPart("hi"),)),)), 0)
    assert trio.current_time() == began and costs == Preparation()


async def test_a_cancellation_anywhere_leaves_nothing(autojump_clock: Any) -> None:
    """Two requests that share a picture, fetch one and wait for memory, cut at every suspension."""
    room: MediaRoom

    async def scenario() -> None:
        nonlocal room
        room = make_room(live=2 * 64 * 64 * 6, keep=64 * 64 * 6)
        assert isinstance(room.fetcher, Origin)
        room.fetcher.files["http://a/"] = picture(1, 64)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(use, room, talk(uri(picture(0, 64)), "http://a/"))
            nursery.start_soon(use, room, talk(uri(picture(0, 64))))
            nursery.start_soon(use, room, talk(uri(picture(2, 64)), "http://a/"))

    cut = 0
    async for _ in cancelled_everywhere(scenario):
        cut += 1
        assert_empty(room)
    assert cut > 40


@pytest.mark.slow
async def test_a_worker_stops_decoding_for_a_client_that_left() -> None:
    """On real threads: an animation that takes a second is given up within a few frames."""
    frames = [scene(400, 400, n).quantize(16) for n in range(3)] * 60
    source = uri(animated("GIF", frames, 500))
    room = build_media(Configs(), MediaOptions(threads=1))
    began = trio.current_time()
    with trio.move_on_after(0.05) as scope:
        await use(room, talk(source, kind="video"))
    left = trio.current_time() - began
    assert scope.cancelled_caught
    assert_empty(room)
    began = trio.current_time()
    await use(room, talk(source, kind="video"), 0)
    assert left < 0.6 * (trio.current_time() - began)
