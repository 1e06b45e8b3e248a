"""The fixed-interval throughput report: when it is due, and its persistent record.

Owns the interval; what an interval was like is ``interval.Interval``.  Idle intervals are omitted; the
tail at shutdown is reported once, with ``final_interval``.

The one thing a reader would get wrong: an interval with no tokens is still reported when anything is
resident, waiting or being copied.
"""

from __future__ import annotations

from collections.abc import Callable

import anyio
import attrs

from ninfer.engine.stats import Counters, Statistics
from ninfer.observe.interval import STATES, Interval
from ninfer.observe.jsonl import RequestLog
from ninfer.observe.records import Records, count, rate, seconds


@attrs.define(eq=False)
class Throughput:
    """Reports every ``interval`` seconds (0: never)."""

    stats: Callable[[], Statistics]
    records: Records
    log: RequestLog
    interval: float
    clock: Callable[[], float]
    _last: Counters = attrs.field(factory=Counters)
    _since: float | None = None

    def start(self) -> None:
        """Begin the first interval."""
        self._last, self._since = self.stats().counters, self.clock()

    async def run(self) -> None:
        """Report until cancelled."""
        self.start()
        while self.interval > 0:
            await anyio.sleep(self.interval)
            self.report()

    def report(self, *, final: bool = False) -> None:
        """Report the interval since the last call, unless it was idle or reports are off."""
        if self._since is None or self.interval <= 0:
            return
        stats, now = self.stats(), self.clock()
        part = Interval(stats, self._last, now - self._since)
        self._last, self._since = stats.counters, now
        if part.active:
            self.log.event("throughput", {**part.members(), "final_interval": final})
            self.records.info(_line(part))


def _line(part: Interval) -> str:
    parts = ["throughput"]
    prefill, decode = part.grown("prefill_tokens"), part.grown("decode_tokens")
    if prefill:
        parts.append(f"prefill {count(prefill)} ({rate(prefill, part.seconds)})")
    if decode:
        parts.append(f"decode {count(decode)} ({rate(decode, part.seconds)})")
    states = [f"{name} {getattr(part.stats, name)}" for name in STATES if getattr(part.stats, name)]
    parts.append(", ".join(states) or "idle")
    if (rounds := part.grown("decode_rounds")) > 0:
        parts.append(f"batch {part.grown('decode_row_rounds') / rounds:.2f}")
    host = sum(part.host.values())
    share = 100 * host / part.seconds if part.seconds > 0 else 0.0
    parts.append(f"host {seconds(host)} ({share:.0f}%)")
    return " | ".join(parts)
