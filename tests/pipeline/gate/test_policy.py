"""The policy of params.yaml: the shipped one fits what is shipped, and a mistake is named with its place."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.errors import SeatrialError
from pipeline.evaluation.items import load_evalset
from pipeline.gate.explain import explain, needed
from pipeline.gate.policy import KINDS, AnswerLength, CutOff, LatencyLimit, QualityBaseline, QualityDelta, read_policy
from pipeline.gate.rules import JUDGES

ROOT = Path(__file__).resolve().parents[3]
TIERS = ["bf16", "int8"]
WAIVER = {"rule": "pinned", "tier": "int8", "reason": "known, being mended", "owner": "x", "expires": "2027-01-01"}


@pytest.fixture
def gate() -> dict[str, Any]:
    value: dict[str, Any] = yaml.safe_load((ROOT / "params.yaml").read_text())["gate"]
    return value


def _rules(gate: dict[str, Any], policy: str = "pull_request") -> Any:
    return gate["policies"][policy]["rules"]


def _add(rule: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda g: _rules(g).append(rule)


MISTAKES: list[tuple[Callable[[dict[str, Any]], Any], str]] = [
    (lambda g: g.update(policy="strict"), "gate.policy is 'strict'; gate.policies has pull_request, release"),
    (lambda g: g.update(limits=1), "gate.limits: Extra inputs are not permitted"),
    (_add({"id": "x", "kind": "vibes"}), "rule 'x' has the unknown kind 'vibes'; known: latency_limit"),
    (_add({"id": "x"}), "rule 'x' has the unknown kind None"),
    (_add("p95"), "rule number 18 is 'p95', expected a mapping"),
    (lambda g: _rules(g)[0].update(limit=3), "rules[ttft-p95].limit: Extra inputs are not permitted"),
    (lambda g: _rules(g)[0].update(quantile=95), "rules[ttft-p95].quantile: Input should be less than 1 (found '95')"),
    (lambda g: _rules(g)[0].update(headroom=3), "rules[ttft-p95].headroom: Input should be 1, 2 or 4"),
    (lambda g: _rules(g)[0].update(limits_ms={}), "rules[ttft-p95].limits_ms: Dictionary should have at least 1"),
    (lambda g: _rules(g)[0].update(severity="deadly"), "rules[ttft-p95].severity: Input should be 'blocking' or"),
    (lambda g: _rules(g, "release")[0].update(limit=3), "gate.policies.release.rules[ttft-p95].limit: Extra inputs"),
    (lambda g: g["policies"]["release"].update(waivers=[]), "gate.policies.release.waivers: unknown; a policy has"),
    (lambda g: g["policies"]["release"].update(confidence=95), "gate.policies.release.confidence: Input should be le"),
    (lambda g: g["policies"]["release"].update(rules=[]), "gate.policies.release.rules: List should have at least 1"),
    (lambda g: _rules(g).append(dict(_rules(g)[0])), "the id 'ttft-p95' is used twice"),
    (lambda g: g.update(waivers=[WAIVER | {"rule": "no"}]), "gate.waivers: no rule 'no' in policies pull_request, rel"),
    (lambda g: g.update(waivers=[WAIVER | {"rule": "ttft-p95/no"}]), "rule 'ttft-p95' has no stage 'no'; it has long"),
    (lambda g: g.update(waivers=[WAIVER | {"tier": "int3"}]), "no tier 'int3'; tiers are bf16, int8"),
    (lambda g: g.update(waivers=[WAIVER | {"expires": "soon"}]), "gate.waivers.0.expires: Input"),
    (lambda g: g.update(waivers=[{k: v for k, v in WAIVER.items() if k != "owner"}]), "gate.waivers.0.owner: Field re"),
]


@pytest.mark.parametrize(("change", "message"), MISTAKES, ids=[m for _, m in MISTAKES])
def test_a_mistake_is_refused_by_name(
    gate: dict[str, Any], change: Callable[[dict[str, Any]], Any], message: str
) -> None:
    change(gate)
    with pytest.raises(SeatrialError) as e:
        read_policy(gate, TIERS)
    assert str(e.value).startswith("params.yaml")
    assert message in str(e.value)


def test_every_kind_has_its_judge() -> None:
    assert set(KINDS) == set(JUDGES)


@pytest.mark.parametrize("name", ["pull_request", "release"])
def test_the_shipped_policy_is_for_the_shipped_evalset_and_profiles(gate: dict[str, Any], name: str) -> None:
    policy = read_policy(gate | {"policy": name}, TIERS)
    evalset = load_evalset(ROOT / "evalsets/core")
    generated = sum(i.kind != "choice" for i in evalset.items)
    margins = [r for r in policy.rules if isinstance(r, QualityDelta | QualityBaseline | CutOff)]
    assert {type(r) for r in margins} == {QualityDelta, QualityBaseline, CutOff}
    for rule in margins:
        assert rule.evalset == evalset.identity.name
        assert rule.min_items <= (generated if isinstance(rule, CutOff) else len(evalset.items))
    for band in (r for r in policy.rules if isinstance(r, AnswerLength)):
        assert band.min_items <= generated
    profile = {"pull_request": "ci", "release": "release"}[name]
    stages = {s["name"] for s in yaml.safe_load((ROOT / f"loadtests/profiles/{profile}.yaml").read_text())["stages"]}
    for limit in (r for r in policy.rules if isinstance(r, LatencyLimit)):
        assert set(limit.limits_ms) == stages


def test_a_policy_is_known_by_its_content(gate: dict[str, Any]) -> None:
    first = read_policy(gate, TIERS)
    other = copy.deepcopy(gate)
    _rules(other)[0]["limits_ms"]["short_burst"] += 1
    assert read_policy(copy.deepcopy(gate), TIERS).digest == first.digest
    assert read_policy(other, TIERS).digest != first.digest
    assert read_policy(gate | {"waivers": [WAIVER]}, TIERS).digest != first.digest


def test_it_says_what_it_can_detect(gate: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    policy = read_policy(gate, TIERS)
    text = explain(policy, "core")
    for rule in policy.rules:
        assert f"{rule.id} ({rule.kind}, {rule.severity}): " in text
    assert "passes from 59 independent samples with none over the limit, 93 with one" in text
    assert "or from 29 with none over 1/2 of the limit" in text
    assert "passes from 299 independent samples with none over the limit, 473 with one" in text
    assert f"on {len(load_evalset(ROOT / 'evalsets/core').items)} items from" in text
    margins = [line for line in text.split("\n") if "of items flipped" in line]
    assert len(margins) == 6
    assert all(line.endswith(": can decide") for line in margins if "at 5%" in line or "at 10%" in line)
    assert "what it can detect is unknown" in explain(policy, "none")


@pytest.mark.parametrize(("allowed", "confidence", "sizes"), [(0.01, 0.99, (459, 662)), (0.05, 0.99, (90, 130))])
def test_the_sizes_it_states_are_the_known_ones(allowed: float, confidence: float, sizes: tuple[int, int]) -> None:
    assert (needed(allowed, confidence), needed(allowed, confidence, 1)) == sizes
