"""The members of request events in the JSONL log, built from engine summaries.

Pure functions from values to JSON objects; ``docs/request-log.schema.json`` is their description.
The one thing a reader would get wrong: durations are unrounded seconds, and a stage that never
happened is 0.0, never null; null says that there is nothing to speak of.
"""

from __future__ import annotations

import attrs

from ninfer.engine.job import Done, Feed, Moved, Sampling, Shifted, Summary
from ninfer.engine.stats import Phase
from ninfer.output.deltas import ToolParse

Members = dict[str, object]
RESOURCES = ("state", "main_kv", "backend_kv")
DIRECTIONS = ("d2h", "h2d", "d2d")


def sampling(values: Sampling) -> Members:
    """Name the sampler values as the log does."""
    return {
        "temperature": values.temperature,
        "top_p": values.top_p,
        "top_k": values.top_k,
        "min_p": values.min_p,
        "presence_penalty": values.presence,
        "frequency_penalty": values.frequency,
        "seed": values.seed,
    }


def stages(s: Summary) -> dict[str, float]:
    """Split the life of a request into ttft, prefill, decode and total, in seconds."""
    first, last, admitted = s.first_token, s.last_token, s.admitted
    return {
        "ttft": _between(s.arrived, first),
        "prefill": _between(admitted, first if first is not None else s.ended),
        "decode": _between(first, last),
        "total": _between(s.arrived, s.ended),
    }


def result(end: Done, budget: int | None, tools: ToolParse) -> Members:
    """What came out: counts, reuse, thinking, tool parsing, token ids."""
    s = end.summary
    return {
        "finish_reason": end.finish.value,
        "prompt_tokens": s.prompt_tokens,
        "completion_tokens": len(s.output_tokens),
        "computed_prefill_tokens": s.computed_prefill_tokens,
        "prefix_cache_hit_tokens": s.cached_tokens,
        "prefix_cache_disk_tokens": s.disk_tokens,
        "prefix_reuse_path": path(s),
        "prefix_miss_reason": s.miss_reason,
        "thinking_budget": budget,
        "model_thinking_tokens": s.model_thinking_tokens,
        "thinking_control_tokens": s.control_tokens,
        "thinking_control_applied": s.control_tokens > 0,
        "tool_call_count": tools.calls,
        "tool_call_parse": tool_parse(tools),
        "generated_token_ids": list(s.output_tokens),
    }


def path(s: Summary) -> str | None:
    """Say where the prompt started; None when the request never got a lane."""
    return s.path if s.admitted is not None else None


def work(s: Summary) -> Members:
    """What had been done for a request that failed."""
    return {
        "prefix_reuse_path": path(s),
        "prompt_tokens": s.prompt_tokens,
        "prefix_cache_hit_tokens": s.cached_tokens,
        "prefix_cache_disk_tokens": s.disk_tokens,
        "computed_prefill_tokens": s.computed_prefill_tokens,
        "completion_tokens": len(s.output_tokens),
        "replayed_tokens": s.replayed_tokens,
    }


def tool_parse(tools: ToolParse) -> Members:
    """Counters of the tool parser; never any text."""
    return {
        "marker_seen": tools.marker_seen,
        "structured_call_count": tools.calls,
        "empty_arguments_omitted": tools.empty_omitted,
        "schema_mismatch_arguments": tools.schema_mismatches,
        "fallback_reason": tools.fallback,
    }


def speculative(s: Summary, backend: str | None, window: int) -> Members:
    """Speculative counters of one request; ``backend`` is None without speculation."""
    return {
        "backend": backend,
        "draft_window": window,
        "rounds": s.spec_rounds,
        "drafted_tokens": s.drafted,
        "accepted_tokens": s.accepted,
        "fallback_steps": s.fallback_steps,
        "accepted_per_position": list(s.accepted_per_position),
    }


def generation(s: Summary, engine_request: int) -> Members:
    """What scheduling and admission did to the request."""
    return {
        "engine_request_id": engine_request,
        "scheduling": scheduling(s),
        "admission": {
            "preferred_reused_tokens": s.preferred_tokens,
            "source_wait_seconds": _between(s.admitted, s.bound),
        },
    }


def scheduling(s: Summary) -> Members:
    """Pauses and recoveries, and the bytes that were copied for this request."""
    return {
        "preemptions": s.preemptions,
        "snapshot_restores": s.snapshot_restores,
        "replay_restores": s.replay_restores,
        "replayed_tokens": s.replayed_tokens,
        "paused_ns": int(s.paused_seconds * 1e9),
        "device_to_host_bytes": s.moved.total("d2h"),
        "host_to_device_bytes": s.moved.total("h2d"),
    }


def shift(event: Shifted, request: Members, submitted: float) -> Members:
    """One step of a pause or a recovery, with cumulative work of everyone and of this request."""
    everyone, own = event.everyone, event.own
    return {
        "request": {name: request.get(name) for name in ("request_id", "http_request_id")},
        "engine_request_id": request.get("request_id"),
        "transition": event.transition,
        "route": event.route,
        "steady_ns": int(event.at * 1e9),
        "elapsed_ns": int(_between(submitted, event.at) * 1e9),
        "preemption_index": event.preemption,
        "progress": {
            "global_prefill_tokens": everyone.prefill,
            "global_decode_tokens": everyone.decode,
            "global_replayed_tokens": everyone.replayed,
            "request_prefill_tokens": own.prefill,
            "request_decode_tokens": own.decode,
            "request_replayed_tokens": own.replayed,
        },
    }


def engine_timing(s: Summary) -> Members:
    """Queue wait, and what the engine's task did while the request was resident."""
    return {"queue_wait_seconds": queued(s), **exposure(s)}


def queued(s: Summary) -> float:
    """Seconds from submission to the attempt that admitted it, or to its end."""
    return _between(s.submitted, s.queued_until if s.queued_until is not None else s.ended)


def exposure(s: Summary) -> Members:
    """Engine time that passed over a resident request; not to be summed over concurrent requests."""
    spent = s.exposed
    host = {phase.value: dict(spent.host).get(phase.value, 0.0) for phase in Phase}
    return {
        "host_exposed_seconds": {**host, "total": sum(host.values())},
        "device_wait_exposed_seconds": spent.wait,
        "decode": {
            "host_exposed_seconds": spent.decode_host,
            "device_wait_exposed_seconds": spent.decode_wait,
            "rounds": s.decode_rounds,
        },
        "units": {"prefill": s.prefill_units, "control": s.control_units},
    }


def first_output(s: Summary) -> Members | None:
    """What had happened just before the first text was published; None when there was none."""
    first = s.first_output
    if first is None:
        return None
    return {
        "elapsed_seconds": _between(s.submitted, first.ended),
        "initial_queue_seconds": _between(s.submitted, s.queued_until),
        "initial_binding_seconds": _between(s.queued_until, s.bound),
        "computed_prefill_tokens": first.computed_prefill_tokens,
        "engine": exposure(first),
        "prefill": _feed(first.prefill),
        "replay": _feed(first.replay),
        "scheduling": scheduling(first),
        "context_transfers": transfers(first.moved),
    }


def transfers(moved: Moved) -> Members:
    """Copied bytes and the device's seconds by resource and direction."""
    return {
        resource: {
            way: {
                "bytes": moved.bytes.get((resource, way), 0),
                "seconds": moved.seconds.get((resource, way), 0.0),
            }
            for way in DIRECTIONS
        }
        for resource in RESOURCES
    }


def _feed(feed: Feed) -> Members:
    return {f"{name}_seconds": value for name, value in attrs.asdict(feed).items()}


def _between(start: float | None, stop: float | None) -> float:
    return 0.0 if start is None or stop is None else max(0.0, stop - start)
