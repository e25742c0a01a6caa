"""The policy: rules with their limits, from the ``gate`` section of params.yaml."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pipeline.errors import SeatrialError
from pipeline.gate.machines import MachineClass
from pipeline.provenance import digest_of

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
    limits_ms: dict[str, Annotated[float, Field(gt=0)]] = Field(min_length=1, description="stage: limit")
    headroom: Literal[1, 2, 4] = Field(1, description="judge a short run at down to limit/headroom (judge_tail)")
    min_requests: int = Field(1, ge=1, description="measured requests of a stage below which none passes")


class ErrorRate(_Rule):
    """A limit on the share of requests that failed, were refused, timed out or never ended."""

    kind: Literal["error_rate"]
    limit: float = Field(gt=0, lt=1)
    min_requests: int = Field(1, ge=1, description="measured requests below which none passes")


class Truncation(_Rule):
    """A limit on the share of answers under load that claim to have reached their length and have not."""

    kind: Literal["truncation"]
    limit: float = Field(gt=0, lt=1)
    min_requests: int = Field(1, ge=1, description="answers below which none passes")


class _Margin(_Rule):
    """A margin on paired items holds for the set that it was chosen for: another version or fewer items leave it
    undecided.
    """

    margin_points: float = Field(gt=0, lt=100)
    evalset: str | None = Field(None, description="NAME-vVERSION that the margin was chosen for; null: any")
    min_items: int = Field(1, ge=1, description="pairs below which the margin is not applied")


class QualityDelta(_Margin):
    """Accuracy against the reference tier, paired by item: not worse by more than the margin."""

    kind: Literal["quality_delta"]


class CutOff(_Margin):
    """Share of generated answers cut off at their limit, against the reference tier, paired by item."""

    kind: Literal["cut_off"]


class Pinned(_Rule):
    """Every pinned case that the reference (and the baseline) passes must pass, whatever the average says."""

    kind: Literal["pinned"]


class AnswerLength(_Rule):
    """Mean length of generated answers against the reference, within a band, in percent."""

    kind: Literal["answer_length"]
    band_percent: float = Field(gt=0, lt=100)
    min_items: int = Field(2, ge=2, description="generated answers below which the band is not applied")


class Divergence(_Rule):
    """A limit on a quantile of the items' KL divergence from the reference, over the choices of choice items."""

    kind: Literal["divergence"]
    quantile: float = Field(gt=0, lt=1)
    limit_nats: float = Field(gt=0)
    min_items: int = Field(1, ge=1, description="choice items below which it is undecided")


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


class KvIntegrity(_Rule):
    """The KV pool's books balanced at every idle check during the load test: a single error fails."""

    kind: Literal["kv_integrity"]


class KvDrift(_Rule):
    """How the divergence of the reference on a KV cache of fewer bits from itself grows with the length
    (reports/fidelity), for tiers that are served from one: surely by no more than the limit. Not measured: undecided.
    """

    kind: Literal["kv_drift"]
    limit_nats: float = Field(gt=0, description="per token, for 1,000 tokens more before it")
    limit_nats_int4: float | None = Field(None, gt=0, description="of a cache of 4 bits; null: limit_nats")
    min_tokens: int = Field(ge=512, description="length of the sequence below which it is undecided")

    def limit(self, kv_dtype: str) -> float:
        own = self.limit_nats_int4 if kv_dtype == "int4" else None
        return self.limit_nats if own is None else own


class Review(_Rule):
    """People's ratings against the release in service (reports/review.json): no criterion's mean is lower by more than
    the margin. Where nobody was asked it says so, and never passes.
    """

    kind: Literal["review"]
    margin_points: float = Field(gt=0, lt=4, description="of the rating scale, which goes from 1 to 5")
    required: bool = Field(False, description="undecided, not merely not asked, where there are no ratings")


class QualityBaseline(_Margin):
    """Accuracy against the release in service, paired by item. Where the set has changed since, on the new content."""

    kind: Literal["quality_baseline"]


class LatencyBaseline(_Rule):
    """A latency quantile against the release in service, on the same class of machine and the same workload."""

    kind: Literal["latency_baseline"]
    metric: Literal["ttft", "itl"]
    quantile: float = Field(gt=0, lt=1)
    margin_percent: float = Field(gt=0)


Rule = (
    LatencyLimit | ErrorRate | Truncation | QualityDelta | Pinned | AnswerLength | CutOff | Divergence | EvalsetHealth
    | Provenance | ClientHealth | LedgerMatch | KvIntegrity | KvDrift | Review | QualityBaseline | LatencyBaseline
)  # fmt: skip
KINDS = tuple(r.model_fields["kind"].annotation.__args__[0] for r in Rule.__args__)


class Waiver(_Strict):
    """Lets a failing or undecided rule of a tier through, to the end of the day (UTC) on which it expires. Shown
    wherever the verdict is. ``rule``: an id, or ``ID/STAGE`` for one stage of it.
    """

    rule: str
    tier: str
    reason: str = Field(min_length=5)
    owner: str = Field(min_length=1)
    expires: date

    def covers(self, result_id: str, tier: str) -> bool:
        return tier == self.tier and (result_id == self.rule or result_id.partition("/")[0] == self.rule)


class Limits(_Strict):
    """The class of machine that a policy's latency limits were chosen on."""

    name: str
    machines: MachineClass


class Policy(_Strict):
    """Rules for one environment. ``limits_for``: None where no latency is limited."""

    name: str
    confidence: float = Field(gt=0.5, lt=1)
    budget_minutes: float | None = Field(None, gt=0, description="of measuring; what would take longer is said to")
    limits_for: Limits | None = None
    rules: list[Annotated[Rule, Field(discriminator="kind")]] = Field(min_length=1)
    waivers: list[Waiver] = []

    @property
    def digest(self) -> str:
        """Of the rules and the waivers: a verdict under other limits is another verdict."""
        return digest_of(self.model_dump(mode="json"))


class _GateSection(_Strict):
    policy: str
    machine_classes: dict[str, MachineClass] = {}
    policies: dict[str, dict[str, Any]]
    waivers: list[Waiver] = []


def read_policy(gate: dict[str, Any], tiers: list[str]) -> Policy:
    """The policy that ``gate.policy`` names. The others are checked too: a mistake shows before it is needed.

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
    policies = {name: _policy(name, raw, section.machine_classes) for name, raw in section.policies.items()}
    for waiver in section.waivers:
        _check_waiver(waiver, policies, tiers)
    return policies[section.policy].model_copy(update={"waivers": section.waivers})


KEYS = ("confidence", "budget_minutes", "limits_for", "rules")


def _policy(name: str, raw: dict[str, Any], classes: dict[str, MachineClass]) -> Policy:
    where = f"gate.policies.{name}"
    if unknown := sorted(set(raw) - set(KEYS)):
        raise SeatrialError(f"params.yaml: {where}.{unknown[0]}: unknown; a policy has {', '.join(KEYS)}")
    rules = raw.get("rules")
    for number, rule in enumerate(rules if isinstance(rules, list) else []):
        called = f"number {number + 1}"
        if not isinstance(rule, dict):
            raise SeatrialError(
                f"params.yaml: {where}.rules: rule {called} is {rule!r}, expected a mapping with a kind"
            )
        if (kind := rule.get("kind")) not in KINDS:
            raise SeatrialError(
                f"params.yaml: {where}.rules: rule {rule.get('id', called)!r} has the unknown kind {kind!r}; known: "
                f"{', '.join(KINDS)}"
            )
    raw = dict(raw)
    if (wanted := raw.get("limits_for")) is not None:
        if wanted not in classes:
            has = ", ".join(classes) or "none"
            raise SeatrialError(f"params.yaml: {where}.limits_for is {wanted!r}; gate.machine_classes has {has}")
        raw["limits_for"] = Limits(name=wanted, machines=classes[wanted])
    try:
        policy = Policy.model_validate({"name": name, **raw})
    except ValidationError as e:
        raise SeatrialError(_message(e, where, rules)) from e
    ids = [r.id for r in policy.rules]
    if twice := sorted({i for i in ids if ids.count(i) > 1}):
        raise SeatrialError(f"params.yaml: {where}.rules: the id {twice[0]!r} is used twice; ids must be unique")
    limited = next((r.id for r in policy.rules if isinstance(r, LatencyLimit)), None)
    if limited is not None and policy.limits_for is None:
        raise SeatrialError(
            f"params.yaml: {where}.limits_for is missing: rule {limited!r} limits latency, and a limit is for a class "
            f"of machine (gate.machine_classes has {', '.join(classes) or 'none'})"
        )
    return policy


def _check_waiver(waiver: Waiver, policies: dict[str, Policy], tiers: list[str]) -> None:
    """A waiver may be of a rule of any policy, so that it outlives a change of ``gate.policy``."""
    rules = {r.id: r for p in policies.values() for r in p.rules}
    rule, _, stage = waiver.rule.partition("/")
    if rule not in rules:
        raise SeatrialError(
            f"params.yaml: gate.waivers: no rule {rule!r} in policies {', '.join(policies)}; they have "
            f"{', '.join(rules)}"
        )
    stages = sorted(
        {s for p in policies.values() for r in p.rules if r.id == rule for s in getattr(r, "limits_ms", {})}
    )
    if stage and stages and stage not in stages:
        raise SeatrialError(
            f"params.yaml: gate.waivers: rule {rule!r} has no stage {stage!r}; it has {', '.join(stages)}"
        )
    if waiver.tier not in tiers:
        raise SeatrialError(f"params.yaml: gate.waivers: no tier {waiver.tier!r}; tiers are {', '.join(tiers)}")


def _message(e: ValidationError, where: str, rules: Any = None) -> str:
    """Every mistake with its place; a rule is named by its id, not by its number alone."""
    lines = []
    for x in e.errors():
        place = [str(part) for part in x["loc"]]
        if place[:1] == ["rules"] and isinstance(rules, list) and len(place) > 2:
            place = [f"rules[{rules[int(place[1])].get('id', place[1])}]", *place[3:]]
        lines.append(f"  {where}.{'.'.join(place)}: {x['msg']} (found {str(x['input'])[:60]!r})")
    return "params.yaml:\n" + "\n".join(lines)
