"""What the server says of itself before, during and after the load: ``/metrics``, ``/info``, resident memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

import httpx
import psutil

SAMPLE_EVERY_S = 1.0

# Column of samples.parquet -> names under which servers export it, the bundled engine first.
GAUGES: dict[str, tuple[str, ...]] = {
    "requests_running": ("seatrial_num_requests_running", "vllm:num_requests_running", "sglang:num_running_reqs"),
    "requests_waiting": ("seatrial_num_requests_waiting", "vllm:num_requests_waiting", "sglang:num_queue_reqs"),
    "kv_blocks_used": ("seatrial_kv_blocks_used",),
    "kv_blocks_total": ("seatrial_kv_blocks_total",),
    "preemptions_total": ("seatrial_num_preemptions_total", "vllm:num_preemptions_total"),
}


def parse_metrics(text: str) -> dict[str, float]:
    """Prometheus text as numbers, keyed ``name`` or ``name{label="value",...}``; NaN and infinities are left out.

    Raises:
        ValueError: not the Prometheus text format.
    """
    from prometheus_client.parser import text_string_to_metric_families

    out: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for s in family.samples:
            labels = ",".join(f'{k}="{v}"' for k, v in sorted(s.labels.items()))
            value = float(s.value)
            if value - value == 0:
                out[f"{s.name}{{{labels}}}" if labels else s.name] = value
    return out


def read_metrics(http: httpx.Client, base_url: str) -> dict[str, float] | None:
    """``GET /metrics``; None where the server has none, does not answer or speaks another format."""
    try:
        answer = http.get(f"{base_url}/metrics", timeout=10)
        return parse_metrics(answer.text) if answer.status_code == 200 else None
    except (httpx.HTTPError, ValueError):
        return None


def gauge(metrics: dict[str, float], column: str) -> float | None:
    """The value of a column of :data:`GAUGES`, summed over labels (engines of one server)."""
    for name in GAUGES[column]:
        found = [v for k, v in metrics.items() if k == name or k.startswith(name + "{")]
        if found:
            return sum(found)
    return None


def tree_rss_bytes(pid: int) -> int | None:
    """Resident memory of a process and its descendants; None when it is gone."""
    total = 0
    try:
        process = psutil.Process(pid)
        for p in [process, *process.children(recursive=True)]:
            total += p.memory_info().rss
    except psutil.Error:
        return None
    return total


class Sampler(threading.Thread):
    """Takes one row a second while its ``with`` block runs. ``rows`` hold ``at_unix_s`` and the columns."""

    def __init__(self, base_url: str, pid: int | None, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(daemon=True)
        self._base_url, self._pid, self._headers = base_url, pid, headers
        self._over = threading.Event()
        self.rows: list[dict[str, Any]] = []

    def __enter__(self) -> Sampler:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join(timeout=15)

    def run(self) -> None:
        with httpx.Client(headers=self._headers) as http:
            following = time.monotonic()
            while not self._over.is_set():
                at, metrics = time.time(), read_metrics(http, self._base_url) or {}
                row: dict[str, Any] = {"at_unix_s": at, **{c: gauge(metrics, c) for c in GAUGES}}
                row["rss_bytes"] = tree_rss_bytes(self._pid) if self._pid else None
                self.rows.append(row)
                following = max(following + SAMPLE_EVERY_S, time.monotonic())
                self._over.wait(following - time.monotonic())
