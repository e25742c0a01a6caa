"""Latency samples of one stage as signals over time, with what the traffic itself explains taken out.

A prompt twice as long takes longer, and so does any request while more users are at work. Both are the traffic's doing,
not the server's: their effect is estimated on the logarithm, beside a straight line in time, and subtracted. The
number of requests in flight counts only under closed-loop arrivals, where the schedule sets it; in an open loop it is
an effect of a slow server, and subtracting it would hide the fault.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import polars as pl
from numpy.typing import NDArray

from loadtests.quantiles import nearest_rank
from pipeline.load.samples import measured

Floats = NDArray[np.float64]
_FLOOR_MS = 0.05  # below the resolution of any client: tokens of one chunk


@dataclass(frozen=True)
class Signal:
    """``v_ms`` at ``t_s`` (seconds into the stage, ascending); +inf: a request that failed. ``span_s``: the stage."""

    metric: str  # ttft or itl
    t_s: Floats  # [samples]
    v_ms: Floats  # [samples]
    span_s: float

    def median_ms(self) -> float:
        return nearest_rank(np.sort(self.v_ms).tolist(), 0.5)


@dataclass(frozen=True)
class Windows:
    """One quantile of a signal in equal windows; only those with enough samples are here."""

    t_s: Floats  # [windows], their middles
    v: Floats  # [windows], natural logarithm of ms


def ttft_signal(records: pl.DataFrame, stage: str, from_s: float, to_s: float, *, closed: bool) -> Signal:
    """Time to first token by due time. ``from_s``, ``to_s``: the measured part; ``closed``: closed-loop arrivals."""
    rows = measured(records, stage).filter(pl.col("due_s").is_between(from_s, to_s))
    # As in pipeline.load.samples: one whose user left, as the profile wanted, keeps the first token that came.
    ok = rows["status"].is_in(["ok", "abandoned"]) & (rows["token_times_s"].list.len() > 0)
    first = rows["token_times_s"].list.first().to_numpy().astype(np.float64)
    t = rows["due_s"].to_numpy().astype(np.float64)
    v = np.where(ok.to_numpy(), (first - t) * 1000, np.inf)
    explains = [rows["prompt_tokens"].cast(pl.Float64).to_numpy()]
    if closed:
        explains.append(rows["concurrency"].cast(pl.Float64).to_numpy())
    return Signal("ttft", t - from_s, _without(v, t - from_s, explains), to_s - from_s)


def itl_signal(records: pl.DataFrame, stage: str, from_s: float, to_s: float, *, closed: bool) -> Signal:
    """Every gap between two tokens at the moment it ended, those of requests that failed later included."""
    at: list[float] = []
    gaps: list[float] = []
    users: list[float] = []
    rows = measured(records, stage).select("token_times_s", "concurrency")
    for times, concurrency in rows.iter_rows():
        for a, b in pairwise(times or []):
            if from_s <= b <= to_s:
                at.append(b)
                gaps.append((b - a) * 1000)
                users.append(float(concurrency or 0))
    order = np.argsort(at, kind="stable")
    t = np.asarray(at, dtype=np.float64)[order] - from_s
    v = np.asarray(gaps, dtype=np.float64)[order]
    explains = [np.asarray(users)[order]] if closed else []
    return Signal("itl", t, _without(v, t, explains), to_s - from_s)


def _without(v_ms: Floats, t_s: Floats, explains: list[Floats]) -> Floats:
    """Latencies at the mean of what explains them: least squares on logarithms, beside an intercept and time."""
    known = np.isfinite(v_ms)
    columns = []
    for x in explains:
        usable = np.where(np.isfinite(x) & (x > 0), x, np.nan)
        logs = np.log(np.where(np.isnan(usable), np.nanmedian(usable) if np.isfinite(usable).any() else 1.0, usable))
        if known.sum() > 10 and logs[known].std() > 1e-3:
            columns.append(logs - logs[known].mean())
    if not columns:
        return v_ms
    y = np.log(np.maximum(v_ms[known], _FLOOR_MS))
    design = np.column_stack([np.ones(known.sum()), t_s[known], *(c[known] for c in columns)])
    beta = np.linalg.lstsq(design, y, rcond=None)[0][2:]
    out = v_ms.copy()
    out[known] = np.exp(y - np.column_stack([c[known] for c in columns]) @ beta)
    return out


def windows(signal: Signal, count: int, q: float, least: int) -> Windows:
    """The quantile ``q`` in ``count`` equal windows; those with fewer than ``least`` samples are left out."""
    width = signal.span_s / count
    index = np.clip((signal.t_s / width).astype(int), 0, count - 1)
    t, v = [], []
    for w in range(count):
        inside = np.sort(signal.v_ms[index == w])
        if len(inside) >= least:
            t.append((w + 0.5) * width)
            v.append(nearest_rank(inside.tolist(), q))
    logs: Floats = np.log(np.maximum(np.asarray(v, dtype=np.float64), _FLOOR_MS))
    rounded: Floats = logs.round(5)  # a thousandth of a percent: what is below is rounding of the clock
    return Windows(np.asarray(t), rounded)


def percent(log_change: float) -> float:
    """A change of the logarithm in percent; what is beyond any figure stays finite."""
    return 100 * math.expm1(min(max(log_change, -20.0), 50.0))
