"""From the media parts of a conversation to prepared items, held for the life of a request.

Owns the order: fetch, read headers and refuse, reserve all memory at once, build what is missing on a
bounded pool of threads, one build for each payload however many requests want it.

The one thing a reader would get wrong: memory is reserved before anything is decoded, from sizes that
the headers declare; a decoder that then produced more would be refused, not accommodated.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import attrs

from ninfer.faults import Broken, invalid
from ninfer.media.account import Account
from ninfer.media.decode import DecodeLimits
from ninfer.media.fetch import Fetcher
from ninfer.media.patches import Patches, media_key, preprocess
from ninfer.media.plan import plan_patches
from ninfer.media.resize import Geometry
from ninfer.prompt.conversation import Conversation, MediaPart
from ninfer.prompt.media import MediaItem
from ninfer.prompt.prepared import Preparation

RunBlocking = Callable[[Callable[[], Any]], Awaitable[Any]]
MAX_PATCHES = 131_072  # of one request: what the tower's workspace is planned for


@attrs.frozen
class Wanted:
    """One media part with its bytes and what it will need."""

    part: MediaPart
    data: bytes = attrs.field(repr=False)
    key: bytes
    size: int  # bytes of the prepared payload


@attrs.define(eq=False)
class MediaRoom:
    """Prepares media for requests.  ``run_blocking`` runs a build on the bounded pool."""

    fetcher: Fetcher
    geometry: Geometry
    limits: DecodeLimits
    account: Account
    run_blocking: RunBlocking
    _line: deque[object] = attrs.field(factory=deque)
    _changed: anyio.Event = attrs.field(factory=anyio.Event)
    _building: dict[bytes, anyio.Lock] = attrs.field(factory=dict)

    @asynccontextmanager
    async def items(
        self, conversation: Conversation, costs: Preparation | None = None
    ) -> AsyncIterator[list[MediaItem]]:
        """Prepare the conversation's media in order and keep them for the block.

        ``costs`` is filled in.  Raises ``Refused``.
        """
        costs = Preparation() if costs is None else costs
        parts = [p for m in conversation.messages for p in m.parts if isinstance(p, MediaPart)]
        began = anyio.current_time()
        wanted = [await self._wanted(part) for part in parts]
        costs.acquisition = anyio.current_time() - began
        needs = {one.key: one.size for one in wanted}
        self._check(wanted, needs)
        await self._hold(needs)
        try:
            began = anyio.current_time()
            items = [self._item(one, await self._built(one, costs)) for one in wanted]
            costs.media_preprocess = anyio.current_time() - began
            self._tell(wanted, items, costs)
            yield items
        finally:
            self.account.release(needs)
            self._ring()

    async def _wanted(self, part: MediaPart) -> Wanted:
        data = await self.fetcher.acquire(part.source, part.param)
        patches = await self.run_blocking(
            lambda: plan_patches(part.kind, data, part.param, self.geometry, self.limits)
        )
        values = 3 * self.geometry.temporal * self.geometry.patch**2
        return Wanted(part, data, media_key(part.kind, data), 2 * patches * values)

    def _check(self, wanted: list[Wanted], needs: dict[bytes, int]) -> None:
        if not wanted:
            return
        values = 3 * self.geometry.temporal * self.geometry.patch**2
        patches = sum(one.size for one in wanted) // (2 * values)
        last = wanted[-1].part.param
        if patches > MAX_PATCHES:
            message = f"the media make {patches} patches; one request may have {MAX_PATCHES}"
            raise invalid(message, param=last, code="media_budget_exceeded")
        if sum(needs.values()) > self.account.limit:
            message = "the media of this request need more memory than the server gives to media"
            raise invalid(message, param=last, code="media_budget_exceeded")

    async def _hold(self, needs: dict[bytes, int]) -> None:
        """Wait in line until everything fits; the deadline is the caller's."""
        turn = object()
        self._line.append(turn)
        try:
            while self._line[0] is not turn or not self.account.hold(needs):
                await self._changed.wait()
        finally:
            self._line.remove(turn)
            self._ring()

    def _ring(self) -> None:
        """Let those in line look again."""
        self._changed.set()
        self._changed = anyio.Event()

    async def _built(self, one: Wanted, costs: Preparation) -> Patches:
        """Return the payload, built once; a builder that is cancelled leaves the work to the next."""
        entry = self.account.entry(one.key)
        lock = self._building.setdefault(one.key, anyio.Lock())
        costs.singleflight_waits += lock.locked()
        async with lock:
            if entry.value is None:
                began = anyio.current_time()
                entry.value = await self.run_blocking(
                    lambda: preprocess(one.part.kind, one.data, one.part.param, self.geometry, self.limits)
                )
                costs.media_preprocess_work += anyio.current_time() - began
                costs.cache_misses += 1
                costs.built_patch_bytes += one.size
        self._building.pop(one.key, None)
        if not isinstance(entry.value, Patches):
            raise Broken("a media entry holds something else")
        return entry.value

    def _tell(self, wanted: list[Wanted], items: list[MediaItem], costs: Preparation) -> None:
        """Fill in what is known once everything is there."""
        costs.media_items = len(wanted)
        costs.media_bytes = sum(len(one.data) for one in wanted)
        costs.patch_bytes = sum(one.size for one in wanted)
        costs.cache_hits = len(wanted) - costs.cache_misses
        costs.reused_patch_bytes = costs.patch_bytes - costs.built_patch_bytes
        costs.raw_patches = sum(math.prod(item.grid) for item in items)
        costs.vision_tokens = costs.raw_patches // self.geometry.merge**2

    def _item(self, one: Wanted, built: Patches) -> MediaItem:
        if built.nbytes > one.size:
            raise Broken("a media payload is larger than its plan")
        return MediaItem(one.part.kind, built.grid, one.key, built.seconds, built.rows)
