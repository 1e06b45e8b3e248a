"""What happened between two snapshots of the engine, as the members of a ``throughput`` event.

Pure.  The one thing a reader would get wrong: tokens, copies and seconds are differences of the two
snapshots; scheduler states, occupancy and the last selection are as they stand at the later one.
"""

from __future__ import annotations

import attrs

from ninfer.engine.stats import Counters, Phase, Statistics, WorkClass
from ninfer.observe.members import DIRECTIONS, RESOURCES

STATES = ("running", "prefilling", "decode_ready", "waiting", "paused", "replaying", "materializing")
Members = dict[str, object]


@attrs.frozen
class Interval:
    """``seconds`` between the counters ``before`` and the snapshot ``stats``."""

    stats: Statistics
    before: Counters
    seconds: float

    @property
    def active(self) -> bool:
        """Whether anything was computed, copied or kept, or anybody is here."""
        tokens = ("prefill_tokens", "decode_tokens", "generation_tokens", "replayed_tokens")
        work = (*tokens, "captures", "disk_reads", "disk_failures", "disk_written_bytes")
        copied = self.stats.counters.transfer_bytes != self.before.transfer_bytes
        here = any(getattr(self.stats, name) for name in STATES)
        return copied or here or any(self.grown(name) for name in work)

    def grown(self, name: str) -> int:
        """By how much a counter grew."""
        return int(getattr(self.stats.counters, name) - getattr(self.before, name))

    @property
    def host(self) -> dict[str, float]:
        """Host seconds by phase."""
        now, before = self.stats.counters.host_work, self.before.host_work
        return {p.value: now.get(p.value, 0.0) - before.get(p.value, 0.0) for p in Phase}

    def members(self) -> Members:
        """Return everything but ``final_interval``."""
        prefill, decode = self.grown("prefill_tokens"), self.grown("decode_tokens")
        pauses = ("preemptions", "snapshot_restores", "replay_restores", "replayed_tokens")
        return {
            "interval_seconds": self.seconds,
            "tokens": {"computed_prefill": prefill, "committed_decode": decode},
            "rates": {
                "prefill_tokens_per_second": prefill / self.seconds if self.seconds > 0 else 0.0,
                "decode_tokens_per_second": decode / self.seconds if self.seconds > 0 else 0.0,
            },
            "scheduler": self._scheduler(),
            "scheduling": {name: self.grown(name) for name in pauses},
            "decode_batch": self._batch(),
            "speculative": self._speculative(),
            "host_work": self._host_work(),
            "context_cache": self._cache(),
        }

    def _scheduler(self) -> Members:
        states: Members = {name: getattr(self.stats, name) for name in STATES}
        return {**states, "capture_pending": 0, "terminal_pending": 0}  # neither ever waits here

    def _batch(self) -> Members:
        rounds, rows = self.grown("decode_rounds"), self.grown("decode_row_rounds")
        return {"rounds": rounds, "row_rounds": rows, "average_size": _per(rows, rounds)}

    def _speculative(self) -> Members:
        names = {
            "rounds": "spec_rounds",
            "drafted_tokens": "spec_drafted",
            "accepted_tokens": "spec_accepted",
            "fallback_steps": "spec_fallbacks",
        }
        return {name: self.grown(counter) for name, counter in names.items()}

    def _host_work(self) -> Members:
        now, before = self.stats.counters, self.before
        rounds, rows = self.grown("decode_rounds"), self.grown("decode_row_rounds")
        classes = {
            kind.value: {
                "host": _difference(now.host_by_class, before.host_by_class, kind.value),
                "device_wait": _difference(now.wait_by_class, before.wait_by_class, kind.value),
            }
            for kind in WorkClass
        }
        decode = classes[WorkClass.DECODE.value]
        return {
            "elapsed_seconds": {**self.host, "total": sum(self.host.values())},
            "device_wait_seconds": now.device_wait - before.device_wait,
            "work_class_seconds": classes,
            # Snapshots are taken by those who read them, never by the engine's task.
            "detail_subset_seconds": {"stats_publication": 0.0},
            "detail_invocations": {"stats_publication": 0},
            "decode_host_microseconds_per_round": _per(1e6 * decode["host"], rounds),
            "decode_host_microseconds_per_row_round": _per(1e6 * decode["host"], rows),
            "decode_device_wait_microseconds_per_round": _per(1e6 * decode["device_wait"], rounds),
            "decode_device_wait_microseconds_per_row_round": _per(1e6 * decode["device_wait"], rows),
            "detail_microseconds_per_invocation": {"stats_publication": None},
        }

    def _cache(self) -> Members:
        last = self.stats.last_selection
        return {
            "selections": {
                "root": self.grown("root_selections"),
                "checkpoint": self.grown("checkpoint_selections"),
            },
            "last_selection": None if last is None else attrs.asdict(last),
            "captures": self.grown("captures"),
            "state_transfers": self._transfers("state"),
            "transfers": {resource: self._transfers(resource) for resource in RESOURCES},
            "tail_page_copies": self.grown("tail_copies"),
            "disk": self._disk(),
            "pressure": {"spill_pages": self.grown("spilled_pages")},
            "occupancy": self._occupancy(),
        }

    def _transfers(self, resource: str) -> Members:
        now, before = self.stats.counters, self.before
        return {
            way: {
                "bytes": now.transfer_bytes.get((resource, way), 0)
                - before.transfer_bytes.get((resource, way), 0),
                "seconds": now.transfer_seconds.get((resource, way), 0.0)
                - before.transfer_seconds.get((resource, way), 0.0),
            }
            for way in DIRECTIONS
        }

    def _disk(self) -> Members:
        counts = {name: self.grown(f"disk_{name}") for name in ("reads", "failures", "read_bytes")}
        seconds = self.stats.counters.disk_read_seconds - self.before.disk_read_seconds
        return {**counts, "read_seconds": seconds, "written_bytes": self.grown("disk_written_bytes")}

    def _occupancy(self) -> Members:
        pages, slots, host, disk = self.stats.pages, self.stats.slots, self.stats.host, self.stats.disk
        return {
            "device_kv_pages": pages.total - pages.free,
            "device_kv_retained_pages": pages.idle,
            "device_state_slots": slots.total - slots.free,
            "checkpoints": self.stats.checkpoints,
            "host_context_occupied_bytes": host.used,
            "host_context_reserved_bytes": host.reserved,
            "host_context_peak_occupied_bytes": host.peak,
            "host_state_images": host.images,
            "host_kv_occupied_bytes": host.kv,
            "disk_occupied_bytes": disk.used,
            "disk_files": disk.files,
        }


def _difference(now: dict[str, float], before: dict[str, float], key: str) -> float:
    return now.get(key, 0.0) - before.get(key, 0.0)


def _per(part: float, whole: int) -> float | None:
    return part / whole if whole else None
