"""Figures from raw records: percentiles with their intervals, rates, shares, time series.

What each figure means is in :mod:`pipeline.load.figures`, which samples it rests on in :mod:`pipeline.load.samples`. A
percentile that falls on a failure, or that too few samples could tell from the maximum, is absent (None) with its
reason.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Any, get_args

import polars as pl

from loadtests.quantiles import min_samples, nearest_rank
from loadtests.records import Status
from pipeline.gate.statistics.shares import share_interval
from pipeline.load.intervals import quantile_interval
from pipeline.load.samples import METRICS, Sample, measured, samples, tpot_ms

QUANTILES = {"p50": 0.50, "p95": 0.95, "p99": 0.99}
STATUSES = get_args(Status)
# Shares of all measured requests; a profile's own leavers are no failures.
SHARES = {
    "error_share": ("error", "timeout", "censored"),
    "refused_share": ("refused",),
    "abandoned_share": ("abandoned",),
}
WINDOWS_S = (1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0)


def quantile(values: Sequence[float], q: float) -> tuple[float | None, str | None]:
    """(value, None), or (None, why there is none)."""
    needed = min_samples(q)
    if len(values) < needed:
        return None, f"{len(values)} samples; a P{q * 100:g} needs at least {needed}"
    failed = sum(1 for v in values if math.isinf(v))
    if failed == len(values):
        return None, f"all {failed} failed"
    value = nearest_rank(sorted(values), q)
    if math.isinf(value):
        return None, f"{failed} of {len(values)} failed, so the P{q * 100:g} is infinite"
    return value, None


def _interval(sample: Sample, metric: str, q: float, value: float) -> dict[str, Any]:
    """The 95 % interval of a percentile; an end that the sample does not reach, or that falls on a failure, is null."""
    effective = min(sample.effective(metric, value), float(len(sample.values)))
    ends = quantile_interval(sorted(sample.values), q, effective)
    low, high = (None if end is None or math.isinf(end) else end for end in ends)
    return {"interval": [low, high], "n": len(sample.values), "n_effective": effective}


def summarise(
    records: pl.DataFrame,
    windows: dict[str, tuple[float, float]],
    *,
    fixed_output: bool,
    goodput: dict[str, float] | None,
    own_s: Mapping[str, float] = MappingProxyType({}),
) -> dict[str, Any]:
    """The figures of the given stages together.

    Args:
        windows: measured part of each stage, (from_s, to_s). Rates count what arrived inside: tokens by their own
            time, whichever request they belong to, so neither end of the window is counted twice or left out.
        fixed_output: the server was told to go on to the length asked for, so "cut off" means nothing.
        own_s: how much of its window a stage had to itself, where it took turns with another client: what rates are of.
        goodput: limits ``ttft_ms`` and ``tpot_ms`` that a good request keeps.

    Returns:
        One value a key of :data:`pipeline.load.figures.FIGURES`; percentiles by name below their metric. ``intervals``
        holds, by the same name (``ttft_ms.p95``, ``error_share``), the 95 % interval and the sizes it rests on;
        ``reasons`` why a figure is null.
    """
    rows = measured(records.filter(pl.col("stage").is_in(list(windows))))
    n = rows.height
    reasons: dict[str, str] = {}
    status = dict(rows.group_by("status").len().iter_rows()) if n else {}
    out: dict[str, Any] = {"requests": n}
    out |= {s: int(status.get(s, 0)) for s in STATUSES}
    intervals: dict[str, Any] = {}
    found = samples(rows)
    for metric in METRICS:
        out[metric] = {}
        sample = found[metric.removesuffix("_ms")]
        for name, q in QUANTILES.items():
            value, why = quantile(sample.values, q)
            out[metric][name] = value
            if value is None:
                reasons[f"{metric}.{name}"] = str(why)
            else:
                intervals[f"{metric}.{name}"] = _interval(sample, metric.removesuffix("_ms"), q, value)
    for name, kinds in SHARES.items():
        out[name] = sum(out[k] for k in kinds) / n if n else None
        if n:
            ends = share_interval(sum(out[k] for k in kinds), n, 0.975)
            intervals[name] = {"interval": list(ends), "n": n, "n_effective": float(n)}
        else:
            reasons[name] = "no requests"
    out |= _rates(records, windows, own_s)
    ok = rows.filter(pl.col("status") == "ok")
    out["output_tokens_mean"] = _mean(ok["output_tokens"])
    out["asked_tokens_mean"] = _mean(ok["max_tokens"])
    out["prompt_tokens_mean"] = _mean(ok["prompt_tokens"])
    for key in ("output_tokens_mean", "asked_tokens_mean", "prompt_tokens_mean"):
        if out[key] is None:
            reasons[key] = "no request succeeded"
    out["goodput_share"] = _goodput(rows, goodput)
    if out["goodput_share"] is None:
        reasons["goodput_share"] = "the profile sets no goodput limits" if goodput is None else "no requests"
    out["cut_off_share"] = None
    if fixed_output:
        reasons["cut_off_share"] = "not applicable: the profile fixes the length of every answer (ignore_eos)"
    elif ok.height:
        out["cut_off_share"] = ok.filter(pl.col("finish_reason") == "length").height / ok.height
    else:
        reasons["cut_off_share"] = "no request succeeded"
    out["prefix_hit_share"] = None
    told = ok.filter(pl.col("cached_tokens").is_not_null() & (pl.col("prompt_tokens") > 0))
    if told.height:
        out["prefix_hit_share"] = int(told["cached_tokens"].sum()) / int(told["prompt_tokens"].sum())
    else:
        reasons["prefix_hit_share"] = "the server reports no cached_tokens" if ok.height else "no request succeeded"
    waited = queue_figures(rows)
    out["queue_ms"] = waited["queue_ms"]
    out["intervals"] = intervals | waited["intervals"]
    out["reasons"] = reasons | waited["reasons"]
    return out


def queue_figures(records: pl.DataFrame, unknown: str = "the server does not report it") -> dict[str, Any]:
    """``queue_ms`` of the measured requests whose wait the server told, with its ``intervals`` and ``reasons``.

    Args:
        unknown: why there is none, where no request has one.
    """
    rows = measured(records).filter(pl.col("queued_s").is_not_null())
    values = [1000 * v for v in rows["queued_s"]]
    sample = Sample(values, rows.height, 0.0, [])
    out: dict[str, Any] = {"queue_ms": {}, "intervals": {}, "reasons": {}}
    for name, q in QUANTILES.items():
        value, why = quantile(values, q) if values else (None, unknown)
        out["queue_ms"][name] = value
        if value is None:
            out["reasons"][f"queue_ms.{name}"] = str(why)
        else:
            out["intervals"][f"queue_ms.{name}"] = _interval(sample, "queue", q, value)
    return out


def _rates(
    records: pl.DataFrame, windows: dict[str, tuple[float, float]], own_s: Mapping[str, float]
) -> dict[str, float]:
    length = sum(own_s.get(stage, b - a) for stage, (a, b) in windows.items())
    tokens = prompts = ended = 0
    for stage, (from_s, to_s) in windows.items():
        mine = records.filter(pl.col("stage") == stage)
        times = mine["token_times_s"].explode().drop_nulls()
        tokens += int(times.is_between(from_s, to_s, closed="left").sum())
        started = mine.filter(pl.col("first_token_s").is_between(from_s, to_s, closed="left"))
        prompts += int(started["prompt_tokens"].sum() or 0)
        ended += mine.filter(
            (pl.col("status") == "ok") & pl.col("end_s").is_between(from_s, to_s, closed="left")
        ).height
    return {
        "output_tokens_per_s": tokens / length,
        "prompt_tokens_per_s": prompts / length,
        "requests_per_s": ended / length,
    }


def _mean(values: pl.Series) -> float | None:
    return float(values.mean()) if values.drop_nulls().len() else None  # type: ignore[arg-type]


def _goodput(rows: pl.DataFrame, limits: dict[str, float] | None) -> float | None:
    """Share of all requests, failures included, that kept both limits."""
    if limits is None or not rows.height:
        return None
    return float(kept(rows, limits).mean())  # type: ignore[arg-type]


def kept(rows: pl.DataFrame, limits: dict[str, float]) -> pl.Series:
    """Whether each request ended well (or was left by its user after it had begun) within both limits."""
    good = []
    for due, times, status in rows.select("due_s", "token_times_s", "status").iter_rows():
        soon = bool(times) and (times[0] - due) * 1000 <= limits["ttft_ms"]
        good.append(status in ("ok", "abandoned") and soon and (tpot_ms(times) or 0.0) <= limits["tpot_ms"])
    return pl.Series("good", good, dtype=pl.Boolean)


def series(records: pl.DataFrame, stage: str, window_s: float | None = None) -> pl.DataFrame:
    """A stage over time, warm-up included, in windows of ``window_s`` since its first due request.

    Without ``window_s`` the shortest of :data:`WINDOWS_S` whose median window holds enough requests for a P95.

    Columns: ``t_s`` (middle of the window, on the run's clock), ``phase``, ``requests`` and ``failed`` (due in it),
    ``ttft_p50_ms``, ``ttft_p95_ms``, ``ttft_max_ms``, ``itl_p95_ms`` (null where there are too few samples or the
    quantile falls on a failure), ``output_tokens_per_s``, ``running`` (mean number of requests in flight).
    """
    rows = records.filter(pl.col("stage") == stage).sort("due_s")
    schema = {
        "t_s": pl.Float64, "phase": pl.String, "requests": pl.Int64, "failed": pl.Int64, "ttft_p50_ms": pl.Float64,
        "ttft_p95_ms": pl.Float64, "ttft_p99_ms": pl.Float64, "ttft_max_ms": pl.Float64, "itl_p50_ms": pl.Float64,
        "itl_p95_ms": pl.Float64, "itl_p99_ms": pl.Float64, "output_tokens_per_s": pl.Float64, "running": pl.Float64,
    }  # fmt: skip
    if not rows.height:
        return pl.DataFrame(schema=schema)
    first = float(rows["due_s"][0])
    if window_s is None:
        window_s = _window(rows["due_s"].to_list())
    last = max(float(rows["due_s"][-1]), *(float(v or first) for v in (rows["end_s"].max(),)))  # type: ignore[arg-type]
    count = int((last - first) // window_s) + 1
    size = window_s

    def at(t: float) -> int:
        return min(max(int((t - first) // size), 0), count - 1)

    ttft: list[list[float]] = [[] for _ in range(count)]
    itl: list[list[float]] = [[] for _ in range(count)]
    tokens, failed, busy = [0] * count, [0] * count, [0.0] * count
    phases: list[set[str]] = [set() for _ in range(count)]
    columns = ("due_s", "sent_s", "end_s", "token_times_s", "status", "phase")
    for due, sent, end, times, status, phase in rows.select(columns).iter_rows():
        ok = status in ("ok", "abandoned") and bool(times)
        ttft[at(due)].append((times[0] - due) * 1000 if ok else math.inf)
        failed[at(due)] += not ok
        phases[at(due)].add(phase)
        for t in times or []:
            tokens[at(t)] += 1
        for a, b in pairwise(times or []):
            itl[at(b)].append((b - a) * 1000)
        if sent is not None and end is not None:
            for w in range(at(sent), at(end) + 1):
                low = first + w * window_s
                busy[w] += max(min(end, low + window_s) - max(sent, low), 0.0) / window_s
    known = "measured"
    out = []
    for w in range(count):
        known = "measured" if "measured" in phases[w] else next(iter(phases[w]), known)
        finite = [v for v in ttft[w] if not math.isinf(v)]
        out.append(
            (
                first + (w + 0.5) * window_s, known, len(ttft[w]), failed[w], quantile(ttft[w], 0.5)[0],
                quantile(ttft[w], 0.95)[0], quantile(ttft[w], 0.99)[0], max(finite, default=None),
                *(quantile(itl[w], q)[0] for q in QUANTILES.values()), tokens[w] / window_s, busy[w],
            )
        )  # fmt: skip
    return pl.DataFrame(out, schema=schema, orient="row")


def _window(due_s: list[float]) -> float:
    for window_s in WINDOWS_S:
        counts: dict[int, int] = {}
        for t in due_s:
            counts[int((t - due_s[0]) // window_s)] = counts.get(int((t - due_s[0]) // window_s), 0) + 1
        if sorted(counts.values())[len(counts) // 2] >= min_samples(0.95):
            return window_s
    return WINDOWS_S[-1]
