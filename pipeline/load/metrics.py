"""What the server says of itself before, during and after the load, ``/metrics``; and what the machine says: resident
memory, time that its host took."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import httpx
import polars as pl
import psutil

from pipeline.load.server_metrics import gauge
from pipeline.load.stolen import stolen_s

SAMPLE_EVERY_S = 1.0
SAMPLE_SCHEMA: dict[str, Any] = {
    "t_s": pl.Float64,
    "requests_running": pl.Int64,
    "requests_waiting": pl.Int64,
    "kv_blocks_used": pl.Int64,
    "kv_blocks_total": pl.Int64,
    "rss_bytes": pl.Int64,
    "preemptions_total": pl.Int64,
    "kv_usage_share": pl.Float64,  # of the pool; of a server that tells it as a share alone
    "stolen_s": pl.Float64,  # of all processors, by the host of this machine since it started
}
# Column of samples.parquet -> figure of pipeline.load.server_metrics. The others are asked of the machine.
COLUMNS = {
    "requests_running": "running",
    "requests_waiting": "waiting",
    "kv_blocks_used": "kv_blocks_used",
    "kv_blocks_total": "kv_blocks_total",
    "preemptions_total": "preemptions",
    "kv_usage_share": "kv_usage_share",
}
MONOTONE = ("counter", "histogram")


@dataclass(frozen=True)
class Scrape:
    """One look at ``/metrics``. ``values`` is None where it gave none; ``counters``: the totals of its counters and of
    its histograms' counts, by family, which go down only where a process starts anew; ``refused``: nobody listened.
    """

    at_unix_s: float
    values: dict[str, float] | None
    counters: dict[str, float] = field(default_factory=dict)
    refused: bool = False


def parse_metrics(text: str) -> dict[str, float]:
    """Prometheus text as numbers, keyed ``name`` or ``name{label="value",...}``; NaN and infinities are left out.

    Raises:
        ValueError: not the Prometheus text format.
    """
    return _parsed(text)[0]


def _parsed(text: str) -> tuple[dict[str, float], dict[str, float]]:
    """(values, totals of what only grows, by family)."""
    from prometheus_client.parser import text_string_to_metric_families

    out: dict[str, float] = {}
    totals: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for s in family.samples:
            labels = ",".join(f'{k}="{v}"' for k, v in sorted(s.labels.items()))
            value = float(s.value)
            if value - value:
                continue
            out[f"{s.name}{{{labels}}}" if labels else s.name] = value
            if family.type in MONOTONE and s.name.endswith(("_total", "_count")):
                totals[s.name] = totals.get(s.name, 0.0) + value
    return out, totals


def read_metrics(http: httpx.Client, base_url: str) -> dict[str, float] | None:
    """``GET /metrics``; None where the server has none, does not answer or speaks another format."""
    return look(http, base_url).values


def look(http: httpx.Client, base_url: str) -> Scrape:
    """``GET /metrics``. A server that is slow to answer is not one that is away."""
    at = time.time()
    try:
        answer = http.get(f"{base_url}/metrics", timeout=10)
        if answer.status_code != 200:
            return Scrape(at, None)
        return Scrape(at, *_parsed(answer.text))
    except httpx.ConnectError:
        return Scrape(at, None, refused=True)
    except (httpx.HTTPError, ValueError):
        return Scrape(at, None)


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
    """Looks before its ``with`` block begins, once a second while it runs, and once more at its end. ``rows`` hold
    ``at_unix_s`` and the columns; ``scrapes`` all that was read.
    """

    def __init__(self, base_url: str, pid: int | None, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(daemon=True)
        self._base_url, self._pid, self._headers = base_url, pid, headers
        self._over = threading.Event()
        self.rows: list[dict[str, Any]] = []
        self.scrapes: list[Scrape] = []

    def __enter__(self) -> Sampler:
        with httpx.Client(headers=self._headers) as http:
            self._sample(http)
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join(timeout=15)

    def run(self) -> None:
        with httpx.Client(headers=self._headers) as http:
            following = time.monotonic() + SAMPLE_EVERY_S
            while not self._over.wait(following - time.monotonic()):
                self._sample(http)
                following = max(following + SAMPLE_EVERY_S, time.monotonic())
            self._sample(http)

    def _sample(self, http: httpx.Client) -> None:
        seen = look(http, self._base_url)
        row: dict[str, Any] = {"at_unix_s": seen.at_unix_s}
        row |= {column: gauge(seen.values or {}, figure) for column, figure in COLUMNS.items()}
        row["rss_bytes"] = tree_rss_bytes(self._pid) if self._pid else None
        row["stolen_s"] = stolen_s()
        self.scrapes.append(seen)
        self.rows.append(row)


def samples_frame(rows: Sequence[Mapping[str, Any]], started_at: str) -> pl.DataFrame:
    """``samples.parquet`` on the clock of the run that began at ``started_at``: ``t_s`` is negative for those taken
    while Locust was starting.
    """
    zero = datetime.fromisoformat(started_at).timestamp()

    def whole(column: str, value: float | None) -> float | None:
        return round(value) if value is not None and SAMPLE_SCHEMA[column] == pl.Int64 else value

    data = [{"t_s": r["at_unix_s"] - zero, **{c: whole(c, r[c]) for c in SAMPLE_SCHEMA if c != "t_s"}} for r in rows]
    return pl.DataFrame(data, schema=SAMPLE_SCHEMA)
