"""``/metrics`` in Prometheus' text form, under the names that servers of language models commonly use."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

_TTFT_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60)
_ITL_S = (0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 2)
_LONG_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 60, 120, 300)

# name, key of the core's stats, help
_GAUGES = [
    ("num_requests_running", "running", "requests that hold blocks"),
    ("num_requests_waiting", "waiting", "requests in the queue"),
    ("kv_blocks_total", "blocks_total", "blocks of the KV pool"),
    ("kv_blocks_used", "blocks_used", "blocks held by requests"),
    ("kv_blocks_cached", "blocks_cached", "blocks held by nobody whose content is known"),
]
_COUNTERS = [
    ("prefix_cache_queries_tokens", "prefix_queries_tokens", "prompt tokens looked up in the prefix cache"),
    ("prefix_cache_hits_tokens", "prefix_hits_tokens", "prompt tokens found in the prefix cache"),
    ("preemptions", "preemptions", "requests that had to give up their blocks"),
    ("recomputed_tokens", "recomputed_tokens", "tokens computed again after a preemption"),
    ("prompt_tokens", "prompt_tokens", "tokens of prompts that were computed or found"),
    ("generation_tokens", "generation_tokens", "tokens drawn"),
    ("steps", "steps", "steps of the engine"),
    ("step_tokens", "step_tokens", "tokens computed in steps, prompts and outputs"),
    ("kv_integrity_errors", "integrity_errors", "idle checks in which the KV pool's books did not balance"),
]


class _CoreCollector(Collector):
    """Turns the latest stats of the core into metrics when they are asked for."""

    def __init__(self, stats: Callable[[], Mapping[str, int]]) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        stats = self._stats()
        if not stats:
            return
        for name, key, text in _GAUGES:
            yield GaugeMetricFamily(f"seatrial_{name}", text, value=stats[key])
        share = stats["blocks_used"] / max(1, stats["blocks_total"])
        yield GaugeMetricFamily("seatrial_kv_cache_usage_ratio", "used blocks over all blocks", value=share)
        for name, key, text in _COUNTERS:
            yield CounterMetricFamily(f"seatrial_{name}", text, value=stats[key])
        failures = CounterMetricFamily("seatrial_kv_allocation_failures", "by cause", labels=["cause"])
        for cause in ("exhausted", "fragmented"):
            failures.add_metric([cause], stats[f"allocation_failures_{cause}"])
        yield failures


class Metrics:
    """Counts of the server itself, and the core's."""

    def __init__(self, stats: Callable[[], Mapping[str, int]]) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self.registry.register(_CoreCollector(stats))

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"seatrial_{name}_seconds", text, buckets=buckets, registry=self.registry)

        self.time_to_first_token = histogram("time_to_first_token", "from the request's arrival", _TTFT_S)
        self.inter_token_latency = histogram("inter_token_latency", "between two tokens of a choice", _ITL_S)
        self.e2e_latency = histogram("e2e_request_latency", "from arrival to the last token", _LONG_S)
        self._phases = {
            phase: histogram(f"request_{phase}_time", f"time of a request: {phase}", _LONG_S)
            for phase in ("queued", "prefill", "decode", "preempted")
        }
        self.requests = Counter("seatrial_requests", "ended choices", ["status"], registry=self.registry)
        self.rejected = Counter("seatrial_requests_rejected", "refused requests", ["reason"], registry=self.registry)
        for status in ("stop", "length", "abort", "error"):
            self.requests.labels(status)
        for reason in ("queue_full", "too_long", "invalid", "shutting_down", "unhealthy"):
            self.rejected.labels(reason)

    def ended(
        self, status: str, latency_s: float | None = None, timings: Mapping[str, float | None] | None = None
    ) -> None:
        self.requests.labels(status).inc()
        if latency_s is not None:
            self.e2e_latency.observe(latency_s)
        for phase, histogram in self._phases.items():
            value = (timings or {}).get(f"{phase}_s")
            if value is not None:
                histogram.observe(value)

    def render(self) -> bytes:
        return generate_latest(self.registry)
