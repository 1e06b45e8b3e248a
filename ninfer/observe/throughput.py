"""The fixed-interval throughput report: a persistent record and a JSONL event.

Owns the difference between two snapshots.  Idle intervals are omitted; the shutdown tail is reported
once with ``final_interval``.

The one thing a reader would get wrong: an interval with no tokens is still reported when anything is
resident, waiting or being restored.
"""

from __future__ import annotations

from collections.abc import Callable

import anyio
import attrs

from ninfer.engine.stats import Counters, Phase, Statistics
from ninfer.observe.jsonl import RequestLog
from ninfer.observe.records import Records, count, rate, seconds

_STATES = ("running", "prefilling", "decode_ready", "waiting", "paused", "replaying", "materializing")


@attrs.define(eq=False)
class Throughput:
    """Reports every ``interval`` seconds (0: never)."""

    stats: Callable[[], Statistics]
    records: Records
    log: RequestLog
    interval: float
    clock: Callable[[], float]
    _last: Counters = attrs.field(factory=Counters)
    _since: float = 0.0

    async def run(self) -> None:
        """Report until cancelled."""
        self._last, self._since = self.stats().counters, self.clock()
        while self.interval > 0:
            await anyio.sleep(self.interval)
            self.report()

    def report(self, *, final: bool = False) -> None:
        """Report the interval since the last call, unless it was idle."""
        stats, now = self.stats(), self.clock()
        elapsed, before = now - self._since, self._last
        self._last, self._since = stats.counters, now
        prefill = stats.counters.prefill_tokens - before.prefill_tokens
        decode = stats.counters.decode_tokens - before.decode_tokens
        if not (prefill or decode or any(getattr(stats, name) for name in _STATES)):
            return
        self.log.event("throughput", _members(stats, before, elapsed, final))
        self.records.info(_line(stats, before, elapsed, prefill, decode))


def _line(stats: Statistics, before: Counters, elapsed: float, prefill: int, decode: int) -> str:
    parts = ["throughput"]
    if prefill:
        parts.append(f"prefill {count(prefill)} ({rate(prefill, elapsed)})")
    if decode:
        parts.append(f"decode {count(decode)} ({rate(decode, elapsed)})")
    states = [f"{name} {getattr(stats, name)}" for name in _STATES if getattr(stats, name)]
    parts.append(", ".join(states) or "idle")
    batch = _per(stats.counters, before, "decode_row_rounds", "decode_rounds")
    if batch is not None:
        parts.append(f"batch {batch:.2f}")
    host = sum(_host(stats.counters, before).values())
    share = 100 * host / elapsed if elapsed > 0 else 0.0
    parts.append(f"host {seconds(host)} ({share:.0f}%)")
    return " | ".join(parts)


def _members(stats: Statistics, before: Counters, elapsed: float, final: bool) -> dict[str, object]:
    now = stats.counters
    host = _host(now, before)
    prefill, decode = now.prefill_tokens - before.prefill_tokens, now.decode_tokens - before.decode_tokens
    waited = now.device_wait - before.device_wait
    rounds = now.decode_rounds - before.decode_rounds
    return {
        "interval_seconds": elapsed,
        "final_interval": final,
        "tokens": {"computed_prefill": prefill, "committed_decode": decode},
        "rates": {
            "prefill_tokens_per_second": prefill / elapsed if elapsed > 0 else 0.0,
            "decode_tokens_per_second": decode / elapsed if elapsed > 0 else 0.0,
        },
        "scheduler": {name: getattr(stats, name) for name in _STATES},
        "scheduling": {
            name: getattr(now, name) - getattr(before, name)
            for name in ("preemptions", "snapshot_restores", "replay_restores", "replayed_tokens")
        },
        "decode_batch": {
            "rounds": rounds,
            "average_size": _per(now, before, "decode_row_rounds", "decode_rounds"),
        },
        "host_work": {
            "elapsed_seconds": {**host, "total": sum(host.values())},
            "device_wait_seconds": waited,
            "decode_host_microseconds_per_round": 1e6 * sum(host.values()) / rounds if rounds else None,
            "decode_device_wait_microseconds_per_round": 1e6 * waited / rounds if rounds else None,
        },
        "context_cache": {
            "selections": {
                "root": now.root_selections - before.root_selections,
                "checkpoint": now.checkpoint_selections - before.checkpoint_selections,
            },
            "occupancy": {
                "device_kv_pages": stats.pages.total - stats.pages.free,
                "device_state_slots": stats.slots.total - stats.slots.free,
            },
        },
    }


def _host(now: Counters, before: Counters) -> dict[str, float]:
    return {p.value: now.host_work.get(p.value, 0.0) - before.host_work.get(p.value, 0.0) for p in Phase}


def _per(now: Counters, before: Counters, part: str, whole: str) -> float | None:
    wholes = getattr(now, whole) - getattr(before, whole)
    return (getattr(now, part) - getattr(before, part)) / wholes if wholes else None
