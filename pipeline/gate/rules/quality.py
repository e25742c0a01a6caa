"""Quality against the reference tier: the same items, paired; each pinned case by itself; the length of answers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy import stats

from pipeline.gate.context import Context, result
from pipeline.gate.policy import AnswerLength, Pinned, QualityBaseline, QualityDelta
from pipeline.gate.result import Outcome, RuleResult
from pipeline.gate.statistics import detectable_delta, paired_delta

SHOWN = 5


def interval_outcome(low: float, high: float, worst: float) -> Outcome:
    """Non-inferiority where more is better: all of the interval above ``worst`` passes, all below fails."""
    if low >= worst:
        return "pass"
    return "fail" if high < worst else "undecided"


def _pairs(context: Context) -> tuple[list[tuple[dict[str, Any], dict[str, Any]]], str | None]:
    """(candidate, reference) rows of the same items; or why there are none."""
    mine, theirs = context.run, context.reference
    for run in (mine, theirs):
        if run.items is None or run.evaluation is None:
            return [], f"{run.tier} was not evaluated: {run.missing('eval') or 'no results'}"
    a, b = mine.header("evaluation"), theirs.header("evaluation")
    if a is None or b is None:
        return [], "provenance is incomplete, so it is not known which items were asked"
    if a.workload.digest != b.workload.digest:
        return [], f"{mine.tier} was asked {a.workload.name} and {theirs.tier} {b.workload.name}: not the same items"
    ours = {i["id"]: i for i in mine.items or []}
    others = {i["id"]: i for i in theirs.items or []}
    if ours.keys() != others.keys():
        odd = sorted(ours.keys() ^ others.keys())
        return [], f"{len(odd)} items were asked of one tier only, for instance {odd[0]}"
    if not ours:
        return [], "no items"
    return [(ours[k], others[k]) for k in ours], None


def delta_result(
    rule: QualityDelta | QualityBaseline,
    context: Context,
    pairs: list[tuple[dict[str, Any], float]],
    against: str,
    group: Any,
) -> RuleResult:
    """The paired rule on (candidate row, reference score) pairs."""
    confidence = context.confidence(rule)
    margin = rule.margin_points
    p = paired_delta(
        [float(row["score"]) for row, _ in pairs],
        [score for _, score in pairs],
        [row["scenario"] for row, _ in pairs],
        [row["source"] for row, _ in pairs],
        confidence,
    )
    outcome = interval_outcome(p.low * 100, p.high * 100, -margin)
    flips = (p.lost + p.gained) / p.n
    half = (p.high - p.delta) * 100
    needed = None
    if outcome == "undecided":
        room = p.delta * 100 + margin
        needed = (
            f"about {math.ceil(p.n * ((half / room) ** 2 - 1))} more items like these"
            if room > 0
            else "more of the same would not pass it: the measured loss is beyond the margin"
        )
    detail = (
        f"{p.lost} items lost and {p.gained} gained of {p.n} (McNemar p = {p.mcnemar_p:.2g}); {p.clusters} independent "
        f"sources. At this rate of flips ({flips:.0%}) the set sees a loss of "
        f"{detectable_delta(p.n, max(flips, 1 / p.n), confidence) * 100:.1f} points with 80 % power"
    )
    return result(
        rule,
        group,
        f"accuracy against {against}",
        outcome,
        detail,
        value=p.delta * 100,
        unit="points",
        better="higher",
        limit=-margin,
        interval=[p.low * 100, p.high * 100],
        confidence=confidence,
        n=p.n,
        n_effective=float(p.clusters),
        would_decide=needed,
    )


def quality_delta(rule: QualityDelta, context: Context) -> list[RuleResult]:
    title = f"accuracy against {context.reference.tier}"
    if context.is_reference:
        detail = "this tier is the reference"
        return [result(rule, "quality", title, "not_applicable", detail, unit="points", limit=-rule.margin_points)]
    pairs, why = _pairs(context)
    if why:
        return [result(rule, "quality", title, "undecided", why, unit="points", limit=-rule.margin_points)]
    scored = [(a, float(b["score"])) for a, b in pairs]
    return [delta_result(rule, context, scored, context.reference.tier, "quality")]


def pinned(rule: Pinned, context: Context) -> list[RuleResult]:
    """A pinned case that the reference or the baseline passes and this tier does not blocks by itself."""
    title = "pinned cases"
    if context.run.items is None:
        why = context.run.missing("eval") or "no results"
        return [result(rule, "quality", title, "undecided", f"not measured: {why}", unit="cases")]
    mine = {i["id"]: i for i in context.run.items if i["origin"] == "pinned"}
    if not mine:
        return [result(rule, "quality", title, "undecided", "the regression set has no pinned case", unit="cases", n=0)]
    passed: dict[str, str] = {}
    if not context.is_reference:
        if context.reference.items is None:
            why = f"{context.reference.tier} was not evaluated"
            return [result(rule, "quality", title, "undecided", why, unit="cases", n=len(mine))]
        passed |= {i["id"]: context.reference.tier for i in context.reference.items if i["correct"]}
    if context.baseline:
        passed |= {key: context.baseline.name for key, score in context.baseline.scores.items() if score >= 1}
    elif context.is_reference:
        detail = "this tier is the reference, and there is no baseline yet"
        return [result(rule, "quality", title, "not_applicable", detail, unit="cases", n=len(mine))]
    lost = [k for k, i in mine.items() if k in passed and not i["correct"]]
    kept = sum(k in passed for k in mine) - len(lost)
    names = ", ".join(f"{k} (passes in {passed[k]})" for k in lost[:SHOWN])
    detail = f"{kept} of {kept + len(lost)} that passed before still pass" + (f"; lost: {names}" if lost else "")
    return [
        result(
            rule, "quality", title, "fail" if lost else "pass", detail, value=float(len(lost)), unit="cases", limit=0.0,
            n=len(mine),
        )
    ]  # fmt: skip


def answer_length(rule: AnswerLength, context: Context) -> list[RuleResult]:
    """Mean length of generated answers relative to the reference's, with a t-interval on the paired differences."""
    title = f"length of answers against {context.reference.tier}"
    band, confidence = rule.band_percent, context.confidence(rule)
    if context.is_reference:
        return [result(rule, "quality", title, "not_applicable", "this tier is the reference", unit="%", limit=band)]
    pairs, why = _pairs(context)
    both = [(a["output_tokens"], b["output_tokens"]) for a, b in pairs if a["kind"] != "choice"]
    lengths = np.asarray([p for p in both if None not in p], dtype=np.float64)
    if why or len(lengths) < 2 or lengths[:, 1].sum() == 0:
        detail = why or f"{len(lengths)} generated answers; at least 2 needed"
        return [result(rule, "quality", title, "undecided", detail, unit="%", limit=band)]
    difference, mean = lengths[:, 0] - lengths[:, 1], float(lengths[:, 1].mean())
    n = len(difference)
    half = float(stats.t.ppf(confidence, n - 1)) * float(difference.std(ddof=1)) / math.sqrt(n) / mean * 100
    value = float(difference.mean()) / mean * 100
    low, high = value - half, value + half
    inside, outside = -band <= low and high <= band, high < -band or low > band
    outcome: Outcome = "pass" if inside else "fail" if outside else "undecided"
    cut = [sum(r["finish_reason"] == "length" for r in (pair[side] for pair in pairs)) for side in (0, 1)]
    detail = (
        f"answers have {lengths[:, 0].mean():.1f} tokens against {mean:.1f}; {cut[0]} are cut off at their limit "
        f"against {cut[1]}"
    )
    return [
        result(
            rule, "quality", title, outcome, detail, value=value, unit="%", limit=band, interval=[low, high],
            confidence=confidence, n=n,
            would_decide="more items: the interval is wider than the band" if outcome == "undecided" else None,
        )
    ]  # fmt: skip
