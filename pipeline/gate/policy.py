"""The policy: rules with their limits, from the ``gate`` section of params.yaml."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pipeline.errors import SeatrialError

Severity = Literal["blocking", "advisory"]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _Rule(_Strict):
    id: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$")
    severity: Severity = "blocking"
    confidence: float | None = Field(None, gt=0.5, lt=1, description="null: the policy's")


class LatencyLimit(_Rule):
    """A limit on a quantile of TTFT or ITL, for each stage named."""

    kind: Literal["latency_limit"]
    metric: Literal["ttft", "itl"]
    quantile: float = Field(gt=0, lt=1)
    limits_ms: dict[str, float] = Field(min_length=1, description="stage: limit")


class ErrorRate(_Rule):
    """A limit on the share of requests that failed, were refused, timed out or never ended."""

    kind: Literal["error_rate"]
    limit: float = Field(gt=0, lt=1)


class QualityDelta(_Rule):
    """Accuracy against the reference tier, paired by item: not worse by more than the margin."""

    kind: Literal["quality_delta"]
    margin_points: float = Field(gt=0, lt=100)


class Pinned(_Rule):
    """Every pinned case that the reference (and the baseline) passes must pass, whatever the average says."""

    kind: Literal["pinned"]


class AnswerLength(_Rule):
    """Mean length of generated answers against the reference, within a band, in percent."""

    kind: Literal["answer_length"]
    band_percent: float = Field(gt=0, lt=100)


class EvalsetHealth(_Rule):
    """The checks of the regression set (reports/evalset.json)."""

    kind: Literal["evalset_health"]


class Provenance(_Rule):
    """All identities recorded and consistent, the whole set run, one thing changed against the reference."""

    kind: Literal["provenance"]


class ClientHealth(_Rule):
    """The load client kept its schedule, and its profile may be judged under this policy."""

    kind: Literal["client_health"]
    profiles: list[str] = Field(min_length=1)


class LedgerMatch(_Rule):
    """Weights and KV pool as allocated, against the plan."""

    kind: Literal["ledger"]
    within_percent: float = Field(gt=0, lt=100)


class QualityBaseline(_Rule):
    """Accuracy against the release in service, paired by item, on the same evalset version."""

    kind: Literal["quality_baseline"]
    margin_points: float = Field(gt=0, lt=100)


class LatencyBaseline(_Rule):
    """A latency quantile against the release in service, on the same class of machine and the same workload."""

    kind: Literal["latency_baseline"]
    metric: Literal["ttft", "itl"]
    quantile: float = Field(gt=0, lt=1)
    margin_percent: float = Field(gt=0)


Rule = (
    LatencyLimit | ErrorRate | QualityDelta | Pinned | AnswerLength | EvalsetHealth | Provenance | ClientHealth
    | LedgerMatch | QualityBaseline | LatencyBaseline
)  # fmt: skip
KINDS = tuple(r.model_fields["kind"].annotation.__args__[0] for r in Rule.__args__)


class Waiver(_Strict):
    """Lets a failing or undecided rule of a tier through, until it expires. Shown wherever the verdict is."""

    rule: str
    tier: str
    reason: str = Field(min_length=5)
    owner: str = Field(min_length=1)
    expires: date


class Policy(_Strict):
    name: str
    confidence: float = Field(gt=0.5, lt=1)
    rules: list[Annotated[Rule, Field(discriminator="kind")]] = Field(min_length=1)
    waivers: list[Waiver] = []


class _GateSection(_Strict):
    policy: str
    policies: dict[str, dict[str, Any]]
    waivers: list[Waiver] = []


def read_policy(gate: dict[str, Any], tiers: list[str]) -> Policy:
    """The policy that ``gate.policy`` names.

    Raises:
        SeatrialError: an unknown policy, rule kind, parameter, or a waiver of something that does not exist.
    """
    try:
        section = _GateSection.model_validate(gate)
    except ValidationError as e:
        raise SeatrialError(_message(e, "gate")) from e
    if section.policy not in section.policies:
        raise SeatrialError(
            f"params.yaml: gate.policy is {section.policy!r}; gate.policies has {', '.join(section.policies)}"
        )
    raw = section.policies[section.policy]
    where = f"gate.policies.{section.policy}"
    for number, rule in enumerate(raw.get("rules") or []):
        kind = rule.get("kind") if isinstance(rule, dict) else None
        if kind not in KINDS:
            name = rule.get("id", f"number {number + 1}") if isinstance(rule, dict) else f"number {number + 1}"
            raise SeatrialError(
                f"params.yaml: {where}.rules: rule {name!r} has the unknown kind {kind!r}; known: {', '.join(KINDS)}"
            )
    try:
        policy = Policy.model_validate({"name": section.policy, **raw, "waivers": section.waivers})
    except ValidationError as e:
        raise SeatrialError(_message(e, where)) from e
    ids = [r.id for r in policy.rules]
    if twice := sorted({i for i in ids if ids.count(i) > 1}):
        raise SeatrialError(f"params.yaml: {where}.rules: the id {twice[0]!r} is used twice; ids must be unique")
    for waiver in policy.waivers:
        if waiver.rule not in ids:
            raise SeatrialError(
                f"params.yaml: gate.waivers: no rule {waiver.rule!r} in policy {policy.name}; it has {', '.join(ids)}"
            )
        if waiver.tier not in tiers:
            raise SeatrialError(f"params.yaml: gate.waivers: no tier {waiver.tier!r}; tiers are {', '.join(tiers)}")
    return policy


def _message(e: ValidationError, where: str) -> str:
    lines = [
        f"  {where}.{'.'.join(map(str, x['loc']))}: {x['msg']} (found {str(x['input'])[:60]!r})" for x in e.errors()
    ]
    return "params.yaml:\n" + "\n".join(lines)
