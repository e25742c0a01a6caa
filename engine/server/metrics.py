"""``/metrics`` in Prometheus' text form.

Names are those of vLLM's ``vllm:`` metrics with the prefix ``seatrial_``, wherever the quantity is the same, so that a
dashboard needs one replacement: ``num_requests_running``, ``num_requests_waiting``, ``kv_cache_usage_perc`` (a share, 1
is full), ``prefix_cache_queries_total`` and ``prefix_cache_hits_total`` (in tokens), ``num_preemptions_total``,
``prompt_tokens_total``, ``generation_tokens_total``, ``request_success_total`` by ``finished_reason``, and the
histograms ``time_to_first_token_seconds``, ``inter_token_latency_seconds``, ``e2e_request_latency_seconds``,
``request_{queue,prefill,decode,inference}_time_seconds``, ``iteration_tokens_total``, ``request_prompt_tokens`` and
``request_generation_tokens``.

Names of our own are for what has no name there: the KV pool in blocks, failed allocations by cause, recomputed tokens,
time spent preempted, refusals by reason, connections that were ended by a limit, lost rows of the logs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from engine.protocol import StepRow

_TTFT_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60)
_ITL_S = (0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 2)
_LONG_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 60, 120, 300)
_STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_REQUEST_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)

# name, key of the core's stats, help
_GAUGES = [
    ("num_requests_running", "running", "requests that hold blocks"),
    ("num_requests_waiting", "waiting", "requests in the queue"),
    ("kv_blocks_total", "blocks_total", "blocks of the KV pool"),
    ("kv_blocks_used", "blocks_used", "blocks held by requests"),
    ("kv_blocks_cached", "blocks_cached", "blocks held by nobody whose content is known"),
    ("kv_blocks_stranded", "blocks_stranded", "free blocks, too few of them adjacent for the first of the queue"),
    ("kv_tokens_used", "kv_tokens_used", "positions with keys and values in blocks held by requests"),
]
_COUNTERS = [
    ("prefix_cache_queries", "prefix_queries_tokens", "prompt tokens looked up in the prefix cache"),
    ("prefix_cache_hits", "prefix_hits_tokens", "prompt tokens found in the prefix cache"),
    ("num_preemptions", "preemptions", "requests that had to give up their blocks"),
    ("recomputed_tokens", "recomputed_tokens", "tokens computed again after a preemption"),
    ("prompt_tokens", "prompt_tokens", "tokens of prompts that were computed or found"),
    ("generation_tokens", "generation_tokens", "tokens drawn"),
    ("steps", "steps", "steps of the engine"),
    ("step_tokens", "step_tokens", "tokens computed in steps, prompts and outputs"),
    ("kv_integrity_errors", "integrity_errors", "idle checks in which the KV pool's books did not balance"),
]
# key of a request's timings -> name
_PHASES = {
    "queued_s": ("request_queue_time_seconds", "from arrival in the core to the first step"),
    "prefill_s": ("request_prefill_time_seconds", "from the first step to the first token"),
    "decode_s": ("request_decode_time_seconds", "from the first token to the last"),
    "preempted_s": ("request_preempted_time_seconds", "waiting again after preemptions"),
}
REFUSALS = (
    "queue_full", "too_long", "no_space", "invalid", "unauthorised", "timeout",
    "shutting_down", "unhealthy", "connections",
)  # fmt: skip
CONNECTION_ENDS = ("header_timeout", "body_timeout", "idle_timeout", "write_timeout", "too_many", "pipelined")


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
        yield GaugeMetricFamily("seatrial_kv_cache_usage_perc", "used blocks over all blocks, 1 is full", value=share)
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
            return Histogram(f"seatrial_{name}", text, buckets=buckets, registry=self.registry)

        def counter(name: str, text: str, label: str, values: tuple[str, ...]) -> Counter:
            made = Counter(f"seatrial_{name}", text, [label], registry=self.registry)
            for value in values:
                made.labels(value)
            return made

        self.time_to_first_token = histogram("time_to_first_token_seconds", "from the request's arrival", _TTFT_S)
        self.inter_token_latency = histogram("inter_token_latency_seconds", "between two tokens of a choice", _ITL_S)
        self.e2e_latency = histogram("e2e_request_latency_seconds", "from arrival to the last token", _LONG_S)
        self._inference = histogram("request_inference_time_seconds", "prefill and decode", _LONG_S)
        self._phases = {key: histogram(*about, _LONG_S) for key, about in _PHASES.items()}
        self._step_tokens = histogram("iteration_tokens_total", "tokens of a step", _STEP_TOKENS)
        self._prompt_tokens = histogram("request_prompt_tokens", "tokens of the prompt", _REQUEST_TOKENS)
        self._generation_tokens = histogram("request_generation_tokens", "tokens of the answer", _REQUEST_TOKENS)
        reasons = ("stop", "length", "abort", "error")
        self._success = counter("request_success", "ended choices", "finished_reason", reasons)
        self.rejected = counter("requests_rejected", "refused requests", "reason", REFUSALS)
        self.connections = Gauge("seatrial_connections", "open connections", registry=self.registry)
        self.connection_ends = counter(
            "connections_ended", "connections that were ended by a limit", "reason", CONNECTION_ENDS
        )
        self.log_rows_lost = counter(
            "log_rows_lost", "rows that could not be written", "log", ("steps", "requests", "prompts")
        )

    def step(self, row: StepRow) -> None:
        self._step_tokens.observe(row.prefill_tokens + row.decode_requests)

    def ended(self, reason: str, latency_s: float, prompt_tokens: int, generation_tokens: int) -> None:
        """A choice has ended, as far as its client is concerned."""
        self._success.labels(reason).inc()
        if reason != "abort":
            self.e2e_latency.observe(latency_s)
        self._prompt_tokens.observe(prompt_tokens)
        self._generation_tokens.observe(generation_tokens)

    def phases(self, timings: Mapping[str, Any]) -> None:
        """The core's own times of a choice that has ended; null for a phase that was not reached."""
        for key, histogram in self._phases.items():
            if timings.get(key) is not None:
                histogram.observe(timings[key])
        if timings.get("prefill_s") is not None:
            self._inference.observe(timings["prefill_s"] + (timings.get("decode_s") or 0.0))

    def render(self) -> bytes:
        return generate_latest(self.registry)
