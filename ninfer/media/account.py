"""The memory account of prepared media: what is alive, who refers to it, what is kept for later.

Pure and synchronous.  Every payload is counted once, however many requests share it.  A request takes
all that it needs at once or nothing, so requests that wait for room can never hold what the others
need: there is no deadlock to break.

The one thing a reader would get wrong: the cache is part of the live bytes.  It gives way to requests;
requests never give way to it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

import attrs

from ninfer.faults import Broken


@attrs.define(eq=False)
class Entry:
    """One payload: ``size`` bytes, ``refs`` requests; ``value`` is None until it is built."""

    size: int
    refs: int = 0
    value: object = None


@attrs.frozen
class MediaStatistics:
    """Bytes and counts of this moment; hits and misses since start."""

    live_bytes: int
    cached_bytes: int
    entries: int
    hits: int
    misses: int


@attrs.define(eq=False)
class Account:
    """``limit`` bounds all live bytes, ``keep`` the bytes that no request refers to."""

    limit: int
    keep: int
    live: int = 0
    hits: int = 0
    misses: int = 0
    _entries: OrderedDict[bytes, Entry] = attrs.field(factory=OrderedDict)

    def hold(self, needs: Mapping[bytes, int]) -> bool:
        """Refer to every payload of ``needs`` (key to bytes), or to none and return False."""
        fresh = {key: size for key, size in needs.items() if key not in self._entries}
        if not self._make_room(sum(fresh.values()), needs):
            return False
        for key, size in fresh.items():
            self._entries[key] = Entry(size)
            self.live += size
        for key in needs:
            self._entries[key].refs += 1
        self.misses += len(fresh)
        self.hits += len(needs) - len(fresh)
        return True

    def release(self, keys: Mapping[bytes, int]) -> None:
        """Let go of payloads; what nobody refers to is kept as long as the cache has room."""
        for key in keys:
            entry = self._entries[key]
            entry.refs -= 1
            if entry.refs < 0:
                raise Broken("a media payload was released twice")
            self._entries.move_to_end(key)
            if not entry.refs and entry.value is None:
                self._drop(key)
        while self._cached() > self.keep:
            self._drop(self._oldest_idle())

    def entry(self, key: bytes) -> Entry:
        """Return a payload's entry; the caller holds it."""
        return self._entries[key]

    def statistics(self) -> MediaStatistics:
        """Take the counts of this moment."""
        return MediaStatistics(self.live, self._cached(), len(self._entries), self.hits, self.misses)

    def check(self) -> None:
        """Raise ``Broken`` unless the live bytes are those of the entries, within the limits."""
        total = sum(entry.size for entry in self._entries.values())
        if total != self.live or self.live > self.limit or self._cached() > self.keep:
            raise Broken("the media account does not add up")

    def _make_room(self, size: int, wanted: Mapping[bytes, int]) -> bool:
        """Evict idle payloads, oldest first, until ``size`` more bytes fit; nothing if they cannot."""
        idle = [key for key, entry in self._entries.items() if not entry.refs and key not in wanted]
        spare = sum(self._entries[key].size for key in idle)
        if self.live - spare + size > self.limit:
            return False
        for key in idle:
            if self.live + size <= self.limit:
                break
            self._drop(key)
        return True

    def _drop(self, key: bytes) -> None:
        self.live -= self._entries.pop(key).size

    def _cached(self) -> int:
        return sum(entry.size for entry in self._entries.values() if not entry.refs)

    def _oldest_idle(self) -> bytes:
        return next(key for key, entry in self._entries.items() if not entry.refs)
