"""What the simulator counts, and how it tells it: ``/metrics`` under the bundled engine's names, vLLM's or SGLang's."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from loadtests.simulator.truth import Truth

Family = Literal["seatrial", "vllm", "sglang", "none"]


@dataclass
class Books:
    """Counted since this process began; of ``seconds`` the sum and how many there were."""

    started_unix_s: float = field(default_factory=time.time)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generation_tokens: int = 0
    seconds: dict[str, tuple[float, int]] = field(default_factory=dict)

    def end(self, truth: Truth) -> None:
        """A request has ended, in whatever way."""
        self.prompt_tokens += truth.prompt_tokens or 0
        self.cached_tokens += truth.cached_tokens or 0
        times = truth.token_times_s
        self.generation_tokens += len(times)
        if truth.started_s is not None and times:
            self._observe("queue", truth.started_s - truth.received_s)
            self._observe("prefill", times[0] - truth.started_s)
            self._observe("ttft", times[0] - truth.received_s)
            self._observe("decode", times[-1] - times[0])
            self._observe("itl", times[-1] - times[0], len(times) - 1)

    def _observe(self, name: str, seconds: float, count: int = 1) -> None:
        total, n = self.seconds.get(name, (0.0, 0))
        self.seconds[name] = (total + seconds, n + count)


# (what, type, name)
_VLLM = (
    ("running", "gauge", "num_requests_running"),
    ("waiting", "gauge", "num_requests_waiting"),
    ("kv_share", "gauge", "kv_cache_usage_perc"),
    ("preemptions", "counter", "num_preemptions_total"),
    ("prompt_tokens", "counter", "prompt_tokens_total"),
    ("generation_tokens", "counter", "generation_tokens_total"),
    ("prompt_tokens", "counter", "prefix_cache_queries_total"),
    ("cached_tokens", "counter", "prefix_cache_hits_total"),
    ("queue", "histogram", "request_queue_time_seconds"),
    ("prefill", "histogram", "request_prefill_time_seconds"),
    ("decode", "histogram", "request_decode_time_seconds"),
    ("ttft", "histogram", "time_to_first_token_seconds"),
    ("itl", "histogram", "inter_token_latency_seconds"),
)
_SEATRIAL = (*_VLLM, ("kv_used", "gauge", "kv_blocks_used"), ("kv_total", "gauge", "kv_blocks_total"))
_SGLANG = (
    ("running", "gauge", "num_running_reqs"),
    ("waiting", "gauge", "num_queue_reqs"),
    ("kv_share", "gauge", "token_usage"),
    ("preemptions", "counter", "num_retracted_requests_total"),
    ("prompt_tokens", "counter", "prompt_tokens_total"),
    ("generation_tokens", "counter", "generation_tokens_total"),
    ("cached_tokens", "counter", "cached_tokens_total"),
    ("queue", "histogram", "queue_time_seconds"),
    ("ttft", "histogram", "time_to_first_token_seconds"),
    ("itl", "histogram", "inter_token_latency_seconds"),
)
# family: (prefix, labels, names)
_NAMES = {
    "seatrial": ("seatrial_", "", _SEATRIAL),
    "vllm": ("vllm:", 'engine="0",model_name="sim"', _VLLM),
    "sglang": ("sglang:", 'model_name="sim",pp_rank="0",tp_rank="0"', _SGLANG),
}


def rendered(family: Family, gauges: Mapping[str, float], books: Books) -> str | None:
    """Prometheus text; None: the server has no metrics.

    Args:
        gauges: running, waiting, kv_used, kv_total.
    """
    if family == "none":
        return None
    prefix, labels, names = _NAMES[family]
    values: dict[str, float] = {
        **gauges,
        "kv_share": gauges["kv_used"] / gauges["kv_total"],
        "preemptions": 0,
        "prompt_tokens": books.prompt_tokens,
        "cached_tokens": books.cached_tokens,
        "generation_tokens": books.generation_tokens,
    }
    own = f"{{{labels}}}" if labels else ""
    bucket = f'{{le="+Inf",{labels}}}' if labels else '{le="+Inf"}'
    lines = [f"# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds {books.started_unix_s!r}"]
    for what, kind, name in names:
        full = prefix + name
        lines.append(f"# TYPE {full} {kind}")
        if kind == "histogram":
            total, count = books.seconds.get(what, (0.0, 0))
            lines += [f"{full}_bucket{bucket} {count}", f"{full}_sum{own} {total!r}", f"{full}_count{own} {count}"]
        else:
            lines.append(f"{full}{own} {values[what]}")
    return "\n".join(lines) + "\n"
