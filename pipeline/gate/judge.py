"""From the rules of one tier to its verdict, and from the candidate's verdict to the run's."""

from __future__ import annotations

from datetime import date
from typing import Any

from pipeline.gate.context import Context
from pipeline.gate.model import Settle, TierVerdict, WaiverNow, WhatChanged, Word
from pipeline.gate.policy import Policy
from pipeline.gate.result import RuleResult
from pipeline.gate.rules import JUDGES
from pipeline.gate.statistics.several import holm
from pipeline.provenance import FOUR, differing

WORDS = {"ship": "may ship", "hold": "is held", "undecided": "is undecided"}


def judge_tier(context: Context, today: date) -> TierVerdict:
    """All rules of the policy for one tier.

    Any blocking failure holds; else any blocking doubt leaves it undecided; else it may ship. A valid waiver lets a
    rule's results through; an expired one is said in the result and counts for nothing.
    """
    results = [r for rule in context.policy.rules for r in JUDGES[rule.kind](rule, context)]
    results = [_waived(r, context, today) for r in _corrected(results, context.policy.confidence)]
    counted = [r for r in results if r.severity == "blocking" and not _lets_through(r)]
    failing = [r for r in counted if r.outcome == "fail"]
    doubtful = [r for r in counted if r.outcome == "undecided"]
    passing = [r for r in results if r.severity == "blocking" and r.outcome == "pass"]
    verdict: Word
    if failing:
        verdict, deciding = "hold", failing
    elif doubtful or not passing:  # no evidence is never a pass
        verdict, deciding = "undecided", doubtful
    else:
        verdict, deciding = "ship", []
    first = [r.id for r in deciding]
    return TierVerdict(
        verdict=verdict,
        reason=_reason(context, verdict, deciding, results),
        deciding=first,
        rules=sorted(results, key=lambda r: r.id not in first),
    )


def what_would_settle(judged: TierVerdict, budget_minutes: float | None) -> list[Settle]:
    """For each rule that leaves the verdict undecided, in the order in which they decide."""
    if judged.verdict != "undecided":
        return []
    out = []
    for r in judged.rules:
        if r.id in judged.deciding:
            minutes = r.minutes_needed
            within = None if minutes is None or budget_minutes is None else minutes <= budget_minutes
            what = r.would_decide or "the measurement that is missing"
            out.append(Settle(rule=r.id, what=what, minutes=minutes, within_budget=within))
    return out


def _corrected(results: list[RuleResult], confidence: float) -> list[RuleResult]:
    """Holm's correction of the holds: of many blocking tests one fails by chance sooner or later. A fail that does
    not stand among all that were looked at is undecided. (Ship needs every rule to pass, so it needs no correction.)
    """
    tests = {r.id: r for r in results if r.severity == "blocking" and r.p_value is not None}
    alphas = {k: 1 - (r.confidence or confidence) for k, r in tests.items()}
    stand = holm({k: r.p_value or 0.0 for k, r in tests.items()}, alphas)
    out = []
    for r in results:
        if r.outcome == "fail" and r.id in tests and r.id not in stand:
            detail = (
                f"{r.detail}; by itself it fails, but of {len(tests)} tests looked at one may by chance "
                f"(p = {r.p_value:.2g}, Holm)"
            )
            would = "a longer run, or another one: a true fault shows again"
            r = r.model_copy(update={"outcome": "undecided", "detail": detail, "would_decide": would})
        out.append(r)
    return out


def _waived(r: RuleResult, context: Context, today: date) -> RuleResult:
    """With the waiver that covers it, if any: of several the one that lasts longest. An expired one is only said."""
    covering = [w for w in context.policy.waivers if w.covers(r.id, context.run.tier)]
    if not covering or r.outcome not in {"fail", "undecided"}:
        return r
    waiver = max(covering, key=lambda w: w.expires)
    expired = waiver.expires < today
    detail = f"{r.detail}; its waiver expired on {waiver.expires}" if expired else r.detail
    return r.model_copy(update={"waiver": {**waiver.model_dump(mode="json"), "expired": expired}, "detail": detail})


def _lets_through(r: RuleResult) -> bool:
    return r.waiver is not None and not r.waiver["expired"]


def _reason(context: Context, verdict: str, deciding: list[RuleResult], results: list[RuleResult]) -> str:
    tier = context.run.tier
    if deciding:
        first, more = deciding[0], ""
        if len(deciding) > 1:
            how = {"hold": "fail", "undecided": "are undecided"}[verdict]
            how = how if len(deciding) > 2 else {"fail": "fails", "are undecided": "is undecided"}[how]
            more = f" ({', '.join(r.id for r in deciding[1:])} {how} too)"
        return f"{tier} {WORDS[verdict]}: {first.title}{_figure(first)}: {first.detail}{more}."
    if verdict == "undecided":
        return f"{tier} is undecided: no blocking rule could be judged."
    waived = [r for r in results if _lets_through(r)]
    blocking = sum(r.severity == "blocking" and r.outcome == "pass" for r in results)
    advisory = [r for r in results if r.severity == "advisory" and r.outcome in {"fail", "undecided"}]
    text = f"{tier} may ship: {blocking} blocking rules pass"
    if waived:
        text += f", {len(waived)} waived ({', '.join(sorted({r.id for r in waived}))})"
    delta = next((r for r in results if r.unit == "points" and r.group == "quality" and r.value is not None), None)
    if delta is not None:
        text += f"; accuracy differs by {delta.value:+.1f} points from {context.reference.tier}"
    if advisory:
        failed = sum(r.outcome == "fail" for r in advisory)
        text += f"; of the advisory rules {failed} fail and {len(advisory) - failed} are undecided"
    return text + "."


def _figure(r: RuleResult) -> str:
    """ " is 4512 ms, limit 3000 ms"; nothing where the value is a mere count, which the detail says better."""
    if r.value is None or r.unit not in {"ms", "points", "%"}:
        return ""
    limit = "" if r.limit is None else f", limit {r.limit:g} {r.unit}"
    value = f"{r.value:.0f}" if abs(r.value) >= 100 else f"{r.value:.3g}"
    return f" is {value} {r.unit}{limit}"


def what_changed(context: Context) -> WhatChanged | None:
    """The four identities of this tier beside those of the reference and the baseline."""
    mine = context.run.header("evaluation")
    load = context.run.header("load")
    if mine is None:
        return None
    against: dict[str, Any] = {}
    changed: dict[str, list[Any]] = {}
    other = None if context.is_reference else context.reference.header("evaluation")
    base = None if context.baseline is None else context.baseline.evaluation
    for name, header in ((context.reference.tier, other), ("baseline", base)):
        if header is None:
            continue
        changed[name] = differing(mine, header)
        against[name] = {
            part: {
                "now": getattr(mine, part).model_dump(),
                "then": getattr(header, part).model_dump(),
                "differs": part in changed[name],
            }
            for part in FOUR
        }
    return WhatChanged(
        identities=mine.model_dump(),
        workload=load.workload.model_dump() if load else None,
        against=against,
        changed=changed,
        confounded=[name for name, parts in changed.items() if len(parts) > 1],
    )


def waivers_now(policy: Policy, today: date) -> list[WaiverNow]:
    return [WaiverNow(**w.model_dump(mode="json"), expired=w.expires < today) for w in policy.waivers]
