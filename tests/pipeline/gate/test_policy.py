"""The policy of params.yaml: the shipped one fits what is shipped, and a mistake is named with its place."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from pipeline.errors import SeatrialError
from pipeline.evaluation.items import load_evalset
from pipeline.files import write_json
from pipeline.gate.explain import explain, explain_ab, sizes_at_hand
from pipeline.gate.policy import KINDS, AnswerLength, CutOff, LatencyLimit, QualityBaseline, QualityDelta, read_policy
from pipeline.gate.rules import JUDGES
from pipeline.gate.statistics.planning import failing_share, needed, passing_share, samples_to_fail
from pipeline.gate.statistics.shares import judge_share
from pipeline.params import AbParams

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
    (_add("p95"), "rule number 22 is 'p95', expected a mapping"),
    (
        lambda g: g["policies"]["release"].update(limits_for="gpu"),
        "release.limits_for is 'gpu'; gate.machine_classes ha",
    ),
    (lambda g: g["policies"]["release"].pop("limits_for"), "release.limits_for is missing: rule 'ttft-p95' limits lat"),
    (lambda g: g["machine_classes"]["small-cpu"].update(cores=[4, 2]), "machine_classes.small-cpu: Value error, cores"),
    (lambda g: g["machine_classes"]["small-cpu"].update(accelerator="("), "'(' is no regular expression"),
    (lambda g: g["policies"]["release"].update(budget_minutes=0), "gate.policies.release.budget_minutes: Input should"),
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


def test_it_says_what_it_can_detect(gate: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(ROOT)
    policy = read_policy(gate, TIERS)
    sizes = sizes_at_hand("core", "int8", tmp_path)
    text = explain(policy, sizes)
    for rule in policy.rules:
        assert f"{rule.id} ({rule.kind}, {rule.severity}): " in text
    assert "latency limits are for machines of class small-cpu: cores [2, 4], accelerator none" in text
    assert "passes from 59 independent samples with none over the limit, 93 with one" in text
    assert "or from 29 with none over 1/2 of the limit" in text
    assert "passes from 299 independent samples with none over the limit, 473 with one" in text
    assert "to fail twice the share that is allowed in 4 of 5 runs: " in text
    items = len(load_evalset(ROOT / "evalsets/core").items)
    assert f"on {items} items from" in text
    margins = [line for line in text.split("\n") if "of items flipped" in line]
    assert len(margins) == 6
    assert all(line.endswith(": can decide") for line in margins if "at 5%" in line or "at 10%" in line)
    assert "what it can detect is unknown" in explain(policy, sizes_at_hand("none", "int8", tmp_path))


def test_it_reckons_with_the_requests_of_the_last_load_test(gate: dict[str, Any], tmp_path: Path) -> None:
    stages = {s: {"requests": 150} for s in ("short_burst", "long_context", "mixed_random")}
    write_json(tmp_path / "int8/load/load.json", {"stages": stages})
    text = explain(read_policy(gate, TIERS), sizes_at_hand("none", "int8", tmp_path))
    good, bad = passing_share(150, 0.05, 0.95), failing_share(150, 0.05, 0.95)
    assert (
        f"short_burst: 150 requests, were they independent: passes in 4 of 5 runs up to a true share of {good:.2%}"
        in text
    )
    assert f"fails in 4 of 5 from {bad:.2%}" in text
    assert "450 requests: passes in 4 of 5 runs" in text
    (tmp_path / "int8/load/load.json").write_text("[")
    assert "short_burst: 150" not in explain(read_policy(gate, TIERS), sizes_at_hand("none", "int8", tmp_path))


@pytest.mark.parametrize(("allowed", "confidence", "sizes"), [(0.01, 0.99, (459, 662)), (0.05, 0.99, (90, 130))])
def test_the_sizes_it_states_are_the_known_ones(allowed: float, confidence: float, sizes: tuple[int, int]) -> None:
    assert (needed(allowed, confidence), needed(allowed, confidence, 1)) == sizes


@given(n=st.integers(1, 400), allowed=st.floats(0.005, 0.3), confidence=st.sampled_from([0.9, 0.95, 0.99]))
@settings(deadline=None, max_examples=60)
def test_the_power_it_states_is_that_of_the_binomial(n: int, allowed: float, confidence: float) -> None:
    outcomes = [judge_share(k, n, allowed, confidence) for k in range(n + 1)]
    good, bad = passing_share(n, allowed, confidence), failing_share(n, allowed, confidence)
    assert (good is None) == ("pass" not in outcomes)
    assert (bad is None) == ("fail" not in outcomes)
    for share, outcome in ((good, "pass"), (bad, "fail")):
        if share is not None and share < 1:
            k = np.asarray([o == outcome for o in outcomes])
            assert stats.binom.pmf(np.arange(n + 1), n, share)[k].sum() == pytest.approx(0.8, abs=1e-6)


def test_the_sample_that_fails_twice_the_share_is_just_enough() -> None:
    n = samples_to_fail(0.1, 0.05, 0.95)
    assert n is not None
    shares = [failing_share(m, 0.05, 0.95) for m in (n, n - 1)]
    assert shares[0] is not None
    assert shares[1] is not None
    assert shares[0] <= 0.1 < shares[1]
    assert samples_to_fail(0.05, 0.05, 0.95) is None
    with pytest.raises(ValueError, match="no sample of up to 1000000 passes"):
        needed(1e-9, 0.95)


def test_the_comparison_of_builds_is_explained_too() -> None:
    text = explain_ab(AbParams(margin_percent=5, budget_minutes=20, looks=3))
    assert "for up to 20 minutes, 3 looks that share 5% of error" in text
    assert "pairs of rounds, both sides in turns of 1.5 s, of profile ab" in text
    assert "pairs of rounds, one after the other, of profile ab" in explain_ab(AbParams(turn_s=None))
    assert "prefill: ttft-p50, ttft-p95 block" in text
    assert "computed_tokens, output_tokens of the same requests block in every stage: exact" in text
    # With 5 degrees of freedom t is 2.015 at 95 % and 0.920 at 80 %: ln 1.05 sqrt(6) / 2.935 = 4.07 %, or 4.16 %.
    assert "6 pairs of rounds: a figure of an equal build passes in 4 of 5 runs where ratios spread by 4.2 %" in text
    assert "and one 10.2 % worse fails as often" in text
