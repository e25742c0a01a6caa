"""verdict.json as a typed model; ``verdict.schema.json`` beside it is its published form.

python -m pipeline.gate.model > pipeline/gate/verdict.schema.json
"""

from __future__ import annotations

import json
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from pipeline.gate.result import RuleResult

Word = Literal["ship", "hold", "undecided"]
MOMENT = r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}Z$"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class TierVerdict(_Strict):
    """``rules``: the deciding ones first, then as in the policy. ``deciding``: their ids; the first is the reason."""

    verdict: Word
    reason: str
    deciding: list[str]
    rules: list[RuleResult]


class Settle(_Strict):
    """What would settle a doubt. ``minutes``: of measuring, beyond what was measured; null where time alone does not
    settle it or is not known. ``within_budget``: whether the policy's budget allows that; null without either.
    """

    rule: str
    what: str
    minutes: float | None
    within_budget: bool | None


class WhatChanged(_Strict):
    """``changed``: which of the four identities differ from the reference and from the baseline; ``confounded``:
    against which of these more than one does, so that no difference can be attributed.
    """

    identities: dict[str, Any]
    workload: dict[str, Any] | None
    against: dict[str, dict[str, Any]]
    changed: dict[str, list[Literal["model", "engine", "quantisation", "workload"]]]
    confounded: list[str]


class Attempt(_Strict):
    build: str
    tier: str
    policy: str
    policy_digest: str
    quality_measured_at: str
    latency_measured_at: str
    verdict: Word
    as_of: str


class Baseline(_Strict):
    name: str
    promoted_at: str


class DiagnosisRow(_Strict):
    """One step of the fixed order, of the candidate. ``cause``, ``figure`` and ``knob`` (what to try) are what the
    engine's own logs say of a step whose rules fail; ``figure`` alone says why they do not; null where none fails.
    """

    step: int
    symptom: str
    finding: str
    evidence: str
    suspect: str
    cause: str | None = None
    figure: str | None = None
    knob: str | None = None


class WaiverNow(_Strict):
    rule: str
    tier: str
    reason: str
    owner: str
    expires: str
    expired: bool


class Verdict(_Strict):
    """``as_of``: the moment to which waivers were held. ``inputs``: sha256 of every file that it rests on; ``asked``:
    digest of the policies, waivers, roles and releases.
    """

    schema_version: Literal[1] = 1
    as_of: str = Field(pattern=MOMENT)
    verdict: Word
    reason: str
    candidate: str
    reference: str
    baseline: Baseline | None
    policy: str
    policy_digest: str
    limits_for: str | None = Field(description="class of machine that the latency limits are for")
    budget_minutes: float | None
    settle: list[Settle] = Field(description="empty unless undecided")
    attempts: list[Attempt] = Field(description="all of this build that were judged, oldest first")
    what_changed: WhatChanged | None = Field(description="null: the candidate's provenance is missing")
    tiers: dict[str, TierVerdict]
    diagnosis: list[DiagnosisRow]
    waivers: list[WaiverNow]
    inputs: dict[str, str | None]
    asked: str

    @model_validator(mode="after")
    def _of_the_candidate(self) -> Self:
        if self.candidate not in self.tiers:
            raise ValueError(f"its candidate {self.candidate} is not among its tiers, {', '.join(self.tiers)}")
        if self.judged.verdict != self.verdict:
            raise ValueError(f"it says {self.verdict}, but its candidate {self.judged.verdict}")
        return self

    @property
    def judged(self) -> TierVerdict:
        """The candidate's own."""
        return self.tiers[self.candidate]


def schema() -> str:
    """The JSON Schema (draft 2020-12) of verdict.json."""
    value = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Verdict.model_json_schema(mode="serialization"),
    }
    return json.dumps(value, indent=2, sort_keys=True) + "\n"


if __name__ == "__main__":
    print(schema(), end="")
