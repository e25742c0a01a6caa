"""From the rules of one tier to its verdict, and from the candidate's verdict to the run's."""

from __future__ import annotations

from datetime import date
from typing import Any

from pipeline.gate.context import Context
from pipeline.gate.policy import Policy, Waiver
from pipeline.gate.result import RuleResult
from pipeline.gate.rules import JUDGES

WORDS = {"ship": "may ship", "hold": "is held", "undecided": "is undecided"}


def judge_tier(context: Context, today: date) -> dict[str, Any]:
    """All rules of the policy for one tier: ``{"verdict", "reason", "rules"}``.

    Any blocking failure holds; else any blocking doubt leaves it undecided; else it may ship. A valid waiver lets a
    rule's results through; an expired one is said in the result and counts for nothing.
    """
    results: list[RuleResult] = []
    for rule in context.policy.rules:
        judged = JUDGES[rule.kind](rule, context)
        waiver = next((w for w in context.policy.waivers if w.rule == rule.id and w.tier == context.run.tier), None)
        results += [_waived(r, waiver, today) if waiver else r for r in judged]
    counted = [r for r in results if r.severity == "blocking" and not _lets_through(r)]
    failing = [r for r in counted if r.outcome == "fail"]
    doubtful = [r for r in counted if r.outcome == "undecided"]
    passing = [r for r in results if r.severity == "blocking" and r.outcome == "pass"]
    if failing:
        verdict, deciding = "hold", failing
    elif doubtful or not passing:  # no evidence is never a pass
        verdict, deciding = "undecided", doubtful
    else:
        verdict, deciding = "ship", []
    return {
        "verdict": verdict,
        "reason": _reason(context, verdict, deciding, results),
        "rules": [r.model_dump() for r in results],
    }


def _waived(r: RuleResult, waiver: Waiver, today: date) -> RuleResult:
    if r.outcome not in {"fail", "undecided"}:
        return r
    expired = waiver.expires < today
    note = {**waiver.model_dump(mode="json"), "expired": expired}
    if not expired:
        return r.model_copy(update={"waiver": note})
    return r.model_copy(
        update={"waiver": note, "outcome": "fail", "detail": f"{r.detail}; its waiver expired on {waiver.expires}"}
    )


def _lets_through(r: RuleResult) -> bool:
    return r.waiver is not None and not r.waiver["expired"]


def _reason(context: Context, verdict: str, deciding: list[RuleResult], results: list[RuleResult]) -> str:
    tier = context.run.tier
    if deciding:
        first = deciding[0]
        more = f" (and {len(deciding) - 1} more)" if len(deciding) > 1 else ""
        figure = _figure(first)
        return f"{tier} {WORDS[verdict]}: {first.title}{figure}: {first.detail}{more}."
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
    if r.value is None or not r.unit:
        return ""
    limit = "" if r.limit is None else f", limit {r.limit:g}"
    return f" is {r.value:.4g} {r.unit}{limit}"


def what_changed(context: Context) -> dict[str, Any]:
    """The four identities of this tier beside those of the reference and the baseline."""
    mine = context.run.header("evaluation")
    load = context.run.header("load")
    if mine is None:
        return {}
    pairs: dict[str, Any] = {}
    other = None if context.is_reference else context.reference.header("evaluation")
    for against, header in (
        (context.reference.tier, other),
        ("baseline", context.baseline and context.baseline.evaluation),
    ):
        if header is None:
            continue
        pairs[against] = {
            part: {
                "now": getattr(mine, part).model_dump(),
                "then": getattr(header, part).model_dump(),
                "differs": getattr(mine, part).digest != getattr(header, part).digest,
            }
            for part in ("model", "engine", "quantisation", "workload")
        }
    return {"identities": mine.model_dump(), "workload": load.workload.model_dump() if load else None, "against": pairs}


def waivers_now(policy: Policy, today: date) -> list[dict[str, Any]]:
    return [{**w.model_dump(mode="json"), "expired": w.expires < today} for w in policy.waivers]
