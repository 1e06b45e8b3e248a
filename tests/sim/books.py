"""Holds the metrics of a run against the request log of the same run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

Log = list[dict[str, Any]]


def named(log: Log, name: str) -> Log:
    """Events of one name."""
    return [event for event in log if event["event"] == name]


def outcomes(log: Log) -> dict[str, int]:
    """How often each outcome of ``ninfer_requests_total`` stands in the log."""
    done, rejected = named(log, "request_done"), named(log, "request_rejected")
    cancelled = sum(event["result"]["finish_reason"] == "cancelled" for event in done)
    left = sum(event["error"]["code"] == "client_disconnected" for event in rejected)
    broken = sum(event["error"]["status"] == 500 for event in rejected)
    return {
        "completed": len(done) - cancelled,
        "cancelled": cancelled + left,
        "failed": len(named(log, "request_error")) + broken,
        "rejected": len(rejected) - left - broken,
    }


def work(log: Log) -> dict[str, float]:
    """Token and recovery totals of the log, by metric name."""
    done = named(log, "request_done")
    parts = [event["result"] for event in done] + [event["work"] for event in named(log, "request_error")]
    seated = [part for part in parts if part["prefix_reuse_path"]]
    pauses = [event["generation"]["scheduling"] for event in done]
    drafts = [event["speculative"] for event in done]
    return {
        "prompt_tokens": total(seated, "prompt_tokens"),
        "prompt_tokens_cached": total(seated, "prefix_cache_hit_tokens"),
        "prompt_tokens_disk": total(seated, "prefix_cache_disk_tokens"),
        "prefill_tokens": total(parts, "computed_prefill_tokens"),
        "generation_tokens": total(parts, "completion_tokens"),
        "decode_tokens": sum(max(part["completion_tokens"] - 1, 0) for part in parts),
        "root_selections": sum(part["prefix_reuse_path"] == "root" for part in parts),
        "checkpoint_selections": sum(part["prefix_reuse_path"] == "checkpoint" for part in parts),
        "preemptions": total(pauses, "preemptions"),
        "snapshot_restores": total(pauses, "snapshot_restores"),
        "replay_restores": total(pauses, "replay_restores"),
        "replayed_tokens": total(pauses, "replayed_tokens"),
        "spec_decode_rounds": total(drafts, "rounds"),
        "spec_decode_draft_tokens": total(drafts, "drafted_tokens"),
        "spec_decode_accepted_tokens": total(drafts, "accepted_tokens"),
        "spec_decode_fallback_steps": total(drafts, "fallback_steps"),
    }


def total(parts: Iterable[dict[str, Any]], name: str) -> int:
    """Add one member up."""
    return sum(part[name] for part in parts)


def agree(log: Log, metrics: dict[str, float]) -> None:
    """Demand that every total of the metrics is the sum of the log."""
    for outcome, number in outcomes(log).items():
        assert metrics[f'ninfer_requests_total{{outcome="{outcome}"}}'] == number, outcome
    for name, number in work(log).items():
        assert metrics[f"ninfer_{name}_total"] == number, name
    done = named(log, "request_done")
    parts = [event["result"] for event in done] + [event["work"] for event in named(log, "request_error")]
    spoken = sum(part["completion_tokens"] > 0 for part in parts)
    assert metrics["ninfer_time_to_first_token_seconds_count"] == spoken
    spans = {
        "request_duration_seconds": [event["timings_seconds"]["total"] for event in done],
        "request_queue_seconds": [event["engine_timing"]["queue_wait_seconds"] for event in done],
    }
    for name, values in spans.items():
        assert metrics[f"ninfer_{name}_count"] == len(values), name
        assert metrics[f"ninfer_{name}_sum"] == pytest.approx(sum(values)), name
    _intervals_agree(named(log, "throughput"), metrics)


def _intervals_agree(intervals: Log, metrics: dict[str, float]) -> None:
    """All intervals together are the whole run; the tail is there unless it was idle."""
    assert not any(event["final_interval"] for event in intervals[:-1])
    tokens = [event["tokens"] for event in intervals]
    assert total(tokens, "computed_prefill") == metrics["ninfer_prefill_tokens_total"]
    assert total(tokens, "committed_decode") == metrics["ninfer_decode_tokens_total"]
    batches = [event["decode_batch"] for event in intervals]
    assert total(batches, "rounds") == metrics["ninfer_decode_rounds_total"]
    assert total(batches, "row_rounds") == metrics["ninfer_decode_row_rounds_total"]
    waited = sum(event["host_work"]["device_wait_seconds"] for event in intervals)
    assert waited == pytest.approx(metrics["ninfer_device_wait_seconds_total"])
    for resource in ("state", "main_kv", "backend_kv"):
        for way in ("d2h", "h2d", "d2d"):
            labels = f'{{direction="{way}",resource="{resource}"}}'
            moved = [event["context_cache"]["transfers"][resource][way] for event in intervals]
            assert total(moved, "bytes") == metrics[f"ninfer_context_transfer_bytes_total{labels}"]
