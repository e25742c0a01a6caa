"""One judged rule, as it stands in verdict.json and on the scorecard."""

from __future__ import annotations

import math
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, field_validator

Outcome = Literal["pass", "fail", "undecided", "not_applicable"]
Group = Literal["latency", "quality", "errors", "evalset", "provenance", "baseline"]


class RuleResult(BaseModel):
    """``interval`` holds the one-sided bounds at ``confidence``; ``would_decide`` says what would settle it;
    ``minutes_needed``, where more time would: of measuring, beyond what was measured;
    ``p_value``, where the rule is a test, that of "the limit is broken": a fail has one below ``1 - confidence``.
    """

    model_config = ConfigDict(extra="forbid")
    id: str
    title: str
    group: Group
    severity: Literal["blocking", "advisory"]
    outcome: Outcome
    detail: str
    value: float | None = None
    unit: str = ""
    better: Literal["lower", "higher"] = "lower"
    limit: float | None = None
    interval: list[float | None] | None = None
    confidence: float | None = None
    n: int | None = None
    n_effective: float | None = None
    stage: str | None = None
    would_decide: str | None = None
    minutes_needed: float | None = None
    p_value: float | None = None
    waiver: dict[str, Any] | None = None

    @field_validator("value", "n_effective")
    @classmethod
    def _finite(cls, value: float | None) -> float | None:
        return None if value is None or not math.isfinite(value) else value

    @field_validator("interval")
    @classmethod
    def _finite_ends(cls, value: list[float | None] | None) -> list[float | None] | None:
        return None if value is None else [v if v is not None and math.isfinite(v) else None for v in value]
