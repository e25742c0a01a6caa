"""Absolute limits on the tail of TTFT and ITL, and on the share of requests that failed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import polars as pl

from loadtests.quantiles import min_samples, nearest_rank
from pipeline.gate.context import Context, result
from pipeline.gate.policy import ErrorRate, LatencyLimit
from pipeline.gate.result import RuleResult
from pipeline.gate.statistics import (
    cluster_design_effect,
    judge_share,
    needed_for_pass,
    quantile_interval,
    serial_design_effect,
    share_interval,
)
from pipeline.load.summary import measured

NAMES = {"ttft": "time to first token", "itl": "inter-token latency"}


@dataclass(frozen=True)
class Sample:
    """Latencies of one stage in ms (failures +inf) and how many independent ones they are worth at a limit."""

    values: list[float]
    requests: int
    span_s: float
    clusters: list[tuple[str, int]]  # of each value: its request, and the second in which it ended

    def effective(self, metric: str, limit: float) -> float:
        """TTFT: samples in time order. ITL: gaps of one request, and gaps in one second (a step serves the whole
        batch), are correlated; the stronger of the two clusterings counts.
        """
        if metric == "ttft":
            return len(self.values) / serial_design_effect(self.values, limit)
        by_request = cluster_design_effect(self.values, [c[0] for c in self.clusters], limit)
        by_second = cluster_design_effect(self.values, [c[1] for c in self.clusters], limit)
        return len(self.values) / max(by_request, by_second)


def sample(records: pl.DataFrame, stage: str, metric: str) -> Sample:
    """The measured requests of a stage, in order of due time."""
    rows = measured(records, stage)
    values: list[float] = []
    clusters: list[tuple[str, int]] = []
    columns = ("request_id", "due_s", "end_s", "token_times_s", "status")
    for request, due, end, times, status in rows.select(columns).iter_rows():
        ok = status == "ok" and bool(times)
        if metric == "ttft":
            values.append((times[0] - due) * 1000 if ok else math.inf)
            clusters.append((request, int(due)))
            continue
        for a, b in pairwise(times or []):
            values.append((b - a) * 1000)
            clusters.append((request, int(b)))
        if not ok:
            values.append(math.inf)
            clusters.append((request, int(end if end is not None else due)))
    due_s = rows["due_s"]
    span = float(due_s[-1] - due_s[0]) if rows.height > 1 else 0.0
    return Sample(values, rows.height, span, clusters)


def latency_limit(rule: LatencyLimit, context: Context) -> list[RuleResult]:
    """One result a stage: the binomial rule on the share of samples over the limit, at the effective sample size."""
    return [_one_stage(rule, context, stage, limit) for stage, limit in rule.limits_ms.items()]


def _one_stage(rule: LatencyLimit, context: Context, stage: str, limit: float) -> RuleResult:
    q, confidence = rule.quantile, context.confidence(rule)
    title = f"P{q * 100:g} {NAMES[rule.metric]}, {stage}"
    records = context.run.records
    if records is None or context.run.missing("load/records"):
        why = context.run.missing("load/records") or "no records"
        return result(rule, "latency", title, "undecided", f"not measured: {why}", stage=stage, limit=limit, unit="ms")
    s = sample(records, stage, rule.metric)
    n = len(s.values)
    if n == 0:
        detail = f"not measured: the load test has no measured requests in stage {stage}"
        return result(rule, "latency", title, "undecided", detail, stage=stage, limit=limit, unit="ms", n=0)
    over = sum(v > limit for v in s.values)
    effective = s.effective(rule.metric, limit)
    k = over * effective / n
    outcome = judge_share(k, effective, 1 - q, confidence)
    low, high = share_interval(k, effective, confidence)
    enough = n >= min_samples(q)
    interval = quantile_interval(s.values, q, confidence)
    detail = (
        f"{over} of {n} {'requests' if rule.metric == 'ttft' else 'gaps'} over {limit:g} ms; they are worth "
        f"{effective:.0f} independent ones, so the share over the limit lies between {low:.2%} and {high:.2%} "
        f"(a P{q * 100:g} allows {1 - q:.0%})"
    )
    return result(
        rule,
        "latency",
        title,
        outcome,
        detail,
        value=nearest_rank(sorted(s.values), q) if enough else None,
        unit="ms",
        limit=limit,
        interval=list(interval) if interval else None,
        confidence=confidence,
        n=n,
        n_effective=effective,
        stage=stage,
        would_decide=_more(s, k, effective, q, confidence) if outcome == "undecided" else None,
    )


def _more(s: Sample, k: float, effective: float, q: float, confidence: float) -> str:
    needed = needed_for_pass(k, effective, 1 - q, confidence)
    if needed is None:
        return "more of the same would not pass it: the share over the limit is not below what the limit allows"
    factor = needed / effective
    minutes = s.span_s * factor / 60
    return (
        f"about {math.ceil(s.requests * (factor - 1))} more requests of this kind, so a stage of "
        f"{minutes:.1f} minutes instead of {s.span_s / 60:.1f}"
    )


def error_rate(rule: ErrorRate, context: Context) -> list[RuleResult]:
    """Failed, refused, timed-out and never-ended requests over all measured ones."""
    title, confidence = "requests that failed", context.confidence(rule)
    records = context.run.records
    if records is None:
        why = context.run.missing("load/records") or "no records"
        return [result(rule, "errors", title, "undecided", f"not measured: {why}", limit=rule.limit * 100, unit="%")]
    rows = measured(records)
    n = rows.height
    failed = rows.filter(pl.col("status") != "ok")
    k = failed.height
    outcome = judge_share(k, n, rule.limit, confidence) if n else "undecided"
    low, high = share_interval(k, n, confidence)
    kinds = ", ".join(f"{c} {s}" for s, c in sorted(failed.group_by("status").len().iter_rows()))
    needed = needed_for_pass(k, n, rule.limit, confidence)
    return [
        result(
            rule,
            "errors",
            title,
            outcome,
            f"{k} of {n} requests failed{f' ({kinds})' if kinds else ''}",
            value=k / n * 100 if n else None,
            unit="%",
            limit=rule.limit * 100,
            interval=[low * 100, high * 100],
            confidence=confidence,
            n=n,
            would_decide=(
                (f"{needed - n} more requests" if needed else "fewer failures: their share is not below the limit")
                if outcome == "undecided"
                else None
            ),
        )
    ]
