"""Metrics: a strict parser accepts the page, totals count from readiness, histograms are cumulative."""

from __future__ import annotations

import math
import re

import attrs
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from ninfer.engine.disk import DiskStatistics
from ninfer.engine.host import HostStatistics
from ninfer.engine.pages import PoolStatistics
from ninfer.engine.stats import Counters, Statistics
from ninfer.observe.metrics import BUCKETS, Histogram, Metrics, exposition
from ninfer.observe.published import Identity, samples, stats_object, totals

IDENTITY = Identity('a "model"\\ of\nmine', 1.5, 2, 4096)


def snapshot(**counters: float) -> Statistics:
    return Statistics(
        running=2,
        waiting=1,
        paused=0,
        prefilling=1,
        decode_ready=1,
        replaying=0,
        materializing=0,
        pages=PoolStatistics(10, 4, 1, 5),
        slots=PoolStatistics(4, 2, 0, 2),
        host=HostStatistics(capacity=100, used=60, reserved=10, peak=70, images=2, kv=20),
        disk=DiskStatistics(capacity=1000, used=300, files=4),
        checkpoints=3,
        seats_taken=3,
        seats_capacity=18,
        counters=attrs.evolve(Counters(), **counters),
    )


def page(metrics: Metrics) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(exposition(metrics).decode()):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


def test_a_strict_parser_reads_every_sample_back() -> None:
    metrics = Metrics(lambda: samples(snapshot(prompt_tokens=7), IDENTITY, True))
    metrics.settle("completed", (0.3, 0.1))
    found = page(metrics)
    assert found["ninfer_engine_ready"][()] == 1
    assert found["ninfer_prompt_tokens_total"][()] == 7
    assert found["ninfer_device_kv_used_pages"][()] == 6
    assert found["ninfer_host_context_used_bytes"][()] == 60
    assert len(found["ninfer_context_transfer_bytes_total"]) == 9
    assert found["ninfer_requests_total"][(("outcome", "completed"),)] == 1
    labels = (("model_name", IDENTITY.model), ("speculative_backend", "none"))
    assert found["ninfer_model_info"][labels] == 1


def test_counters_start_at_zero_when_warm_up_is_over() -> None:
    current = [snapshot(decode_tokens=5, host_work={"engine_boundary": 2.0})]
    metrics = Metrics(lambda: samples(current[0], IDENTITY, True))
    metrics.start_counting()
    assert page(metrics)["ninfer_decode_tokens_total"][()] == 0
    current[0] = snapshot(decode_tokens=9, host_work={"engine_boundary": 2.5})
    found = page(metrics)
    assert found["ninfer_decode_tokens_total"][()] == 4
    assert found["ninfer_host_work_seconds_total"][(("phase", "engine_boundary"),)] == 0.5


def test_a_failed_engine_keeps_the_page_readable() -> None:
    found = page(Metrics(lambda: samples(snapshot(), IDENTITY, False)))
    assert found["ninfer_engine_ready"][()] == 0


@given(st.lists(st.floats(0, 2000)))
def test_histograms_are_cumulative_and_complete(values: list[float]) -> None:
    histogram = Histogram()
    for value in values:
        histogram.observe(value)
    metrics = Metrics(ttft=histogram)
    found = page(metrics)
    buckets = found["ninfer_time_to_first_token_seconds_bucket"]
    for bound in (*BUCKETS, math.inf):
        label = "+Inf" if bound == math.inf else f"{bound:g}"
        assert buckets[(("le", label),)] == sum(value <= bound for value in values)
    assert found["ninfer_time_to_first_token_seconds_count"][()] == len(values)


def test_failures_have_counts_but_no_duration() -> None:
    metrics = Metrics()
    metrics.settle("failed")
    found = page(metrics)
    assert found["ninfer_requests_total"][(("outcome", "failed"),)] == 1
    assert found["ninfer_request_duration_seconds_count"][()] == 0


def test_stats_count_tokens_and_never_divide_by_zero() -> None:
    assert stats_object(totals(attrs.evolve(snapshot(), running=0)), {})["average_decode_batch"] == 0.0
    shown = stats_object(
        totals(snapshot(generation_tokens=5, decode_row_rounds=6, decode_rounds=3)), {"completed": 2}
    )
    # two are done, two are running, one waits
    assert (shown["total_tasks"], shown["total_tokens"], shown["average_decode_batch"]) == (5, 5, 2.0)
    assert (shown["active_tasks"], shown["waiting_queue"]) == (2, 1)


def test_stats_and_metrics_agree_after_warm_up() -> None:
    current = [snapshot(generation_tokens=4)]
    metrics = Metrics(lambda: samples(current[0], IDENTITY, True))
    metrics.start_counting()
    current[0] = snapshot(generation_tokens=9)
    assert stats_object(metrics.totals(), {})["total_tokens"] == 5
    assert page(metrics)["ninfer_generation_tokens_total"][()] == 5


NAMES = {
    "gauge": """engine_ready server_start_time_seconds model_info max_concurrency max_context_tokens
        spec_decode_draft_window requests_running requests_waiting requests_paused requests_prefilling
        requests_decode_ready requests_replaying requests_materializing device_state_used_slots
        device_state_capacity_slots device_kv_used_pages device_kv_capacity_pages
        device_backend_kv_used_pages host_context_used_bytes host_context_reserved_bytes
        host_context_capacity_bytes host_context_peak_bytes host_state_images host_kv_used_bytes
        context_disk_used_bytes context_disk_capacity_bytes context_disk_files""",
    "counter": """prompt_tokens prompt_tokens_cached prompt_tokens_disk prefill_tokens
        generation_tokens decode_tokens replayed_tokens decode_rounds decode_row_rounds
        preemptions snapshot_restores replay_restores
        root_selections checkpoint_selections spec_decode_rounds spec_decode_draft_tokens
        spec_decode_accepted_tokens spec_decode_fallback_steps context_transfer_bytes
        context_disk_reads context_disk_failures context_disk_read_bytes context_disk_read_seconds
        context_disk_written_bytes context_transfer_seconds host_work_seconds device_wait_seconds
        requests response_failures""",
    "histogram": "time_to_first_token_seconds request_duration_seconds request_queue_seconds",
}
LABELS = {
    "model_info": {"model_name", "speculative_backend"},
    "context_transfer_bytes": {"resource", "direction"},
    "context_transfer_seconds": {"resource", "direction"},
    "host_work_seconds": {"phase"},
    "requests": {"outcome"},
}


def test_the_page_holds_exactly_the_documented_families() -> None:
    text = exposition(Metrics(lambda: samples(snapshot(), IDENTITY, True))).decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    wanted = {f"ninfer_{name}": kind for kind, names in NAMES.items() for name in names.split()}
    assert {name: family.type for name, family in families.items()} == wanted
    for name, family in families.items():
        labels = {key for sample in family.samples for key in sample.labels} - {"le"}
        assert labels == LABELS.get(name.removeprefix("ninfer_"), set())
    assert "_created" not in text


def test_the_page_is_strict_text_format() -> None:
    """Line by line: help and type once, before their samples; samples of a family together."""
    text = exposition(Metrics(lambda: samples(snapshot(), IDENTITY, True))).decode()
    assert text.endswith("\n") and "\n\n" not in text
    sample = re.compile(
        r"[a-z_:][a-z0-9_:]*"
        r'(\{[a-z_]+="([^"\\\n]|\\[\\"n])*"(,[a-z_]+="([^"\\\n]|\\[\\"n])*")*\})?'
        r" (-?[0-9.]+(e[+-]?[0-9]+)?|[+]Inf)"
    )
    begun: list[str] = []
    series: set[str] = set()
    for line in text.splitlines():
        name = line.removeprefix("# ").split(" ")[1]
        if line.startswith("# HELP "):
            assert name not in begun
            begun.append(name)
        elif line.startswith("# TYPE "):
            assert name == begun[-1]
        else:
            assert sample.fullmatch(line), line
            assert line.startswith(begun[-1])
            assert line.rpartition(" ")[0] not in series
            series.add(line.rpartition(" ")[0])
