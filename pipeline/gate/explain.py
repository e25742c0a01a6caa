"""What a policy asks and what it can detect: whether its margins are honest at the sample sizes at hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from pipeline.errors import SeatrialError
from pipeline.evaluation.items import EVALSETS, load_evalset
from pipeline.gate.policy import ErrorRate, LatencyLimit, Policy, QualityBaseline, QualityDelta, Rule, Truncation
from pipeline.gate.statistics.paired import detectable_delta
from pipeline.gate.statistics.shares import judge_share
from pipeline.gate.statistics.tails import FACTORS

DISAGREEMENTS = (0.05, 0.10, 0.20)
Lines = list[str]


def needed(allowed: float, confidence: float, over: int = 0) -> int:
    """Smallest independent sample that passes with ``over`` of it over the limit."""
    return next(n for n in range(over + 1, 1_000_000) if judge_share(over, n, allowed, confidence) == "pass")


def explain(policy: Policy, evalset: str) -> str:
    """One paragraph a rule, for people; ``evalset`` is the folder whose items the margins are held against."""
    lines = [f"policy {policy.name}: {len(policy.rules)} rules, confidence {policy.confidence:.0%} one-sided", ""]
    for rule in policy.rules:
        confidence = rule.confidence or policy.confidence
        doc = " ".join((type(rule).__doc__ or "").split())
        lines.append(f"{rule.id} ({rule.kind}, {rule.severity}): {doc}")
        teller: Callable[[Any, float, str], Lines] = _TELLERS.get(type(rule), _plain)
        lines += [f"    {line}" for line in teller(rule, confidence, evalset)]
    for w in policy.waivers:
        lines.append(f"waived: {w.rule} for {w.tier} by {w.owner} until {w.expires}: {w.reason}")
    return "\n".join(lines)


def _plain(rule: Rule, confidence: float, evalset: str) -> Lines:
    shown = rule.model_dump(exclude={"id", "kind", "severity", "confidence"}, exclude_none=True)
    return [", ".join(f"{k} {v}" for k, v in shown.items())] if shown else []


def _latency(rule: LatencyLimit, confidence: float, evalset: str) -> Lines:
    limits = ", ".join(f"{stage} {limit:g} ms" for stage, limit in rule.limits_ms.items())
    lines = [limits, _sizes(1 - rule.quantile, confidence, "independent samples", "over the limit")]
    for h in (f for f in FACTORS if 1 < f <= rule.headroom and f * (1 - rule.quantile) < 0.5):
        lines.append(f"or from {needed(h * (1 - rule.quantile), confidence)} with none over 1/{h} of the limit")
    return lines


def _share(rule: ErrorRate | Truncation, confidence: float, evalset: str) -> Lines:
    return [f"limit {rule.limit:.2%}: {_sizes(rule.limit, confidence, 'requests', 'of the kind')}"]


def _sizes(allowed: float, confidence: float, what: str, over: str) -> str:
    none, one, two = (needed(allowed, confidence, k) for k in (0, 1, 2))
    return f"passes from {none} {what} with none {over}, {one} with one, {two} with two"


def _margin(rule: QualityDelta | QualityBaseline, confidence: float, evalset: str) -> Lines:
    try:
        items = load_evalset(EVALSETS / evalset).items
    except SeatrialError as e:
        return [f"margin {rule.margin_points:g} points; what it can detect is unknown: {e}"]
    n, sources = len(items), len({(i.scenario, i.source) for i in items})
    lines = [f"margin {rule.margin_points:g} points, on {n} items from {sources} independent sources"]
    for flips in DISAGREEMENTS:
        best, worst = (100 * detectable_delta(m, flips, confidence) for m in (n, sources))
        says = "can" if worst <= rule.margin_points else "may be too few to" if best <= rule.margin_points else "cannot"
        half = 100 * math.sqrt(flips / n) * detectable_delta(1, 1, confidence, 0.5)
        lines.append(
            f"at {flips:.0%} of items flipped: half width {half:.1f} points at least; an equal build passes in 4 of 5 "
            f"runs from a margin of {best:.1f} (independent items) to {worst:.1f} (items of a source flip together): "
            f"{says} decide"
        )
    return lines


_TELLERS: dict[type, Callable[[Any, float, str], Lines]] = {
    LatencyLimit: _latency,
    ErrorRate: _share,
    Truncation: _share,
    QualityDelta: _margin,
    QualityBaseline: _margin,
}
