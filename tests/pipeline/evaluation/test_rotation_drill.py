"""Six weeks of rotation, each judged by the gate: what a week's content does to the accuracy is the set's and holds
nobody; what a candidate does is the model's, also in a week that is harder for everybody.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.drill.trial import header
from pipeline.evaluation import health, rotation, sets
from pipeline.evaluation.items import Evalset, Item, load_evalset
from pipeline.evaluation.versions import version_problems
from pipeline.gate.context import Context
from pipeline.gate.inputs import TierRun
from pipeline.gate.policy import Policy, QualityBaseline
from pipeline.gate.result import RuleResult
from pipeline.gate.rules.baseline import quality_baseline
from pipeline.provenance import Header
from pipeline.release.record import Release
from tests.pipeline.evaluation.make import some_items, write_evalset
from tests.pipeline.evaluation.test_rotation import PLAN, traffic

WEEKS = ["2026-W49", "2026-W50", "2026-W51", "2026-W52", "2026-W53", "2027-W01"]
HARD_WEEK, HARDER_BY = "2026-W52", 0.6
RULE = QualityBaseline(id="accuracy-baseline", kind="quality_baseline", margin_points=15)
POLICY = Policy(name="drill", confidence=0.95, rules=[RULE])
GOOD, WORSE = 0.85, 0.35  # skill: the share of ordinary items that a model gets right


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    made = write_evalset(Path(), some_items(40))
    path = made / "manifest.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | {"rotation": PLAN}))
    return made


def scores(evalset: Evalset, skill: float) -> dict[str, float]:
    """Recorded answers of a model: the same items are easy for every model, those of the hard week for none.

    As if production items, too, had a grader: what a week does to an accuracy is seen on the items that change.
    """

    def right(item: Item) -> bool:
        difficulty = random.Random(item.id).random() + (HARDER_BY if item.week == HARD_WEEK else 0)
        return difficulty < skill

    return {i.id: float(right(i)) for i in evalset.items}


def provenance(evalset: Evalset, tier: str) -> Header:
    """Of an evaluation on this very content."""
    return Header.model_validate(header(tier, "core") | {"workload": evalset.identity})


def run_of(evalset: Evalset, tier: str, found: dict[str, float]) -> TierRun:
    rows = [
        {"id": i.id, "scenario": i.scenario, "source": i.source, "kind": i.kind, "score": found[i.id]}
        for i in evalset.items
    ]
    return TierRun(tier, evaluation={"header": provenance(evalset, tier).model_dump()}, items=rows)


def released(evalset: Evalset) -> Release:
    """A good build, in service since the set was as it is now."""
    head = provenance(evalset, "released")
    return Release(
        name="1.0.0", tier="released", owner="team", policy="drill", policy_digest="", waivers=[], attempts=1,
        verdict_as_of="2026-11-30T12:00:00Z", evaluation=head, load=head, latency={}, scores=scores(evalset, GOOD),
        promoted_at="2026-11-30T12:00:00Z",
    )  # fmt: skip


def judged(evalset: Evalset, base: Release, skill: float, again: TierRun | None) -> RuleResult:
    """What the gate says of a candidate of that skill on this content."""
    run = run_of(evalset, "candidate", scores(evalset, skill))
    (found,) = quality_baseline(RULE, Context(run, run, None, None, base, POLICY, in_service=again))
    return found


def points(found: RuleResult) -> tuple[float, float, float]:
    """Change in all, due to the set, due to the model: as the verdict says it."""
    said = found.detail.partition("accuracy changed by ")[2].replace("points:", "").replace(",", "").split()
    return float(said[0]), float(said[1]), float(said[6])


def rotated(folder: Path, week: str, log: Path, requests: list[Any]) -> Evalset:
    log.write_text("".join(json.dumps({"prompt": r.text, "scenario": r.scenario}) + "\n" for r in requests))
    sets.main(["rotate", "--week", week, "--requests", str(log), "--folder", str(folder)])
    return load_evalset(folder)


def test_six_weeks_of_rotation(folder: Path, tmp_path: Path) -> None:
    base, versions = released(load_evalset(folder)), ["1"]
    due_to_set: dict[str, float] = {}
    for n, week in enumerate(WEEKS):
        now = rotated(folder, week, tmp_path / f"{week}.jsonl", traffic(n, 80))
        versions.append(now.manifest.version)
        production = [i for i in now.items if i.origin == "production"]
        assert len(production) == 8 * min(n + 1, 4)
        assert len({i.week for i in production}) == min(n + 1, 4)
        assert now.manifest.scenarios["production"]["items"] == len(production)
        assert now.manifest.changelog[-1]["week"] == week
        assert version_problems(now, folder) == []
        assert all(c["success"] for c in health.production_checks(now, week))
        assert len({i.source for i in production}) > 4, "strata"

        unknown = judged(now, base, GOOD, None)
        assert (unknown.outcome, "seatrial evalset rescore" in str(unknown.would_decide)) == ("undecided", True)
        again = run_of(now, "released", scores(now, GOOD))
        same, worse = judged(now, base, GOOD, again), judged(now, base, WORSE, again)
        total, due_to_set[week], model = points(same)
        assert (same.outcome, model, total) == ("pass", 0.0, due_to_set[week])
        assert worse.outcome == "fail"
        total, of_set, model = points(worse)
        assert of_set == due_to_set[week], "whatever the candidate is"
        assert model == pytest.approx(worse.value, abs=0.051)
        assert total == pytest.approx(of_set + model, abs=0.11)
        assert model < -RULE.margin_points
    assert versions == ["1", "1.1.0", "1.2.0", "1.3.0", "1.4.0", "1.5.0", "1.6.0"]
    before, hard = WEEKS[2], HARD_WEEK
    assert due_to_set[hard] < due_to_set[before] - 3, "the hard week costs both builds, and is called the set's doing"
    assert not rotation.file_of(folder, "2026-W50").exists()
    assert rotation.file_of(folder, "2026-W51").exists()
    stale = {c["name"] for c in health.production_checks(load_evalset(folder), "2027-W04") if not c["success"]}
    assert stale == {"production_age"}


def test_scores_of_another_build_or_content_are_not_the_releases(folder: Path, tmp_path: Path) -> None:
    before = load_evalset(folder)
    base = released(before)
    now = rotated(folder, WEEKS[0], tmp_path / "log.jsonl", traffic(0, 80))
    other = run_of(now, "other", scores(now, GOOD))
    found = judged(now, base, GOOD, other)
    assert found.outcome == "undecided"
    assert "is of another build than 1.0.0: quantisation differ" in found.detail
    stale = run_of(before, "released", scores(before, GOOD))
    found = judged(now, base, GOOD, stale)
    assert found.outcome == "undecided"
    assert "is of 1.0.0 on another content" in found.detail
    part = run_of(now, "released", scores(now, GOOD))
    assert part.items is not None
    part.items.pop()
    assert "1.0.0 has scores for 47 of 48 items" in judged(now, base, GOOD, part).detail


def test_where_the_set_is_the_same_nothing_is_said_of_it(folder: Path) -> None:
    evalset = load_evalset(folder)
    found = judged(evalset, released(evalset), WORSE, None)
    assert found.outcome == "fail"
    assert "due to the set" not in found.detail
