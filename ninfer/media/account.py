"""The memory account of prepared media: what is alive, who refers to it, what is kept for later.

Pure and synchronous.  Every payload is counted once, however many requests share it.  A request takes
all that it needs at once or nothing, so requests that wait for room can never hold what the others
need: there is no deadlock to break.

The one thing a reader would get wrong: the cache is part of the live bytes.  It gives way to requests;
requests never give way to it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping

import attrs

from ninfer.faults import Broken
from ninfer.prompt.prepared import MediaStatistics


@attrs.define(eq=False)
class Entry:
    """One payload: ``size`` bytes, ``refs`` requests; ``value`` is None until it is built."""

    size: int
    refs: int = 0
    value: object = None


@attrs.define(eq=False)
class Account:
    """``limit`` bounds all live bytes, ``keep`` the bytes that no request refers to."""

    limit: int
    keep: int
    live: int = 0
    cached: int = 0
    hits: int = 0
    misses: int = 0
    _held: dict[bytes, Entry] = attrs.field(factory=dict)
    _idle: OrderedDict[bytes, Entry] = attrs.field(factory=OrderedDict)  # least recently used first

    def hold(self, needs: Mapping[bytes, int]) -> bool:
        """Refer to every payload of ``needs`` (key to bytes), or to none and return False."""
        fresh = {
            key: size for key, size in needs.items() if key not in self._held and key not in self._idle
        }
        if not self._make_room(sum(fresh.values()), needs):
            return False
        for key in needs:
            self._refer(key, needs[key])
        self.misses += len(fresh)
        self.hits += len(needs) - len(fresh)
        return True

    def release(self, keys: Iterable[bytes]) -> None:
        """Let go of payloads; what nobody refers to is kept as long as the cache has room."""
        for key in keys:
            entry = self._held.get(key)
            if entry is None:
                raise Broken("a media payload was released that nobody held")
            entry.refs -= 1
            if not entry.refs:
                self._retire(key)
        while self.cached > self.keep:
            self._evict(next(iter(self._idle)))

    def entry(self, key: bytes) -> Entry:
        """Return a payload's entry; the caller holds it."""
        return self._held[key]

    def statistics(self) -> MediaStatistics:
        """Take the counts of this moment."""
        entries = len(self._held) + len(self._idle)
        return MediaStatistics(self.live, self.cached, self.limit, entries, self.hits, self.misses)

    def check(self) -> None:
        """Raise ``Broken`` unless the bytes are those of the entries, within the limits."""
        cached = sum(entry.size for entry in self._idle.values())
        held = sum(entry.size for entry in self._held.values())
        odd = any(entry.refs < 1 for entry in self._held.values())
        odd |= any(entry.refs or entry.value is None for entry in self._idle.values())
        if odd or (held + cached, cached) != (self.live, self.cached):
            raise Broken("the media account does not add up")
        if self.live > self.limit or self.cached > self.keep:
            raise Broken("the media account is over its limits")

    def _make_room(self, size: int, wanted: Mapping[bytes, int]) -> bool:
        """Evict idle payloads, oldest first, until ``size`` more bytes fit; none if they cannot."""
        spare = self.cached - sum(self._idle[key].size for key in wanted if key in self._idle)
        if self.live - spare + size > self.limit:
            return False
        while self.live + size > self.limit:
            self._evict(next(key for key in self._idle if key not in wanted))
        return True

    def _refer(self, key: bytes, size: int) -> None:
        if key in self._idle:
            entry = self._idle.pop(key)
            self.cached -= entry.size
            self._held[key] = entry
        elif key not in self._held:
            self._held[key] = Entry(size)
            self.live += size
        self._held[key].refs += 1

    def _retire(self, key: bytes) -> None:
        """Move a payload that nobody refers to into the cache; what was never built just goes."""
        entry = self._held.pop(key)
        if entry.value is None:
            self.live -= entry.size
        else:
            self._idle[key] = entry
            self.cached += entry.size

    def _evict(self, key: bytes) -> None:
        size = self._idle.pop(key).size
        self.live -= size
        self.cached -= size
