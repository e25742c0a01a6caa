"""The gates table: what each rule is held beside, and how its figure went over the stage."""

from __future__ import annotations

import math
from pathlib import Path
from xml.etree import ElementTree

import pytest

from pipeline.params import Params
from pipeline.report.gates import GateRow, gate_rows, latency_figure, spark
from pipeline.report.inputs import RunData, read_run
from pipeline.report.sections import all_series, baseline_of
from pipeline.report.summary import summarise
from tests.pipeline.report import extras, synthetic

Run = tuple[Path, Params]


def row(run: RunData, rule: str, tier: str = "int8") -> GateRow:
    return next(g for g in gate_rows(run, tier, all_series(run)) if g.rule.raw["id"] == rule)


def test_without_a_release_latency_is_held_beside_the_reference(whole_run: Run) -> None:
    run = read_run(*whole_run)
    then = run.tiers["bf16"].load["stages"]["short_burst"]["ttft_ms"]["p95"]  # type: ignore[index]
    found = row(run, "ttft_p95/short_burst")
    assert (found.whose, found.term) == ("bf16", "ttft")
    assert found.delta == f"{100 * (301.2 / then - 1):+.1f} %".replace("-", "−")
    assert found.record is not None
    assert found.record.href == "../results/int8/load/load.json"
    reference = row(run, "ttft_p95/short_burst", "bf16")
    assert (reference.then, reference.delta) == ("", "")
    assert "no baseline yet" in reference.why_none


def test_a_release_on_the_same_machine_is_the_baseline(run_copy: Run) -> None:
    extras.release(run_copy[0], faster=0.5)
    run = read_run(*run_copy)
    now = run.tiers["int8"].load["stages"]["short_burst"]["ttft_ms"]["p95"]  # type: ignore[index]
    found = row(run, "ttft_p95/short_burst")
    assert found.whose == extras.BASELINE
    assert found.delta == f"{100 * (301.2 / (now / 2) - 1):+.1f} %"
    assert baseline_of(run, "ttft", "short_burst")[0.95] == pytest.approx(now / 2)
    accuracy = row(run, "accuracy_delta")
    assert (accuracy.whose, accuracy.delta) == ("bf16", "−0.4 points")


def test_a_release_on_another_machine_is_no_baseline_of_latency(run_copy: Run) -> None:
    extras.release(run_copy[0], machine={"cores": 64})
    run = read_run(*run_copy)
    assert row(run, "ttft_p95/short_burst").whose == "bf16"
    assert baseline_of(run, "ttft", "short_burst") == {}
    assert summarise(run).against_baseline.startswith("Only the engine differs.")


def test_a_baseline_whose_record_is_gone_is_named(run_copy: Run) -> None:
    extras.release(run_copy[0])
    (run_copy[0] / f"releases/{extras.BASELINE}.json").unlink()
    run = read_run(*run_copy)
    assert run.release is None
    assert f"releases/{extras.BASELINE}.json" in run.missing["baseline"]


@pytest.mark.parametrize(
    ("rule", "want"),
    [
        ({"id": "ttft-p99/a", "title": "P99 time to first token, a"}, ("ttft", "p99")),
        ({"id": "x", "title": "P50 inter-token latency, a"}, ("itl", "p50")),
        ({"id": "errors", "title": "requests that failed"}, None),
    ],
)
def test_a_rule_on_a_percentile_is_told_by_its_name(rule: dict[str, str], want: tuple[str, str] | None) -> None:
    assert latency_figure(rule) == want


def test_a_sparkline_breaks_where_a_step_has_no_figure() -> None:
    drawn = spark([1.0, 3.0, math.nan, 2.0, math.inf], "P95", "ms")
    root = ElementTree.fromstring(str(drawn))
    path = root.find("path")
    assert path is not None
    assert path.attrib["d"].count("M") == 2
    assert root.findtext("title") == "P95: 1.00 to 3.00 ms, 2.00 at the end"
    assert spark([math.nan, 5.0], "P95", "ms") is None


def test_an_undecided_verdict_says_what_would_settle_it(run_copy: Run) -> None:
    extras.verdict_as(run_copy[0], "undecided")
    s = summarise(read_run(*run_copy))
    assert [r.text for r in s.settle] == [
        "P95 time to first token, short_burst: 181 more independent requests with none over the limit "
        "(about 6.2 min of measuring)"
    ]
    assert s.settle_time == "In all about 6.2 more minutes of measuring, within the policy's budget of 20.0 min."
    assert s.deciding == "ttft-p95/short_burst"
    extras.verdict_as(run_copy[0], "ship")
    assert summarise(read_run(*run_copy)).settle == []


def test_the_pair_marks_what_differs(run_copy: Run) -> None:
    extras.release(run_copy[0])
    pair = {r.what: r for r in summarise(read_run(*run_copy)).pair}
    assert {k: (r.reference and r.reference[2], r.baseline and r.baseline[2]) for k, r in pair.items()} == {
        "model": (False, False),
        "engine": (False, True),
        "quantisation": (True, False),
        "evalset": (False, False),
        "workload": (False, False),
    }
    assert synthetic.header("int8", "ci")["engine"]["name"] == (pair["engine"].candidate or ("", ""))[0]
