"""From the media parts of a conversation to prepared items, held for the life of a request.

Owns the order: acquire, read headers and refuse, reserve all memory at once, build what is missing on a
bounded pool of threads, one build for each payload however many requests want it.  Nothing that grows
with the size of a file runs on the event loop.

The one thing a reader would get wrong: memory is reserved before anything is decoded, from sizes that
the headers declare; a decoder that then produced something else would be refused, not accommodated.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from typing import TypeVar
from weakref import WeakValueDictionary

import anyio
import attrs

from ninfer.faults import Broken, invalid
from ninfer.media.account import Account
from ninfer.media.decode import DecodeLimits, Pulse
from ninfer.media.fetch import Fetcher
from ninfer.media.patches import Patches, media_key, preprocess
from ninfer.media.plan import Plan, make_plan
from ninfer.media.resize import Geometry
from ninfer.media.sources import Purse, is_data_uri, read_data_uri, weigh_data_uri
from ninfer.media.tasks import RunBlocking, Turnstile, at_work, together
from ninfer.prompt.conversation import Conversation, MediaPart
from ninfer.prompt.media import MediaItem
from ninfer.prompt.prepared import MediaStatistics, Preparation

T = TypeVar("T")
MAX_PATCHES = 131_072  # of one request: what the tower's workspace is planned for


@attrs.frozen
class RoomLimits:
    """What one request, and all of them together, may have under way.  Bytes, counts, pixels."""

    item_bytes: int = 64 << 20
    request_bytes: int = 256 << 20  # of the sources of one request
    preparing: int = 16  # requests that acquire or build media at one time; others wait in line
    fetches: int = 8  # of one request at one time
    decoding_pixels: int = 128_000_000  # of pictures being decoded at one time


@attrs.frozen
class Wanted:
    """One media part, acquired: its bytes, its identity and what it will become."""

    part: MediaPart
    data: bytes = attrs.field(repr=False)
    key: bytes
    plan: Plan


@attrs.define(eq=False)
class MediaRoom:
    """Prepares media for requests.

    ``run_blocking`` runs work on the bounded pool; ``pulse`` is called by long work there and raises
    when the request is gone.
    """

    fetcher: Fetcher
    geometry: Geometry
    limits: DecodeLimits
    account: Account
    run_blocking: RunBlocking
    room: RoomLimits = attrs.field(factory=RoomLimits)
    pulse: Pulse = lambda: None
    _decoding: int = 0  # pixels
    _entrance: anyio.CapacityLimiter = attrs.field(init=False)
    _memory: Turnstile = attrs.field(factory=Turnstile)
    _canvas: Turnstile = attrs.field(factory=Turnstile)
    _builds: WeakValueDictionary[bytes, anyio.Lock] = attrs.field(factory=WeakValueDictionary)

    def __attrs_post_init__(self) -> None:
        self._entrance = anyio.CapacityLimiter(self.room.preparing)

    @asynccontextmanager
    async def items(self, conversation: Conversation, costs: Preparation) -> AsyncIterator[list[MediaItem]]:
        """Prepare the conversation's media in order and keep them for the block; fills ``costs`` in.

        Raises ``Refused``.
        """
        parts = [p for m in conversation.messages for p in m.parts if isinstance(p, MediaPart)]
        with ExitStack() as held:
            yield await self._prepared(parts, costs, held) if parts else []

    def statistics(self) -> MediaStatistics:
        """Take the counts of this moment."""
        return self.account.statistics()

    async def _prepared(
        self, parts: list[MediaPart], costs: Preparation, held: ExitStack
    ) -> list[MediaItem]:
        """Acquire, reserve, build; what was reserved goes back when ``held`` closes."""
        self._check_number(parts)
        async with self._entrance:
            began = anyio.current_time()
            wanted = await self._acquired(parts)
            costs.acquisition = anyio.current_time() - began
            needs = self._needs(wanted)
            await self._memory.pass_when(partial(self.account.hold, needs))
            held.callback(self._release, needs)
            self._tell(wanted, costs)
            jobs = [partial(self._built, one, costs) for one in wanted]
            built = await together(jobs, self.room.preparing)
            costs.media_preprocess = anyio.current_time() - began - costs.acquisition
        return [self._item(one, patches) for one, patches in zip(wanted, built, strict=True)]

    def _release(self, keys: Iterable[bytes]) -> None:
        self.account.release(keys)
        self._memory.ring()

    # Acquisition

    def _check_number(self, parts: list[MediaPart]) -> None:
        """Refuse so many items that not even the smallest would fit, before anything is acquired."""
        g = self.geometry
        least = sum(g.least_patches if part.kind == "image" else g.merge**2 for part in parts)
        if least > MAX_PATCHES:
            message = f"{len(parts)} images and videos make at least {least} patches; {MAX_PATCHES} fit"
            raise invalid(message, param=parts[-1].param, code="media_budget_exceeded")

    async def _acquired(self, parts: list[MediaPart]) -> list[Wanted]:
        """Get and examine all parts; an address that is named twice is fetched once."""
        purse = Purse(self.room.item_bytes, self.room.request_bytes)
        addresses: dict[str, str] = {}
        for part in parts:
            if is_data_uri(part.source):
                weigh_data_uri(part.source, part.param, purse)
            else:
                addresses.setdefault(part.source, part.param)
        fetches = [partial(self.fetcher.fetch, url, param, purse) for url, param in addresses.items()]
        bodies = await together(fetches, self.room.fetches)
        remote = dict(zip(addresses, bodies, strict=True))
        look = [partial(self._examined, part, remote) for part in parts]
        return await together(look, self.room.fetches)

    async def _examined(self, part: MediaPart, remote: dict[str, list[bytes]]) -> Wanted:
        return await at_work(self.run_blocking, partial(self._examine, part, remote))

    def _examine(self, part: MediaPart, remote: dict[str, list[bytes]]) -> Wanted:
        """Join or decode the bytes, identify them, read their header; runs on a worker."""
        if is_data_uri(part.source):
            data = read_data_uri(part.source, part.param, self.room.item_bytes)
        else:
            data = b"".join(remote[part.source])
        self.pulse()
        plan = make_plan(part.kind, data, part.param, self.geometry, self.limits)
        return Wanted(part, data, media_key(part.kind, data), plan)

    def _needs(self, wanted: list[Wanted]) -> dict[bytes, int]:
        """Return the bytes of each payload; refuses what can never fit."""
        patches = 0
        for one in wanted:
            patches += one.plan.patches
            if patches > MAX_PATCHES:
                message = f"the media make more than {MAX_PATCHES} patches, which one request may have"
                raise invalid(message, param=one.part.param, code="media_budget_exceeded")
        needs = {one.key: one.plan.nbytes for one in wanted}
        if sum(needs.values()) > self.account.limit:
            message = "the media of this request need more memory than the server gives to media"
            raise invalid(message, param=wanted[-1].part.param, code="media_budget_exceeded")
        return needs

    # Building

    async def _built(self, one: Wanted, costs: Preparation) -> Patches:
        """Return the payload, built once; a builder that is cancelled leaves the work to the next."""
        entry = self.account.entry(one.key)
        lock = self._builds.setdefault(one.key, anyio.Lock())  # lives as long as somebody waits for it
        if entry.value is None and lock.locked():
            costs.singleflight_waits += 1
        async with lock:
            if entry.value is None:
                patches, seconds = await self._build(one)
                entry.value = patches
                costs.media_preprocess_work += seconds
                costs.built_patch_bytes += patches.nbytes
        if not isinstance(entry.value, Patches):
            raise Broken("a media entry holds something else")
        return entry.value

    async def _build(self, one: Wanted) -> tuple[Patches, float]:
        """Build on a worker, when the pixels have room beside those being decoded already."""
        pixels = one.plan.source_pixels
        await self._canvas.pass_when(partial(self._take_canvas, pixels))
        try:
            work = partial(preprocess, one.plan, one.data, one.part.param, self.pulse)
            return await at_work(self.run_blocking, partial(_timed, work))
        finally:
            self._decoding -= pixels
            self._canvas.ring()

    def _take_canvas(self, pixels: int) -> bool:
        if self._decoding and self._decoding + pixels > self.room.decoding_pixels:
            return False  # whoever is alone may be larger
        self._decoding += pixels
        return True

    def _item(self, one: Wanted, built: Patches) -> MediaItem:
        return MediaItem(one.part.kind, built.grid, one.key, built.seconds, built.rows)

    def _tell(self, wanted: list[Wanted], costs: Preparation) -> None:
        """Count what was acquired and what of it is already there; the room holds all of it by now."""
        distinct = {one.key: one for one in wanted}
        costs.media_items = len(wanted)
        costs.media_bytes = sum(len(one.data) for one in wanted)
        costs.raw_patches = sum(one.plan.patches for one in wanted)
        costs.vision_tokens = costs.raw_patches // self.geometry.merge**2
        costs.patch_bytes = sum(one.plan.nbytes for one in wanted)
        ready = [one for key, one in distinct.items() if self.account.entry(key).value is not None]
        costs.cache_hits, costs.cache_misses = len(ready), len(distinct) - len(ready)
        costs.reused_patch_bytes = sum(one.plan.nbytes for one in ready)


def _timed(work: Callable[[], T]) -> tuple[T, float]:
    began = time.perf_counter()
    return work(), time.perf_counter() - began
