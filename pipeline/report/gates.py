"""The gates table: each rule beside the figure of the baseline, the difference, and the course of its figure over the
stage.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from markupsafe import Markup, escape

from pipeline.provenance import Header
from pipeline.release.record import Release
from pipeline.report import numbers as say
from pipeline.report.inputs import Json, RunData
from pipeline.report.latency import StageSeries
from pipeline.report.records import Record, record_of
from pipeline.report.summary import Rule, header_of, rules_of

SPARK_WIDTH, SPARK_HEIGHT = 84, 20
QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


@dataclass(frozen=True)
class GateRow:
    """``then``: the figure it is held beside, of ``whose``; ``delta``: this run's minus it (latency: in percent)."""

    rule: Rule
    then: str
    whose: str
    delta: str
    why_none: str  # why there is no figure to hold it beside
    spark: Markup | None
    record: Record | None
    term: str  # key in the glossary


def latency_figure(raw: Json) -> tuple[str, str] | None:
    """("ttft" | "itl", "p50" | "p95" | "p99") of a rule on a percentile, from its id and title; None of another."""
    text = f"{raw.get('id')} {raw.get('title')}".lower()
    ttft, itl = ("ttft" in text or "first token" in text), re.search(r"\bitl|inter-token", text)
    metric = "ttft" if ttft else "itl" if itl else ""
    quantile = next((q for q in QUANTILES if q in text), "")
    return (metric, quantile) if metric and quantile else None


def gate_rows(run: RunData, tier: str, series: dict[tuple[str, str], StageSeries]) -> list[GateRow]:
    """The rules of a tier, most serious first."""
    return [_row(run, tier, rule, series) for rule in rules_of(run, tier)]


def _row(run: RunData, tier: str, rule: Rule, series: dict[tuple[str, str], StageSeries]) -> GateRow:
    raw, figure = rule.raw, latency_figure(rule.raw)
    stage, group = raw.get("stage"), str(raw.get("group") or "")
    if group == "latency" and figure and stage:
        metric, quantile = figure
        then, whose, why = _latency_then(run, tier, str(stage), f"{metric}_ms", quantile)
        value = raw.get("value")
        delta = ""
        if then is not None and say.is_number(value) and then > 0:
            delta = f"{100 * (float(value or 0) / then - 1):+.1f} %".replace("-", "−")
        s = series.get((tier, str(stage)))
        spark = None if s is None else sparkline(s, metric)
        told = "" if then is None else f"{say.milliseconds(then)} ms"
        return GateRow(rule, told, whose, delta, why, spark, record_of(run, tier, "load"), metric)
    if raw.get("unit") == "points" and "accuracy" in f"{raw.get('id')} {raw.get('title')}".lower():
        share, whose = _accuracy_then(run, tier, group == "baseline")
        value = raw.get("value")
        delta = f"{value:+.1f} points".replace("-", "−") if say.is_number(value) else ""
        return GateRow(
            rule,
            "" if share is None else say.share(share),
            whose,
            delta,
            "" if share is not None else "nothing to compare with",
            None,
            record_of(run, tier, "items"),
            "accuracy",
        )
    part = {"quality": "items", "errors": "load", "baseline": "load", "latency": "load"}.get(group)
    where = record_of(run, tier, part) if part else record_of(run, tier, "evalset") if group == "evalset" else None
    return GateRow(rule, "", "", "", "this rule is not a comparison of a figure with the baseline's", None, where, "")


def _latency_then(run: RunData, tier: str, stage: str, metric: str, q: str) -> tuple[float | None, str, str]:
    """(figure in ms, whose, why there is none): of the release in service where it is comparable, else of the
    reference tier of this run.
    """
    release, why = run.release, "there is no baseline yet, and this is the reference"
    mine = header_of(run.tiers.get(tier), "load")
    if release is not None and mine is not None:
        if apart := not_comparable(release, mine):
            why = apart
        else:
            found = ((release.latency.get(stage) or {}).get(metric) or {}).get(q)
            if found is not None and say.is_number(found):
                return float(found), release.name, ""
            why = f"{release.name} has no {q.upper()} of this stage"
    if tier != run.reference and (other := run.tiers.get(run.reference)):
        block: Any = ((other.load or {}).get("stages") or {}).get(stage) or {}
        found = (block.get(metric) or {}).get(q) if isinstance(block, dict) else None
        if found is not None and say.is_number(found):
            return float(found), run.reference, ""
        why = f"{run.reference} has no {q.upper()} of this stage"
    return None, "", why


def not_comparable(release: Release, mine: Header) -> str:
    """Why the latency of a run must not be held against the release's; empty where it may."""
    if release.load.machine.machine_class != mine.machine.machine_class:
        return f"{release.name} was measured on another class of machine ({release.load.machine.machine_class})"
    if release.load.workload.digest != mine.workload.digest:
        return f"{release.name} was measured under another workload ({release.load.workload.name})"
    return ""


def _accuracy_then(run: RunData, tier: str, of_baseline: bool) -> tuple[float | None, str]:
    if of_baseline:
        scores = run.release.scores if run.release else {}
        return (fmean(scores.values()), run.release.name) if run.release and scores else (None, "")
    reference = run.tiers.get(run.reference)
    found = ((reference.eval if reference else None) or {}).get("accuracy")
    return (float(found), run.reference) if say.is_number(found) and found is not None else (None, "")


def sparkline(s: StageSeries, metric: str) -> Markup | None:
    """The figure's P95 over the stage as one small line; a gap where a step has too few samples."""
    values = s.ttft_p95_ms if metric == "ttft" else s.itl_p95_ms
    return spark([float(v) for v in values], f"{metric.upper()} P95 over {s.stage}", "ms")


def spark(values: list[float], title: str, unit: str) -> Markup | None:
    """A line of ``values`` at even steps, the last one as a dot; None with fewer than two finite ones."""
    known = [v for v in values if math.isfinite(v)]
    if len(known) < 2:
        return None
    low, high = min(known), max(known)
    span = (high - low) or 1.0
    last = max(i for i, v in enumerate(values) if math.isfinite(v))

    def at(i: int, v: float) -> tuple[float, float]:
        x = 3 + (SPARK_WIDTH - 6) * i / max(1, len(values) - 1)
        return round(x, 1), round(3 + (SPARK_HEIGHT - 6) * (high - v) / span, 1)

    parts, pen = [], "M"
    for i, v in enumerate(values):
        if not math.isfinite(v):
            pen = "M"
            continue
        x, y = at(i, v)
        parts.append(f"{pen}{x} {y}")
        pen = "L"
    x, y = at(last, values[last])
    told = f"{title}: {say.number(low)} to {say.number(high)} {unit}, {say.number(values[last])} at the end"
    return Markup(
        f'<svg class="spark" role="img" viewBox="0 0 {SPARK_WIDTH} {SPARK_HEIGHT}"><title>{escape(told)}</title>'
        f'<path d="{"".join(parts)}"/><circle cx="{x}" cy="{y}" r="2.2"/></svg>'
    )
