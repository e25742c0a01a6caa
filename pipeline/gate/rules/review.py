"""What people said of the answers, beside those of the release in service."""

from __future__ import annotations

from typing import Any

from pipeline.gate.context import Context, result
from pipeline.gate.policy import Review
from pipeline.gate.result import Outcome, RuleResult
from pipeline.gate.rules.quality import interval_outcome

NOT_ASKED = "not asked: there are no ratings by people (`seatrial review sample` begins some)"


def review(rule: Review, context: Context) -> list[RuleResult]:
    """One result a criterion of the rubric, by the interval of the mean paired difference that the import computed."""
    title = "rating by people"
    report = context.review
    another = None if report is None else _another(report, context)
    if report is None or another is not None:
        detail = another or context.review_problem or NOT_ASKED
        asked = rule.required or context.review_problem is not None
        would = "ratings of this build: `seatrial review sample`, then `seatrial review import`" if asked else None
        outcome: Outcome = "undecided" if asked else "not_applicable"
        return [result(rule, "quality", title, outcome, detail, would_decide=would, **_values(rule))]
    criteria = report.get("criteria") or {}
    if not criteria:
        return [result(rule, "quality", title, "undecided", "the report names no criterion", **_values(rule))]
    return [_criterion(rule, name, found, str(report.get("baseline"))) for name, found in sorted(criteria.items())]


def _another(report: dict[str, Any], context: Context) -> str | None:
    """Why the ratings say nothing of this build; None where they are of it."""
    if report.get("candidate") != context.run.tier:
        return f"not asked of {context.run.tier}: the ratings are of {report.get('candidate')}"
    header, build = context.run.header("evaluation"), report.get("build")
    if header is None or not build:
        return f"not asked of this build: {'it was not evaluated' if build else 'the ratings do not say of which'}"
    for part in ("model", "engine", "quantisation"):
        if build[part]["digest"] != getattr(header, part).digest:
            return f"not asked of this build: the ratings are of answers of another {part}"
    return None


def _values(rule: Review) -> dict[str, Any]:
    return {"unit": "rating points", "better": "higher", "limit": -rule.margin_points}


def _criterion(rule: Review, name: str, found: dict[str, Any], baseline: str) -> RuleResult:
    values = _values(rule) | {"n": found.get("items"), "value": found.get("difference")}
    title, ends = f"{name}, rated by people", found.get("interval")
    if found.get("problem") or not ends:
        detail = str(found.get("problem") or "no interval")
        would = "more items rated, by raters who agree"
        return result(rule, "quality", title, "undecided", detail, would_decide=would, stage=name, **values)
    low, high = map(float, ends)
    detail = (
        f"{found['candidate_mean']:.2f} against {found['baseline_mean']:.2f} of {baseline} on {found['items']} items "
        f"({low:+.2f} to {high:+.2f}), agreement {found['alpha']:.2f}"
    )
    outcome = interval_outcome(low, high, -rule.margin_points)
    values |= {"interval": [low, high], "confidence": found.get("confidence")}
    more = "more items rated" if outcome == "undecided" else None
    return result(rule, "quality", title, outcome, detail, would_decide=more, stage=name, **values)
