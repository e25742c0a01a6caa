from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.params import Params
from pipeline.report import numbers as say
from pipeline.report.inputs import read_run
from pipeline.report.summary import Identity, changed_in_words, identities, ready, summarise
from tests.pipeline.report import synthetic

A, B = ("a", "1" * 64), ("b", "2" * 64)


def test_one_difference_is_attributed() -> None:
    rows = [Identity("model", A, A, True), Identity("quantisation", B, A, False)]
    assert changed_in_words(rows) == ("Only the quantisation differs", "quantisation: a → b.")


def test_two_differences_are_confounded() -> None:
    rows = [Identity("engine", B, A, False), Identity("quantisation", B, A, False)]
    headline, detail = changed_in_words(rows)
    assert headline == "2 of the four differ: confounded"
    assert "cannot be attributed" in detail


def test_evalset_and_workload_are_one_of_the_four() -> None:
    rows = [Identity("evalset", B, A, False), Identity("workload", B, A, False)]
    assert changed_in_words(rows)[0] == "Only the evalset differs"


def test_unknown_provenance_is_never_called_the_same() -> None:
    headline, detail = changed_in_words([Identity("model", None, A, None)])
    assert headline == "Nothing known to differ"
    assert detail == "Unknown: model (no provenance)."


def test_identities_come_from_the_headers(run_copy: tuple[Path, Params]) -> None:
    path = run_copy[0] / "results/int8/load/load.json"
    load = json.loads(path.read_text())
    load["header"]["workload"]["digest"] = "f" * 64
    path.write_text(json.dumps(load))
    rows = {r.what: r.same for r in identities(read_run(*run_copy), "int8", "bf16")}
    assert rows == {"model": True, "engine": True, "quantisation": False, "evalset": True, "workload": False}


def test_the_baseline_is_named_with_what_differs_from_it(run_copy: tuple[Path, Params]) -> None:
    path = run_copy[0] / "reports/verdict.json"
    verdict = json.loads(path.read_text())
    one, two = {"name": "one", "digest": "1" * 64}, {"name": "two", "digest": "2" * 64}
    parts = {"model": {"now": one, "then": one, "differs": False}, "engine": {"now": two, "then": one, "differs": True}}
    verdict["baseline"] = {"name": "2026.48", "promoted_at": "2026-11-25T08:00:00Z"}
    verdict["what_changed"]["against"]["baseline"] = parts
    path.write_text(json.dumps(verdict))
    s = summarise(read_run(*run_copy))
    assert s.baseline == "2026.48"
    assert s.against_baseline == "Only the engine differs. engine: one → two."


def test_summary_without_a_verdict_gives_the_reason(tmp_path: Path) -> None:
    s = summarise(read_run(tmp_path, synthetic.params_of(tmp_path)))
    assert (s.verdict, s.word) == ("none", "No verdict")
    assert "reports/verdict.json does not exist" in s.reason
    assert s.candidate == "int8"


@pytest.mark.parametrize(("better", "inside"), [("lower", True), ("higher", False)])
def test_bullet_shades_the_good_side(better: str, inside: bool) -> None:
    rule = ready({"outcome": "pass", "value": 5, "limit": 10, "interval": [4, 6], "better": better, "unit": "ms"})
    b = rule.bullet
    assert b is not None
    assert 0 <= b["lo"] < b["value"] < b["hi"] < b["limit"] <= 100
    assert (b["good_from"] <= b["value"] <= b["good_to"]) is inside


def test_an_open_interval_is_written_without_infinity() -> None:
    assert (
        ready({"outcome": "fail", "value": 5, "limit": 4, "interval": [3, None], "unit": "ms"}).interval == "from 3 ms"
    )


def test_an_open_end_runs_to_the_edge_of_the_axis() -> None:
    rule = ready({"outcome": "pass", "value": 5, "limit": 10, "interval": [None, 6], "better": "lower", "unit": "ms"})
    assert rule.interval == "up to 6 ms"
    assert rule.bullet is not None
    assert rule.bullet["lo"] == 0
    assert rule.bullet["hi"] < rule.bullet["limit"]


def test_a_rule_without_a_value_has_no_bullet() -> None:
    rule = ready({"outcome": "undecided", "value": None, "limit": 4, "unit": "ms"})
    assert rule.bullet is None
    assert rule.value == "not measured"


@pytest.mark.parametrize(
    ("made", "want"),
    [
        (say.number(0.003214), "0.00321"),
        (say.number(12.345), "12.3"),
        (say.number(1234.5), "1,234"),
        (say.number(1250000), "1,250,000"),
        (say.number(-0.4), "−0.400"),
        (say.milliseconds(None), "not measured"),
        (say.milliseconds(float("inf")), "not measured"),
        (say.share(0.8734), "87.3 %"),
        (say.points(0.012), "+1.2 points"),
        (say.points(-0.0001), "0.0 points"),
        (say.with_bytes(92160), "90.0 KiB"),
        (say.with_bytes(512), "512 B"),
        (say.seconds(0.42), "0.4 s"),
        (say.seconds(59.7), "1 min 00 s"),
        (say.seconds(3900), "1 h 05 min"),
        (say.moment("2026-12-01T10:20:30Z"), "2026-12-01 10:20 UTC"),
        (say.with_unit(0.05, "share"), "5.0 %"),
        (say.with_unit(-0.4, "points"), "−0.4 points"),
        (say.with_unit(301.2, "ms"), "301 ms"),
        (say.with_unit(-3, "percent"), "−3.00 %"),
        (say.count(26.0), "26"),
        (say.with_unit(0.0, "cases"), "0 cases"),
        (say.with_unit(1.0, "checks"), "1 check"),
        (say.count(26.5), "26.5"),
        (say.with_unit(None, "ms"), "not measured"),
    ],
)
def test_numbers(made: str, want: str) -> None:
    assert made == want
