"""Latency samples from raw records: which requests count, what a failure is worth, how alike neighbours are.

A request that failed, was refused, timed out or never ended is +inf in every latency sample, so it can only make a tail
worse. One that its user abandoned, as the profile wanted, keeps what it had: its first token and its gaps are samples
if they came, +inf if nothing had come when the user left; its end to end time is nobody's, so it has none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import polars as pl

from pipeline.gate.statistics.effective import cluster_design_effect, serial_design_effect

METRICS = ("ttft_ms", "itl_ms", "tpot_ms", "e2e_ms")


@dataclass(frozen=True)
class Latencies:
    """Samples of one stage's measured requests, in ms, in order of due time.

    ``ttft_ms``, ``tpot_ms`` and ``e2e_ms``: one a request, from the moment it was due (TPOT: of answers of two tokens
    or more). ``itl_ms``: every gap between two tokens, of all requests; a request that failed adds one infinite gap,
    the token that never came.
    """

    ttft_ms: list[float]
    itl_ms: list[float]
    tpot_ms: list[float]
    e2e_ms: list[float]


@dataclass(frozen=True)
class Sample:
    """Latencies of one stage in ms (failures +inf) and how many independent ones they are worth at a limit."""

    values: list[float]
    requests: int
    span_s: float
    clusters: list[tuple[str, int]]  # of each value: its request, and the second in which it ended

    def effective(self, metric: str, limit: float) -> float:
        """ITL: gaps of one request, and gaps in one second (a step serves the whole batch), are correlated; the
        stronger of the two clusterings counts. The others: samples in time order.
        """
        if metric != "itl":
            return len(self.values) / serial_design_effect(self.values, limit)
        by_request = cluster_design_effect(self.values, [c[0] for c in self.clusters], limit)
        by_second = cluster_design_effect(self.values, [c[1] for c in self.clusters], limit)
        return len(self.values) / max(by_request, by_second)


def measured(records: pl.DataFrame, stage: str | None = None) -> pl.DataFrame:
    """Requests that were due in the measured part of a stage (None: of all stages), by due time."""
    keep = pl.col("phase") == "measured"
    if stage is not None:
        keep &= pl.col("stage") == stage
    return records.filter(keep).sort("due_s")


def tpot_ms(times: Sequence[float]) -> float | None:
    """Mean time per output token after the first; None of an answer of fewer than two tokens."""
    return (times[-1] - times[0]) * 1000 / (len(times) - 1) if len(times) > 1 else None


def samples(records: pl.DataFrame, stage: str | None = None) -> dict[str, Sample]:
    """The samples of every metric of a stage's measured requests, keyed ``ttft``, ``itl``, ``tpot``, ``e2e``."""
    rows = measured(records, stage)
    values: dict[str, list[float]] = {m.removesuffix("_ms"): [] for m in METRICS}
    clusters: dict[str, list[tuple[str, int]]] = {m: [] for m in values}

    def note(metric: str, value: float, request: str, at_s: float) -> None:
        values[metric].append(value)
        clusters[metric].append((request, int(at_s)))

    columns = ("request_id", "due_s", "end_s", "token_times_s", "status")
    for request, due, end, times, status in rows.select(columns).iter_rows():
        left = status == "abandoned"
        whole = status == "ok" and bool(times) and end is not None
        for a, b in pairwise(times or []):
            note("itl", (b - a) * 1000, request, b)
        note("ttft", (times[0] - due) * 1000 if whole or (left and times) else math.inf, request, due)
        if not whole and not (left and times):
            note("itl", math.inf, request, due if end is None else end)
        if not left:
            note("e2e", (end - due) * 1000 if whole else math.inf, request, due)
            per_token = tpot_ms(times) if whole else math.inf
            if per_token is not None:
                note("tpot", per_token, request, due)
    due_s = rows["due_s"]
    span = float(due_s[-1] - due_s[0]) if rows.height > 1 else 0.0
    return {m: Sample(values[m], rows.height, span, clusters[m]) for m in values}


def stage_latencies(records: pl.DataFrame, stage: str | None = None) -> Latencies:
    """Latency samples of a stage's measured requests, failures as +inf."""
    found = samples(records, stage)
    return Latencies(*(found[m.removesuffix("_ms")].values for m in METRICS))
