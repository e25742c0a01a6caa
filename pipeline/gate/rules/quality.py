"""Quality against the reference tier: the same items, paired; each pinned case by itself; the length of answers."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from loadtests.quantiles import nearest_rank
from pipeline.gate.context import Context, result
from pipeline.gate.policy import AnswerLength, CutOff, Divergence, Pinned, QualityBaseline, QualityDelta
from pipeline.gate.result import Group, Outcome, RuleResult
from pipeline.gate.statistics.divergence import choice_divergence
from pipeline.gate.statistics.effective import cluster_design_effect
from pipeline.gate.statistics.lengths import judge_band, length_ratio
from pipeline.gate.statistics.paired import detectable_delta, paired_delta
from pipeline.gate.statistics.tails import judge_tail

SHOWN = 5


def interval_outcome(low: float, high: float, worst: float) -> Outcome:
    """Non-inferiority where more is better: all of the interval above ``worst`` passes, all below fails."""
    if low >= worst:
        return "pass"
    return "fail" if high < worst else "undecided"


def not_measurable(rows: list[dict[str, Any]]) -> str:
    """What of the rows a server could not be asked, by the capability that it lacks, as the end of a sentence."""
    lacking = Counter(str(r["lacks"]) for r in rows if r.get("lacks"))
    return "".join(f"; {n} items are not measurable here: {name}" for name, n in sorted(lacking.items()))


def _skipped(context: Context) -> str:
    return not_measurable([*(context.run.items or []), *(context.reference.items or [])])


def _pairs(context: Context) -> tuple[list[tuple[dict[str, Any], dict[str, Any]]], str | None]:
    """(candidate, reference) rows of the same items; or why there are none. Left out is what either server could not be
    asked for want of a capability: it is neither right nor wrong.
    """
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
    return [(ours[k], others[k]) for k in ours if not ours[k].get("lacks") and not others[k].get("lacks")], None


def delta_result(
    rule: QualityDelta | QualityBaseline | CutOff,
    context: Context,
    rows: list[dict[str, Any]],
    scores: list[tuple[float, float]],
    title: str,
    group: Group,
    what: str = "items",
    skipped: str = "",
) -> RuleResult:
    """The paired rule on the (own, other) scores of ``rows``, where more is better. ``skipped``: what is not among them
    because a server could not be asked, as :func:`not_measurable` says it.
    """
    confidence, margin = context.confidence(rule), rule.margin_points
    values: dict[str, Any] = {"unit": "points", "better": "higher", "limit": -margin, "n": len(rows)}
    asked = context.run.header("evaluation")
    if rule.evalset is not None and (asked is None or asked.workload.name != rule.evalset):
        name = "an unknown set" if asked is None else asked.workload.name
        detail = f"the margin was chosen for {rule.evalset}, and {name} was asked"
        would = f"choose the margin of rule {rule.id} for {name} and say so in its key evalset"
        return result(rule, group, title, "undecided", detail, would_decide=would, **values)
    if len(rows) < rule.min_items:
        detail = f"{len(rows)} {what}; the margin is for {rule.min_items} or more{skipped}"
        would = f"{rule.min_items - len(rows)} more {what}"
        return result(rule, group, title, "undecided", detail, would_decide=would, **values)
    p = paired_delta(
        [a for a, _ in scores], [b for _, b in scores], [r["scenario"] for r in rows], [r["source"] for r in rows],
        confidence,
    )  # fmt: skip
    outcome = interval_outcome(p.low * 100, p.high * 100, -margin)
    flips = (p.lost + p.gained) / p.n
    needed = None
    if outcome == "undecided":
        room, half = p.delta * 100 + margin, (p.delta - p.low) * 100
        needed = (
            f"about {math.ceil(p.n * ((half / room) ** 2 - 1)):,} more {what} like these"
            if room > 0
            else "more of the same would not pass it: the measured loss is beyond the margin"
        )
    seen = detectable_delta(p.n, max(flips, 1 / p.n), confidence) * 100
    detail = (
        f"{p.lost} {what} lost and {p.gained} gained of {p.n} (McNemar p = {p.mcnemar_p:.2g}), from {p.clusters} "
        f"independent sources; at this rate of flips ({flips:.0%}) so many see a loss of {seen:.1f} points with 80 % "
        f"power{skipped}"
    )
    return result(
        rule,
        group,
        title,
        outcome,
        detail,
        value=p.delta * 100,
        interval=[p.low * 100, p.high * 100],
        confidence=confidence,
        n_effective=float(p.clusters),
        p_value=p.p_worse(margin / 100),
        would_decide=needed,
        **values,
    )


def margin_of(rule: QualityDelta | QualityBaseline | CutOff) -> dict[str, Any]:
    """What is known of a rule on points before anything is measured."""
    return {"unit": "points", "better": "higher", "limit": -rule.margin_points}


def quality_delta(rule: QualityDelta, context: Context) -> list[RuleResult]:
    title, values = f"accuracy against {context.reference.tier}", margin_of(rule)
    if context.is_reference:
        return [result(rule, "quality", title, "not_applicable", "this tier is the reference", **values)]
    pairs, why = _pairs(context)
    if why:
        return [result(rule, "quality", title, "undecided", why, **values)]
    scores = [(float(a["score"]), float(b["score"])) for a, b in pairs]
    return [delta_result(rule, context, [a for a, _ in pairs], scores, title, "quality", skipped=_skipped(context))]


def cut_off(rule: CutOff, context: Context) -> list[RuleResult]:
    """Generated answers that end at their limit, not by themselves: a sign of a model that no longer stops."""
    title = f"answers cut off at their limit, against {context.reference.tier}"
    values = margin_of(rule)
    if context.is_reference:
        return [result(rule, "quality", title, "not_applicable", "this tier is the reference", **values)]
    pairs, why = _pairs(context)
    generated = [(a, b) for a, b in pairs if a["kind"] != "choice"]
    if why or not generated:
        return [result(rule, "quality", title, "undecided", why or "no generated answers", **values)]
    scores = [(float(a["finish_reason"] != "length"), float(b["finish_reason"] != "length")) for a, b in generated]
    rows = [a for a, _ in generated]
    return [delta_result(rule, context, rows, scores, title, "quality", "whole answers", _skipped(context))]


def pinned(rule: Pinned, context: Context) -> list[RuleResult]:
    """A pinned case that the reference or the baseline passes and this tier does not blocks by itself."""
    title, run, reference = "pinned cases", context.run, context.reference

    def said(outcome: Outcome, detail: str, **values: Any) -> list[RuleResult]:
        return [result(rule, "quality", title, outcome, detail, unit="cases", **values)]

    if run.items is None:
        return said("undecided", f"not measured: {run.missing('eval') or 'no results'}")
    mine = {i["id"]: i for i in run.items if i["origin"] == "pinned"}
    if context.is_reference and not context.baseline:
        return said("not_applicable", "this tier is the reference, and there is no baseline yet", n=len(mine))
    passed: dict[str, str] = {}
    known = set(mine)
    if not context.is_reference:
        if reference.items is None:
            return said("undecided", f"{reference.tier} was not evaluated", n=len(mine))
        theirs = {i["id"]: i for i in reference.items if i["origin"] == "pinned"}
        if odd := sorted(theirs.keys() - mine.keys()):
            return said("undecided", f"pinned cases that {run.tier} was not asked, for instance {odd[0]}", n=len(mine))
        passed |= {k: reference.tier for k, i in theirs.items() if i["correct"]}
    if context.baseline:
        passed |= {k: context.baseline.name for k, s in context.baseline.scores.items() if s >= 1 and k in known}
    if not mine:
        return said("undecided", "the regression set has no pinned case", n=0)
    if not passed:
        return said("not_applicable", "nothing to lose: none of the pinned cases passed before", n=len(mine))
    unasked = [mine[k] for k in passed if mine[k].get("lacks")]
    lost = [k for k in passed if not mine[k]["correct"] and not mine[k].get("lacks")]
    detail = f"{len(passed) - len(lost) - len(unasked)} of {len(passed)} that passed before still pass"
    detail += not_measurable(unasked)
    if lost:
        names = ", ".join(f"{k} (passes in {passed[k]})" for k in lost[:SHOWN])
        detail += f"; lost: {names}" + (f" and {len(lost) - SHOWN} more" if len(lost) > SHOWN else "")
    outcome: Outcome = "fail" if lost else "undecided" if unasked else "pass"
    return said(outcome, detail, value=float(len(lost)), limit=0.0, n=len(mine))


def answer_length(rule: AnswerLength, context: Context) -> list[RuleResult]:
    """Mean length of generated answers relative to the reference's, within the band on both sides."""
    title = f"length of answers against {context.reference.tier}"
    band, confidence = rule.band_percent, context.confidence(rule)
    if context.is_reference:
        return [result(rule, "quality", title, "not_applicable", "this tier is the reference", unit="%", limit=band)]
    pairs, why = _pairs(context)
    both = [(a, b) for a, b in pairs if a["kind"] != "choice" and None not in (a["output_tokens"], b["output_tokens"])]
    theirs = [float(b["output_tokens"]) for _, b in both]
    if why or len(both) < rule.min_items or not any(theirs):
        few = f"{len(both)} answers generated by both; the band is for {rule.min_items} or more"
        detail = why or few + _skipped(context)
        return [result(rule, "quality", title, "undecided", detail, unit="%", limit=band)]
    r = length_ratio(
        [float(a["output_tokens"]) for a, _ in both], theirs, [a["scenario"] for a, _ in both],
        [a["source"] for a, _ in both], confidence,
    )  # fmt: skip
    outcome = judge_band(r.low * 100, r.high * 100, band)
    detail = (
        f"generated answers have {r.candidate_mean:.1f} tokens against {r.reference_mean:.1f}, over {r.n} prompts from "
        f"{r.clusters} independent sources"
    )
    return [
        result(
            rule, "quality", title, outcome, detail, value=r.change * 100, unit="%", limit=band,
            interval=[r.low * 100, r.high * 100], confidence=confidence, n=r.n, n_effective=float(r.clusters),
            would_decide="more items: the interval is wider than the band" if outcome == "undecided" else None,
        )
    ]  # fmt: skip


def divergence(rule: Divergence, context: Context) -> list[RuleResult]:
    """The tail of the divergences over the choices, judged as the tail of a latency is; items of a source cluster."""
    title = f"P{rule.quantile * 100:g} divergence of choices from {context.reference.tier}"
    values = {"unit": "nats", "limit": rule.limit_nats}
    if context.is_reference:
        return [result(rule, "quality", title, "not_applicable", "this tier is the reference", **values)]
    pairs, why = _pairs(context)
    scored = [(a, b) for a, b in pairs if a.get("choice_logprobs") and b.get("choice_logprobs")]
    if why or not scored or len(scored) < rule.min_items:
        few = f"{len(scored)} items whose choices both scored; the limit is for {rule.min_items} or more"
        detail = why or few + _skipped(context)
        return [result(rule, "quality", title, "undecided", detail, **values)]
    try:
        found = [choice_divergence(b["choice_logprobs"], a["choice_logprobs"]) for a, b in scored]
    except ValueError as e:
        return [result(rule, "quality", title, "undecided", f"the choices cannot be compared: {e}", **values)]
    sources = [a["source"] for a, _ in scored]
    t = judge_tail(
        found, rule.limit_nats, rule.quantile, context.confidence(rule),
        lambda level: len(found) / cluster_design_effect(found, sources, level),
    )  # fmt: skip
    detail = (
        f"{t.over} of {t.n} items diverge by more than {rule.limit_nats:g} nats, worth {t.n_effective:.0f} independent "
        f"ones; a P{rule.quantile * 100:g} allows {100 * (1 - rule.quantile):.3g}%"
    )
    would = None
    if t.outcome == "undecided":
        would = "more of the same would not pass it: too many items diverge beyond the limit"
        if t.times_needed is not None:
            would = f"about {math.ceil(t.n * (t.times_needed - 1)):,} more choice items like these"
    return [
        result(
            rule, "quality", title, t.outcome, detail, value=nearest_rank(sorted(found), rule.quantile),
            interval=list(t.interval), confidence=context.confidence(rule), n=t.n, n_effective=t.n_effective,
            p_value=t.p_value, would_decide=would, **values,
        )
    ]  # fmt: skip
