"""What the page says of the gate itself, of people's ratings, of causes and of what was not measured."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.diagnosis.causes import Cause, Finding
from pipeline.drill.aa import RECORD
from pipeline.gate.explained import OVER
from pipeline.params import Params
from pipeline.report import evidence, figures, findings
from pipeline.report import walked as walked_module
from pipeline.report.build import build
from pipeline.report.inputs import read_run
from pipeline.report.page import context_of, render_page
from pipeline.report.sections import all_series
from pipeline.report.summary import summarise
from pipeline.report.tiers import all_figures
from pipeline.report.trust import trust_of
from pipeline.report.walked import Verdicts, diagnosed, walked
from tests.pipeline.report import extras, html_checks

Run = tuple[Path, Params]


def test_nothing_is_claimed_where_nothing_was_counted(whole_run: Run) -> None:
    trust = trust_of(read_run(*whole_run))
    assert trust.aa is None
    assert "no record yet" in trust.aa_reason
    assert trust.drill is None
    assert "no table yet" in trust.drill_reason
    assert trust.aa_interval == "not measured"


def test_false_alarms_are_reported_with_their_interval(run_copy: Run) -> None:
    extras.aa(run_copy[0], "ship " * 40)
    trust = trust_of(read_run(*run_copy))
    assert trust.aa is not None
    assert (trust.aa.comparisons, trust.aa.held) == (40, 0)
    assert trust.aa_interval == "0.0 % … 8.8 %"  # 1 - 0.025 ** (1 / 40) = 0.0881: Clopper-Pearson of 0 of 40
    with (run_copy[0] / RECORD).open("a") as f:
        f.write("torn")
    broken = trust_of(read_run(*run_copy))
    assert broken.aa is None
    assert "aa.jsonl:41 is not a comparison" in broken.aa_reason


def test_planted_slowdowns_are_told_as_measured_and_as_drawn_again(run_copy: Run) -> None:
    root = run_copy[0]
    nothing = trust_of(read_run(*run_copy))
    assert nothing.planted == []
    assert "no record yet" in nothing.planted_reason
    assert "never drawn again" in nothing.resampled_reason
    for add in (extras.aa, extras.power, extras.resampled):
        add(root)
    trust = trust_of(read_run(*run_copy))
    told = [(str(p.planted), p.measured_interval, p.drawn_interval) for p in trust.planted]
    assert told == [
        ("decode 10 % slower", "75.1 % … 99.9 %", "not measured"),  # Clopper-Pearson of 19 of 20
        ("prefill 7 % slower", "not measured", "0.0 % … 3.1 %"),
    ]
    assert trust.nothing_planted is not None
    assert trust.nothing_planted.held == 0.012
    extras.aa(root, "ship")  # the record grows: what was drawn from it before is no longer of it
    stale = trust_of(read_run(*run_copy))
    assert stale.resampled is None
    assert "was drawn from another record than pipeline/drill/aa.jsonl" in stale.resampled_reason
    assert [str(p.planted) for p in stale.planted] == ["decode 10 % slower"]


def test_missed_faults_come_first(run_copy: Run) -> None:
    extras.drill(run_copy[0])
    trust = trust_of(read_run(*run_copy))
    assert [f["id"] for f in trust.missed] == ["leaked-item", "seed-ignored", "prefill-slow"]
    (run_copy[0] / "reports/drill/drill.json").write_text("[]")
    assert "holds no table" in trust_of(read_run(*run_copy)).drill_reason


def test_each_rule_says_what_it_can_tell_at_this_size(whole_run: Run) -> None:
    trust = trust_of(read_run(*whole_run))
    lines = {r.id: r.lines for r in trust.rules}
    assert "short_burst: 117 requests, were they independent: passes in 4 of 5" in " ".join(lines["ttft-p95"])
    assert lines["provenance"] == []
    assert str(whole_run[0]) not in str(trust)
    params = whole_run[1].model_copy(update={"gate": {"policy": "absent"}})
    assert trust_of(read_run(whole_run[0], params)).rules_reason


def test_the_walk_names_a_cause_or_says_that_it_has_none(whole_run: Run, tmp_path: Path) -> None:
    run = walked(read_run(*whole_run))
    assert run.reason == ""
    assert (run.run, run.against) == ("int8", "bf16")
    assert {f.symptom for f in run.findings} >= {"settings", "quality"}
    empty = walked(read_run(tmp_path, whole_run[1]))
    assert empty.findings == []
    assert "holds neither load.json nor eval/items.jsonl" in empty.reason
    assert str(tmp_path) not in empty.reason


def test_the_page_says_of_the_diagnosis_what_the_verdict_says(run_copy: Run) -> None:
    row = {"step": 1, "symptom": "P99 time to first token", "finding": f"{OVER}P95", "evidence": "", "suspect": "x"}
    verdict = run_copy[0] / "reports/verdict.json"

    def told(**changes: Any) -> Verdicts:
        extras.edit(verdict, lambda v: v.update(diagnosis=[row | changes]))
        found = diagnosed(read_run(*run_copy))
        assert found is not None
        return found

    named = told(cause="requests wait for a place in the batch", figure="80 of 100 ms", knob="max_num_seqs")
    assert named.lead == "Named: requests wait for a place in the batch (80 of 100 ms); try: max_num_seqs."
    assert told(figure="the logs were not kept").lead == (
        "Not explained: P99 time to first token: the logs were not kept."
    )
    assert told(finding="within limits").lead.endswith("no cause is named.")
    extras.edit(verdict, lambda v: v.update(diagnosis="edited by hand"))
    assert diagnosed(read_run(*run_copy)) is None


def test_one_cause_is_named_on_the_page(whole_run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The walk finds the candidate worse than the reference in what no rule limits: the verdict alone names."""
    empty = '<svg width="1" height="1" viewBox="0 0 1 1"></svg>'
    monkeypatch.setattr(figures.vl_convert, "vegalite_to_svg", lambda spec, **options: empty)
    worse = Finding("throughput", "worse", "half of it", (Cause("batch_full", 1.0, "all 16 places taken"),))
    monkeypatch.setattr(walked_module, "walk", lambda mine, theirs: [worse])
    whole = read_run(*whole_run)
    run = replace(whole, tiers={t: whole.tiers[t] for t in ("int8", "bf16")})
    context = context_of(run, summarise(run), all_figures(run), all_series(run), "2026-12-01T12:00:00Z")
    text = " ".join(html_checks.read(render_page(context)).text.split())
    assert "No rule of these fails, so no cause is named." in text
    assert "Named:" not in text
    assert "all 16 places taken" in text
    alone = render_page(context | {"diagnosed": None})  # as where there is no verdict
    assert "Named: the batch is full while requests wait (all 16 places taken)" in alone


def test_findings_are_marked_in_their_stage_and_metric(run_copy: Run) -> None:
    extras.findings(run_copy[0])
    run = read_run(*run_copy)
    assert findings.marks_of(run, "int8", "short_burst", "ttft") == [
        {"t": 11.0, "at": True, "what": "step of P50 +38 %"}
    ]
    assert findings.marks_of(run, "int8", "short_burst", "itl") == []
    both = [[m["what"] for m in findings.marks_of(run, "int8", "mixed_random", x)] for x in ("ttft", "itl")]
    assert both == [["stall"], ["trend of P95 +21 %", "stall"]]
    assert findings.marks_of(run, "bf16", "short_burst", "ttft") == []


def test_holes_are_told_from_what_is_there(whole_run: Run, run_copy: Run) -> None:
    run = read_run(*whole_run)
    told = " ".join(evidence.holes(run, all_figures(run)))
    assert "not measurable here: this run was made on Testcore 2000 x2" in told
    assert "P99 of TTFT, for too few requests: int8: long_context, int8: mixed_random" in told
    assert "nobody rated them" in told
    extras.ratings(run_copy[0])
    rated = read_run(*run_copy)
    assert "nobody rated" not in " ".join(evidence.holes(rated, all_figures(rated)))


def test_the_page_shows_all_of_it(tmp_path: Path, whole_run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = '<svg width="1" height="1" viewBox="0 0 1 1"></svg>'
    monkeypatch.setattr(figures.vl_convert, "vegalite_to_svg", lambda spec, **options: empty)
    root, params = tmp_path, whole_run[1]
    for tier in ("int8", "bf16"):
        shutil.copytree(whole_run[0] / "results" / tier, root / "results" / tier)
    shutil.copytree(whole_run[0] / "reports", root / "reports")
    for add in (extras.release, extras.aa, extras.power, extras.resampled, extras.drill, extras.ratings):
        add(root)
    extras.verdict_as(root, "hold")
    build(root, params)
    seen = html_checks.read((root / "reports/scorecard.html").read_text(encoding="utf-8"))
    text = " ".join(seen.text.split())
    assert seen.problems == []
    assert set(seen.targets) <= set(seen.ids)
    assert {r for r in seen.records if not (root / "reports" / r).exists()} == set()
    assert "1 of 40" in text
    told = "tells from none with 80 % power, of the blocking figure that varies most: 4.0 % after 5 minutes, "
    assert f"{told}3.0 % after 10 minutes, 2.0 % after 20 minutes." in text
    assert "decode 10 % slower19 of 2075.1 % … 99.9 %12" in text
    assert "prefill 7 % slowernot measured––34.5 %0.0 % … 3.1 %" in text
    drawn = "Drawn again from the 240 pairs of rounds that were measured, 1000 times: 1.2 % held"
    assert f"{drawn} (0.0 % … 3.1 % over other comparisons of the kind)" in text
    assert "2 of 3 planted faults caught, 1 named" in text
    assert "raters do not agree: alpha is 0.41" in text
    assert "Only the engine differs" in text
    assert "2026.48" in text
    assert "evaluation team, until 2027-01-31" in text
