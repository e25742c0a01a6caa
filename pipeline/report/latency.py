"""Latency over time and its distribution, on top of :mod:`pipeline.load.summary`, which owns the definitions.

The percentiles of whole stages are those of ``load.json``; here is only what a figure needs beside them. All times
are relative to the start of the request's load stage, so that tiers can be laid over each other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from loadtests.quantiles import min_samples, nearest_rank
from pipeline.load.samples import measured, stage_latencies
from pipeline.load.summary import WINDOWS_S, series
from pipeline.report.inputs import TierData

Floats = npt.NDArray[np.float64]
LATEST = min_samples(0.95)  # a P95 of fewer samples is the maximum under another name
MOST_STEPS = 60


@dataclass(frozen=True)
class StageSeries:
    """One tier in one load stage. Arrays are aligned by time step; NaN stands for "too few samples here".

    ``ttft_ms`` holds one value for each measured request (``due_s`` beside it), +inf for one that failed. ``itl_ms`` is
    sorted and pooled, with one +inf for each failed request.
    """

    tier: str
    stage: str
    due_s: Floats  # [requests]
    ttft_ms: Floats  # [requests], by due time
    itl_ms: Floats  # [gaps], sorted
    t_s: Floats  # [steps], the middle of each step
    ttft_p95_ms: Floats  # [steps], of the latest requests due by the end of the step
    itl_p95_ms: Floats  # [steps]
    output_tokens_per_s: Floats  # [steps]

    @property
    def failed(self) -> int:
        return int(np.isinf(self.ttft_ms).sum())


def quantile(ordered: Floats, p: float) -> float:
    """Nearest rank of sorted samples; NaN of none. +inf (a failed request) stays what it is."""
    return float(nearest_rank(ordered.tolist(), p)) if len(ordered) else math.nan


def _start_of(tier: TierData, stage: str, due: Floats) -> float:
    for entry in (tier.run or {}).get("stages") or []:
        if entry.get("name") == stage and isinstance(entry.get("start_s"), int | float):
            return float(entry["start_s"])
    return float(due.min())


def _step(rows: pl.DataFrame) -> float:
    """The shortest step of which the median holds enough tokens for a P95, and that cuts the stage into few steps."""
    tokens = rows["token_times_s"].explode(empty_as_null=True).drop_nulls().to_numpy()
    if not len(tokens):
        return WINDOWS_S[-1]
    length = float(tokens.max() - tokens.min())
    for step in WINDOWS_S:
        counts = np.bincount(((tokens - tokens.min()) / step).astype(int))
        if length / step <= MOST_STEPS and np.median(counts) >= 2 * LATEST:
            return step
    return WINDOWS_S[-1]


def series_of(tier: TierData, stage: str) -> StageSeries | None:
    """The series of one stage, or None where there are no measured records of it."""
    if tier.records is None:
        return None
    rows = measured(tier.records, stage)
    if not rows.height:
        return None
    latencies = stage_latencies(tier.records, stage)
    due, ttft = rows["due_s"].to_numpy().astype(np.float64), np.array(latencies.ttft_ms)
    start, step = _start_of(tier, stage, due), _step(rows)
    steps = series(tier.records, stage, step).filter(pl.col("phase") == "measured")
    middle = steps["t_s"].to_numpy().astype(np.float64)
    sliding = []
    for t in middle:
        latest = np.sort(ttft[due < t + step / 2][-LATEST:])
        sliding.append(quantile(latest, 0.95) if len(latest) == LATEST else math.nan)
    return StageSeries(
        tier=tier.name,
        stage=stage,
        due_s=due - start,
        ttft_ms=ttft,
        itl_ms=np.sort(np.array(latencies.itl_ms)),
        t_s=middle - start,
        ttft_p95_ms=np.array(sliding),
        itl_p95_ms=steps["itl_p95_ms"].fill_null(math.nan).to_numpy().astype(np.float64),
        output_tokens_per_s=steps["output_tokens_per_s"].to_numpy().astype(np.float64),
    )


def tail_ecdf(values: Floats, most: int = 160) -> list[tuple[float, float]]:
    """(value, share of samples not above it), at most ``most`` points, dense in the tail, finite values only.

    Failed samples (+inf) are in the denominator: the curve then ends below 1.
    """
    ordered = np.sort(values)
    n = len(ordered)
    if not n:
        return []
    ranks = np.arange(1, n + 1)
    if n > most:  # even spacing in log10 of the share above
        want = 1 - np.logspace(0, -math.log10(n), most - 1)
        ranks = np.unique(np.append(np.clip(np.ceil(want * n).astype(int), 1, n), n))
    return [(float(ordered[r - 1]), float(r / n)) for r in ranks if math.isfinite(ordered[r - 1])]


def finite(value: Any) -> float | None:
    """A float for JSON and CSV: None for NaN and infinity."""
    return float(value) if math.isfinite(value) else None
