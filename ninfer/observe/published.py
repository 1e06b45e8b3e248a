"""Engine snapshots as metric samples and as the ``/stats`` object.

Owns which counter or gauge has which public name.  Pure: a ``Statistics`` in, values out.
The one thing a reader would get wrong: counter samples are named without ``_total``; the exposition
format adds it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import attrs

from ninfer.engine.stats import Counters, Phase, Statistics
from ninfer.observe.metrics import Sample
from ninfer.prompt.prepared import MediaStatistics


@attrs.frozen
class Identity:
    """What never changes while the server runs."""

    model: str
    started: float  # Unix seconds
    max_concurrency: int
    max_context: int
    speculative_backend: str = "none"
    draft_window: int = 0


_GAUGES = (
    ("requests_running", "running", "Requests that own a lane."),
    ("requests_waiting", "waiting", "Requests waiting for admission."),
    ("requests_paused", "paused", "Requests paused by memory pressure."),
    ("requests_prefilling", "prefilling", "Resident requests computing their prompt."),
    ("requests_decode_ready", "decode_ready", "Resident requests generating."),
    ("requests_replaying", "replaying", "Resident requests rebuilding state after a pause."),
    ("requests_materializing", "materializing", "Requests whose saved state is being copied back."),
)
_COUNTERS = (
    ("prompt_tokens", "prompt_tokens", "Prompt tokens of admitted requests."),
    ("prompt_tokens_cached", "prompt_tokens_cached", "Of these, tokens found in retained prefixes."),
    ("prompt_tokens_disk", "prompt_tokens_disk", "Of these, tokens whose state was read from disk."),
    ("prefill_tokens", "prefill_tokens", "Prompt tokens computed."),
    ("generation_tokens", "generation_tokens", "Committed output tokens."),
    ("decode_tokens", "decode_tokens", "Committed output tokens after the first of each request."),
    ("replayed_tokens", "replayed_tokens", "Tokens recomputed after pauses."),
    ("decode_rounds", "decode_rounds", "Decode batches."),
    ("decode_row_rounds", "decode_row_rounds", "Rows of all decode batches."),
    ("preemptions", "preemptions", "Pauses by memory pressure."),
    ("snapshot_restores", "snapshot_restores", "Recoveries from a host snapshot."),
    ("replay_restores", "replay_restores", "Recoveries by recomputation."),
    ("root_selections", "root_selections", "Admissions that started from nothing."),
    ("checkpoint_selections", "checkpoint_selections", "Admissions that started from a retained prefix."),
    ("spec_decode_rounds", "spec_rounds", "Speculative rounds."),
    ("spec_decode_draft_tokens", "spec_drafted", "Drafted tokens."),
    ("spec_decode_accepted_tokens", "spec_accepted", "Accepted drafted tokens."),
    ("spec_decode_fallback_steps", "spec_fallbacks", "Plain steps taken where a round did not fit."),
    ("context_disk_reads", "disk_reads", "Retained contexts read from disk."),
    ("context_disk_failures", "disk_failures", "Retained contexts on disk that could not be read."),
    ("context_disk_read_bytes", "disk_read_bytes", "Bytes of retained contexts read from disk."),
    ("context_disk_read_seconds", "disk_read_seconds", "Time that reading them took."),
    ("context_disk_written_bytes", "disk_written_bytes", "Bytes of retained contexts written to disk."),
    ("device_wait_seconds", "device_wait", "Time the engine waited for the device."),
)


def samples(stats: Statistics, identity: Identity, ready: bool) -> Iterator[Sample]:
    """Yield every sample that the engine's snapshot backs."""
    yield Sample("engine_ready", "1 while the engine can accept work.", float(ready))
    yield Sample("server_start_time_seconds", "Unix time of readiness.", identity.started)
    labels = (("model_name", identity.model), ("speculative_backend", identity.speculative_backend))
    yield Sample("model_info", "The served model.", 1, labels=labels)
    yield Sample("max_concurrency", "Execution lanes.", identity.max_concurrency)
    yield Sample("max_context_tokens", "Logical context ceiling of a sequence.", identity.max_context)
    yield Sample("spec_decode_draft_window", "Widest draft; 0 without speculation.", identity.draft_window)
    for name, attribute, text in _GAUGES:
        yield Sample(name, text, getattr(stats, attribute))
    yield from _pools(stats)
    yield from _host_memory(stats)
    for name, attribute, text in _COUNTERS:
        yield Sample(name, text, getattr(stats.counters, attribute), counter=True)
    yield from _host_work(stats.counters)
    yield from _transfers(stats.counters)


def media_samples(media: MediaStatistics) -> Iterator[Sample]:
    """Yield the samples of a server with vision."""
    yield Sample("media_live_bytes", "Prepared media in use or kept for later.", media.live_bytes)
    yield Sample("media_cached_bytes", "Of these, kept for later only.", media.cached_bytes)
    yield Sample("media_capacity_bytes", "Prepared media that may be alive.", media.capacity_bytes)
    yield Sample("media_cache_hits", "Media found prepared.", media.hits, counter=True)
    yield Sample("media_cache_misses", "Media that had to be prepared.", media.misses, counter=True)


def _pools(stats: Statistics) -> Iterator[Sample]:
    for name, pool, text in (
        ("device_kv", stats.pages, "KV pages on the device"),
        ("device_state", stats.slots, "StateImage slots on the device"),
    ):
        unit = "pages" if name == "device_kv" else "slots"
        yield Sample(
            f"{name}_used_{unit}", f"{text} in use, retained ones included.", pool.total - pool.free
        )
        yield Sample(f"{name}_capacity_{unit}", f"{text} in all.", pool.total)
    text = "KV pages of a drafter apart from the main ones; drafters here keep theirs in the main pages."
    yield Sample("device_backend_kv_used_pages", text, 0)


def _host_memory(stats: Statistics) -> Iterator[Sample]:
    host = stats.host
    yield Sample("host_context_used_bytes", "Host context bytes in use, reserved ones included.", host.used)
    yield Sample("host_context_reserved_bytes", "Of these, bytes of copies in flight.", host.reserved)
    yield Sample("host_context_capacity_bytes", "Host context bytes in all.", host.capacity)
    yield Sample("host_context_peak_bytes", "Most host context bytes ever in use.", host.peak)
    yield Sample("host_state_images", "StateImages in host memory.", host.images)
    yield Sample("host_kv_used_bytes", "Host context bytes that hold KV.", host.kv)
    disk = stats.disk
    yield Sample("context_disk_used_bytes", "Bytes of files in the folder of contexts.", disk.used)
    yield Sample("context_disk_capacity_bytes", "Bytes that they may take.", disk.capacity)
    yield Sample("context_disk_files", "Files in the folder of contexts.", disk.files)


def _transfers(counters: Counters) -> Iterator[Sample]:
    for resource in ("state", "main_kv", "backend_kv"):
        for direction in ("d2h", "h2d", "d2d"):
            labels = (("resource", resource), ("direction", direction))
            key = (resource, direction)
            moved = counters.transfer_bytes.get(key, 0)
            spent = counters.transfer_seconds.get(key, 0.0)
            yield Sample("context_transfer_bytes", "Context bytes copied.", moved, True, labels)
            yield Sample("context_transfer_seconds", "Time of context copies.", spent, True, labels)


def _host_work(counters: Counters) -> Iterator[Sample]:
    for phase in Phase:
        yield Sample(
            "host_work_seconds",
            "Host time of the engine by phase; device waits excluded.",
            counters.host_work.get(phase.value, 0.0),
            counter=True,
            labels=(("phase", phase.value),),
        )


def totals(stats: Statistics) -> dict[str, float]:
    """Return the value of every gauge and counter that needs no labels, by name, since the engine began."""
    counted = {name: getattr(stats.counters, attribute) for name, attribute, _ in _COUNTERS}
    return {**counted, **{name: getattr(stats, attribute) for name, attribute, _ in _GAUGES}}


def stats_object(totals: Mapping[str, float], outcomes: Mapping[str, int]) -> dict[str, object]:
    """Build the ``/stats`` answer from what ``/metrics`` shows; token counts are tokens, not chunks."""
    here = ("requests_running", "requests_waiting", "requests_paused")
    running, waiting, paused = (int(totals[name]) for name in here)
    return {
        "total_tasks": sum(outcomes.values()) + running + waiting + paused,
        "total_tokens": int(totals["generation_tokens"]),
        "active_tasks": running,
        "waiting_queue": waiting,
        "paused_tasks": paused,
        "average_decode_batch": _ratio(totals["decode_row_rounds"], totals["decode_rounds"]),
        "average_prompt_tokens": _ratio(totals["prompt_tokens"], _admissions(totals)),
        "average_output_tokens": _ratio(totals["generation_tokens"], _admissions(totals)),
        "cached_prompt_share": _ratio(totals["prompt_tokens_cached"], totals["prompt_tokens"]),
    }


def _admissions(totals: Mapping[str, float]) -> float:
    return totals["root_selections"] + totals["checkpoint_selections"]


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
