"""metrics.json, the CSVs and the Markdown summary."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from pipeline.files import write_json
from pipeline.params import Params
from pipeline.report.build import build
from pipeline.report.inputs import read_run
from pipeline.report.markdown import inline, markdown
from pipeline.report.metrics import metrics_of
from pipeline.report.plots import COLUMNS, worst, write_plots
from pipeline.report.summary import summarise
from pipeline.report.tiers import all_figures
from tests.pipeline.report import synthetic

Run = tuple[Path, Params]


def leaves(value: Any, path: str = "") -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return [x for k, v in value.items() for x in leaves(v, f"{path}.{k}")]
    return [(path, value)]


def test_metrics_hold_the_figures_of_every_tier(built: Path) -> None:
    metrics = json.loads((built / "reports/metrics.json").read_text(), parse_constant=pytest.fail)
    load = json.loads((built / "results/int8/load/load.json").read_text())
    evaluation = json.loads((built / "results/int8/eval/eval.json").read_text())
    int8 = metrics["tiers"]["int8"]
    assert metrics["verdict"] == "ship"
    assert int8["accuracy"] == pytest.approx(evaluation["accuracy"], abs=1e-4)
    assert int8["weights_mib"] == pytest.approx(synthetic.TIERS["int8"][0], abs=0.06)
    for stage, block in load["stages"].items():
        assert int8[stage]["ttft_p95_ms"] == pytest.approx(block["ttft_ms"]["p95"], abs=0.01)
        assert int8[stage]["itl_p99_ms"] == pytest.approx(block["itl_ms"]["p99"], abs=0.01)
    assert set(metrics["tiers"]) == set(synthetic.TIERS)


def test_an_absent_metric_is_null_and_listed_with_its_reason(built: Path) -> None:
    metrics = json.loads((built / "reports/metrics.json").read_text())
    assert metrics["tiers"]["int8"]["long_context"]["ttft_p99_ms"] is None
    told = {a["figure"]: a["reason"] for a in metrics["not_measured"]}
    assert "a P99 needs at least 100" in told["int8.long_context.ttft_p99_ms"]
    absent = [p for p, v in leaves(metrics["tiers"]) if v is None]
    assert len(absent) == len(metrics["not_measured"])


def test_infinities_from_a_foreign_writer_become_null(run_copy: Run) -> None:
    path = run_copy[0] / "results/int8/eval/eval.json"
    path.write_text(re.sub(r'"accuracy": [\d.]+,\s*"correct"', '"accuracy": NaN, "correct"', path.read_text()))
    run = read_run(*run_copy)
    metrics = metrics_of(run, all_figures(run))
    assert all(not isinstance(v, float) or math.isfinite(v) for _, v in leaves(metrics))
    write_json(run_copy[0] / "metrics.json", metrics)  # refuses NaN


def test_csvs_have_their_columns_and_rows(built: Path) -> None:
    for name, columns in COLUMNS.items():
        frame = pl.read_csv(built / f"reports/plots/{name}.csv")
        assert frame.columns == list(columns)
        assert set(frame["tier"]) == set(synthetic.TIERS)
        assert "NaN" not in (built / f"reports/plots/{name}.csv").read_text()
    shares = pl.read_csv(built / "reports/plots/ttft_ecdf.csv")
    top = shares.group_by("tier", "stage").agg(pl.col("share").max())
    failing = top.filter((pl.col("tier") == "int4-g64") & (pl.col("stage") == "mixed_random"))["share"].item()
    assert failing == pytest.approx(85 / 87, abs=1e-4)
    assert top.filter(pl.col("tier") == "bf16")["share"].min() == 1


def test_csvs_without_rows_still_have_a_heading(tmp_path: Path) -> None:
    write_plots(tmp_path, {name: [] for name in COLUMNS})
    for name, columns in COLUMNS.items():
        assert (tmp_path / f"{name}.csv").read_text() == ",".join(columns) + "\n"


def test_the_worst_stage_is_unknown_if_any_stage_is(whole_run: Run) -> None:
    figures = all_figures(read_run(*whole_run))["bf16"]
    assert worst(figures, "ttft_ms", "p99") is None
    known = worst(figures, "ttft_ms", "p95")
    assert known == max(v.value or 0 for (m, q), v in _cells(figures) if (m, q) == ("ttft_ms", "p95"))


def _cells(figures: Any) -> list[tuple[tuple[str, str], Any]]:
    return [x for s in figures.stages.values() for x in s.latency.items()]


def test_summary_has_verdict_reason_tiers_and_open_rules(built: Path) -> None:
    text = (built / "reports/summary.md").read_text()
    assert text.startswith("## 🟢 Seatrial: SHIP\n")
    assert "Every blocking rule passes for int8; one advisory rule is undecided." in text
    assert len(re.findall(r"^\| (?!tier|---)", text, re.M)) == len(synthetic.TIERS)
    assert "**undecided** (advisory): P99 TTFT, long\\_context" in text
    assert "### 1 failing or undecided rule\n" in text
    widths = {line.count("|") for line in text.splitlines() if line.startswith("|")}
    assert len(widths) == 1


def test_summary_of_nothing(tmp_path: Path) -> None:
    run = read_run(tmp_path, synthetic.params_of(tmp_path))
    text = markdown(run, summarise(run), all_figures(run))
    assert "NO VERDICT" in text
    assert "not measured" in text
    assert "No rule of the candidate fails" not in text


@pytest.mark.parametrize(
    "hostile",
    ["a | b", "# x\n# y", "![i](http://e.x/i.png)", "<img src=x>", "@team", "`code`", "[l](javascript:1)", "www.e.x"],
)
def test_markdown_text_cannot_become_markup(hostile: str) -> None:
    out = inline(hostile)
    assert "\n" not in out
    assert not re.search(r"(?<!\\)[|`\[\]<>#!]", out)
    assert not re.search(r"@\w|://|www\.", out)


def test_build_twice_gives_the_same_metrics_and_plots(built: Path, whole_run: Run, tmp_path: Path) -> None:
    before = {p.name: p.read_bytes() for p in (built / "reports/plots").iterdir()}
    metrics = (built / "reports/metrics.json").read_bytes()
    build(built, whole_run[1])
    assert {p.name: p.read_bytes() for p in (built / "reports/plots").iterdir()} == before
    assert (built / "reports/metrics.json").read_bytes() == metrics
