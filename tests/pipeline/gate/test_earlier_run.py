"""Results that lie there from before, though a stage that leads to them failed since, are not judged as this run's."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.gate.verdict import verdict_exit_code
from pipeline.stage import FAILED
from tests.pipeline.gate.helpers import judged, rule_of

SAID = "no space left on the device"


def fail(label: str) -> Path:
    path = FAILED / f"{label}.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{SAID}\n")
    return path


@pytest.mark.parametrize(
    ("label", "of"),
    [
        ("fetch", ["results/int8/eval", "results/int8/load", "results/bf16/eval", "results/bf16/load"]),
        ("quantize@int8", ["results/int8/eval", "results/int8/load"]),
        ("evaluate@int8", ["results/int8/eval"]),
        ("loadtest@bf16", ["results/bf16/load"]),  # the reference, to which it is compared
    ],
)
def test_the_verdict_says_whose_last_run_failed(run: Path, label: str, of: list[str]) -> None:
    assert judged()["verdict"] == "ship"
    fail(label)
    value = judged()
    rule = rule_of(value, "provenance")
    assert (value["verdict"], rule["outcome"]) == ("undecided", "undecided")
    for folder in of:
        assert f"{folder} is of an earlier run: the last run of {label} did not end well ({SAID})" in rule["detail"]
    assert rule["detail"].count("is of an earlier run") == len(of)
    assert "of an earlier run" in value["reason"]


def test_a_report_on_the_regression_set_from_before_does_not_count(run: Path) -> None:
    fail("check_evalsets")
    value = judged()
    rule = rule_of(value, "evalset")
    assert (value["verdict"], rule["outcome"]) == ("undecided", "undecided")
    assert (
        f"reports/evalset.json is of an earlier run: the last run of check_evalsets did not end well ({SAID})"
        in (rule["detail"])
    )


def test_a_verdict_that_was_reached_before_is_taken_back(run: Path) -> None:
    """Nothing that it rests on need have changed: the stage that failed left the old results where they were."""
    judged()
    assert verdict_exit_code()[0] == 0
    for label in ("quantize@other", "drill"):  # no part of this trial
        fail(label)
    assert verdict_exit_code()[0] == 0
    left = fail("quantize@int8")
    code, text = verdict_exit_code()
    assert code == 2
    assert "is of an earlier run: the last run of quantize@int8 did not end well (no space left on the device)" in text
    left.unlink()
    assert verdict_exit_code()[0] == 0
