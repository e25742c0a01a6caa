"""The KV pool's books and the ratings by people as rules."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.gate.inputs import REVIEW
from pipeline.gate.rules.health import KV_ERRORS
from pipeline.gate.verdict import verdict_exit_code
from tests.pipeline.gate.helpers import change_params, edit_json, judged, rule_of

SERVER = "results/int8/load/server.json"


def _policy_rule(raw: dict[str, Any], rule: str) -> dict[str, Any]:
    rules = raw["gate"]["policies"][raw["gate"]["policy"]]["rules"]
    found: dict[str, Any] = next(r for r in rules if r["id"] == rule)
    return found


def _ratings(root: Path, difference: float = 0.0, half: float = 0.2, **changes: Any) -> None:
    criterion = {
        "alpha": 0.8, "items": 40, "candidate_mean": 4 + difference, "baseline_mean": 4.0, "difference": difference,
        "interval": [difference - half, difference + half], "confidence": 0.95, "problem": None,
    } | changes  # fmt: skip
    head = json.loads((root / "results/int8/eval/eval.json").read_text())["header"]
    value = {
        "schema_version": 1, "candidate": "int8", "baseline": "2026.11", "criteria": {"clarity": criterion},
        "build": {part: head[part] for part in ("model", "engine", "quantisation")},
    }  # fmt: skip
    (root / REVIEW).parent.mkdir(exist_ok=True)
    (root / REVIEW).write_text(json.dumps(value))


def test_books_that_balance_pass_and_a_single_error_holds(run: Path) -> None:
    assert rule_of(judged(), "kv-integrity")["outcome"] == "pass"
    edit_json(SERVER, lambda s: s["metrics_after"].update({KV_ERRORS: 1.0}))(run)
    value = judged()
    found = rule_of(value, "kv-integrity")
    assert (value["verdict"], found["outcome"], found["value"]) == ("hold", "fail", 1)
    assert value["reason"].startswith("int8 is held: the KV pool's books: 1 idle checks")


def test_errors_of_before_the_load_test_are_not_its_own(run: Path) -> None:
    for when in ("before", "after"):
        edit_json(SERVER, lambda s, w=when: s[f"metrics_{w}"].update({KV_ERRORS: 2.0}))(run)  # type: ignore[misc]
    assert rule_of(judged(), "kv-integrity")["outcome"] == "pass"


@pytest.mark.parametrize("gone", ["metrics_before", "metrics_after"])
def test_books_that_nobody_read_are_no_pass(run: Path, gone: str) -> None:
    edit_json(SERVER, lambda s: s.update({gone: None}))(run)
    value = judged()
    assert value["verdict"] == "undecided"
    assert "holds no seatrial_kv_integrity_errors_total" in rule_of(value, "kv-integrity")["detail"]


def test_another_server_keeps_no_such_books(run: Path) -> None:
    load = "results/int8/load/load.json"
    edit_json(load, lambda v: v["header"]["engine"].update(name="foreign at http://h (unverified)"))(run)
    edit_json(SERVER, lambda s: s.update(metrics_after=None))(run)
    found = rule_of(judged(), "kv-integrity")
    assert (found["outcome"], found["detail"][:20]) == ("not_applicable", "not measurable here:")


def test_nobody_asked_is_said_and_is_no_pass_where_the_policy_asks(run: Path) -> None:
    found = rule_of(judged(), "review")
    assert found["outcome"] == "not_applicable"
    assert found["detail"].startswith("not asked")
    change_params(run, lambda raw: _policy_rule(raw, "review").update(required=True, severity="blocking"))
    value = judged()
    assert value["verdict"] == "undecided"
    assert value["settle"][0]["rule"] == "review"


@pytest.mark.parametrize(
    ("difference", "outcome"), [(0.1, "pass"), (-0.2, "pass"), (-0.4, "undecided"), (-0.9, "fail")]
)
def test_the_whole_interval_decides(run: Path, difference: float, outcome: str) -> None:
    change_params(run, lambda raw: _policy_rule(raw, "review").update(severity="blocking"))
    _ratings(run, difference)
    value = judged()
    found = rule_of(value, "review/clarity")
    assert found["outcome"] == outcome
    assert found["interval"] == pytest.approx([difference - 0.2, difference + 0.2])
    assert value["verdict"] == {"pass": "ship", "fail": "hold"}.get(outcome, outcome)
    assert "of 2026.11 on 40 items" in found["detail"]


def test_raters_who_do_not_agree_decide_nothing(run: Path) -> None:
    _ratings(run, -2.0, problem="raters do not agree: alpha is 0.10, below 0.667", alpha=0.1)
    found = rule_of(judged(), "review/clarity")
    assert (found["outcome"], found["detail"]) == ("undecided", "raters do not agree: alpha is 0.10, below 0.667")


def test_ratings_of_another_build_or_that_cannot_be_read_are_no_pass(run: Path) -> None:
    change_params(run, lambda raw: _policy_rule(raw, "review").update(required=True))
    _ratings(run)
    assert rule_of(judged(), "review", "int4")["detail"] == "not asked of int4: the ratings are of int8"
    (run / REVIEW).write_text('{"candidate": 3}')
    found = rule_of(judged(), "review")
    assert found["outcome"] == "undecided"
    assert "is not what `seatrial review import` writes" in found["detail"]


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        ({"interval": [0.1]}, "criteria.clarity.interval: List should have at least 2 items"),
        ({"interval": [0.2, 0.1]}, "its interval ends before it begins: [0.2, 0.1]"),
        ({"interval": ["a", "b"]}, "(found 'a')"),
        ({"alpha": None}, "it has an interval and no problem, but alpha is null"),
        ({"candidate_mean": None, "problem": ""}, "but candidate_mean is null"),
        ({"baseline_mean": "4.0"}, "criteria.clarity.baseline_mean: Input should be a valid number (found '4.0')"),
        ({"items": 39.5}, "(found 39.5)"),
        ({"confidence": "high"}, "criteria.clarity.confidence"),
        ({"difference": 1e400}, "Infinity is not a figure"),
    ],
)
def test_ratings_edited_by_hand_are_named_with_what_was_found(run: Path, edit: dict[str, Any], words: str) -> None:
    _ratings(run, **edit)
    found = rule_of(judged(), "review")
    assert found["outcome"] == "undecided"
    assert found["detail"].startswith("reports/review.json ")
    assert words in found["detail"]


def test_a_number_too_large_for_a_figure_is_none(run: Path) -> None:
    _ratings(run)
    (run / REVIEW).write_text((run / REVIEW).read_text().replace('"alpha": 0.8', '"alpha": 1e999'))
    assert "criteria.clarity.alpha: Input should be a finite number" in rule_of(judged(), "review")["detail"]


@pytest.mark.parametrize("part", ["model", "engine", "quantisation", None])
def test_ratings_of_an_earlier_build_of_the_tier_are_no_pass(run: Path, part: str | None) -> None:
    _ratings(run)

    def age(review: dict[str, Any]) -> None:
        review["build"] = None if part is None else review["build"] | {part: {"name": "old", "digest": "old"}}

    edit_json(REVIEW.as_posix(), age)(run)
    found = rule_of(judged(), "review")
    assert found["outcome"] == "not_applicable"
    assert (f"of another {part}" if part else "do not say of which") in found["detail"]


def test_new_ratings_make_a_verdict_stale(run: Path) -> None:
    judged()
    assert verdict_exit_code()[0] == 0
    _ratings(run)
    code, text = verdict_exit_code()
    assert code == 2
    assert f"{REVIEW.as_posix()} has changed since" in text
