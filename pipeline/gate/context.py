"""What a rule is judged on: one tier beside the reference tier, the baseline and the regression set's report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pipeline.gate.inputs import TierRun
from pipeline.gate.policy import Policy, Rule
from pipeline.gate.result import Group, Outcome, RuleResult
from pipeline.release.record import Release


@dataclass(frozen=True)
class Context:
    run: TierRun
    reference: TierRun
    evalset: dict[str, Any] | None
    evalset_problem: str | None
    baseline: Release | None
    policy: Policy
    review: dict[str, Any] | None = None  # reports/review.json
    review_problem: str | None = None  # why there is none; null: nobody was asked
    in_service: TierRun | None = None  # the baseline, scored again (seatrial evalset rescore)

    @property
    def is_reference(self) -> bool:
        return self.run.tier == self.reference.tier

    def confidence(self, rule: Rule) -> float:
        return rule.confidence or self.policy.confidence


def result(rule: Rule, group: Group, title: str, outcome: Outcome, detail: str, **values: Any) -> RuleResult:
    """A result that carries its rule's id (with the stage behind it where there is one) and severity."""
    stage = values.get("stage")
    return RuleResult(
        id=f"{rule.id}/{stage}" if stage else rule.id,
        title=title,
        group=group,
        severity=rule.severity,
        outcome=outcome,
        detail=detail,
        **values,
    )
