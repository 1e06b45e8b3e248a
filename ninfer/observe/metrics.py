"""Prometheus metrics: request counters and histograms of ours, gauges from published snapshots.

Owns the names, labels and buckets of ``/metrics`` (text format 0.0.4).  Promises that a scrape reads
snapshots only: it starts no device work and never waits for the engine.

The one thing a reader would get wrong: counters start at zero when the server is ready; whatever
warm-up did is subtracted through ``baseline``.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator, Mapping

import attrs
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
BUCKETS = (
    *(0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0),
    *(80.0, 160.0, 320.0, 640.0, 1280.0),
)
OUTCOMES = ("completed", "cancelled", "failed", "rejected")
PREFIX = "ninfer_"

Labels = tuple[tuple[str, str], ...]


@attrs.frozen
class Sample:
    """One published value; counters are named without their ``_total``."""

    name: str
    help: str
    value: float
    counter: bool = False
    labels: Labels = ()


@attrs.define(eq=False)
class Histogram:
    """Cumulative histogram in seconds over the shared buckets."""

    counts: list[int] = attrs.field(factory=lambda: [0] * (len(BUCKETS) + 1))
    total: float = 0.0

    def observe(self, value: float) -> None:
        """Count one duration."""
        self.counts[bisect.bisect_left(BUCKETS, value)] += 1
        self.total += value

    def family(self, name: str, text: str) -> Metric:
        """Render as a metric family."""
        bounds = [*(f"{bound:g}" for bound in BUCKETS), "+Inf"]
        running, buckets = 0, []
        for bound, number in zip(bounds, self.counts, strict=True):
            running += number
            buckets.append((bound, running))
        return HistogramMetricFamily(PREFIX + name, text, buckets=buckets, sum_value=self.total)


@attrs.define(eq=False)
class Metrics(Collector):
    """Everything ``/metrics`` shows.  ``published`` returns the engine's current samples."""

    published: Callable[[], Iterator[Sample]] = lambda: iter(())
    outcomes: dict[str, int] = attrs.field(factory=lambda: dict.fromkeys(OUTCOMES, 0))
    response_failures: int = 0
    ttft: Histogram = attrs.field(factory=Histogram)
    duration: Histogram = attrs.field(factory=Histogram)
    queue: Histogram = attrs.field(factory=Histogram)
    baseline: Mapping[tuple[str, Labels], float] = attrs.field(factory=dict)

    def first_token(self, elapsed: float) -> None:
        """Count a first committed token."""
        self.ttft.observe(elapsed)

    def settle(self, outcome: str, spans: tuple[float, float] | None = None) -> None:
        """Count the end of one attempt; a generation's outcome also has its duration and queue wait."""
        self.outcomes[outcome] += 1
        if spans is not None:
            self.duration.observe(spans[0])
            self.queue.observe(spans[1])

    def start_counting(self) -> None:
        """Take the present counter values as zero (called when warm-up is over)."""
        self.baseline = {(s.name, s.labels): s.value for s in self.published() if s.counter}

    def totals(self) -> dict[str, float]:
        """Return the present value of every sample without labels, by name."""
        plain = (sample for sample in self.published() if not sample.labels)
        return {s.name: s.value - self.baseline.get((s.name, s.labels), 0.0) for s in plain}

    def collect(self) -> Iterator[Metric]:
        """Yield every family; called by the exposition library."""
        yield from self._engine_families()
        requests = CounterMetricFamily(
            PREFIX + "requests", "Generation attempts by outcome.", labels=["outcome"]
        )
        for outcome, number in self.outcomes.items():
            requests.add_metric([outcome], number)
        yield requests
        yield CounterMetricFamily(
            PREFIX + "response_failures",
            "Responses that failed after their generation had ended.",
            value=self.response_failures,
        )
        yield self.ttft.family("time_to_first_token_seconds", "Arrival to first committed token.")
        yield self.duration.family("request_duration_seconds", "Arrival to settled outcome.")
        yield self.queue.family("request_queue_seconds", "Submission to admission.")

    def _engine_families(self) -> Iterator[Metric]:
        families: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}
        for sample in self.published():
            kind = CounterMetricFamily if sample.counter else GaugeMetricFamily
            keys = [key for key, _ in sample.labels]
            family = families.setdefault(sample.name, kind(PREFIX + sample.name, sample.help, labels=keys))
            base = self.baseline.get((sample.name, sample.labels), 0.0)
            family.add_metric([value for _, value in sample.labels], sample.value - base)
        yield from families.values()


def exposition(metrics: Metrics) -> bytes:
    """Format every metric in text format 0.0.4."""
    return generate_latest(_Scrape(metrics))


@attrs.frozen
class _Scrape:
    """The one method that the exposition library calls on a registry."""

    metrics: Metrics

    def collect(self) -> Iterator[Metric]:
        """Yield every family."""
        return self.metrics.collect()
