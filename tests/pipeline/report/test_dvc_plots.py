"""The templates for ``dvc plots``: DVC fills their anchors; what comes out must draw our CSVs."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import vl_convert

from pipeline.report import plots

TEMPLATES = Path(plots.__file__).parent / "dvc_plots"
CASES = [
    ("by_stage", "latency_over_time", "t_s", "ttft_p95_ms"),
    ("by_stage", "latency_over_time", "t_s", "itl_p95_ms"),
    ("by_stage", "latency_over_time", "t_s", "output_tokens_per_s"),
    ("by_stage", "ttft_ecdf", "ttft_ms", "share"),
    ("by_stage", "itl_ecdf", "itl_ms", "share"),
    ("by_scenario", "quality_by_scenario", "accuracy", "scenario"),
    ("by_tier", "tiers", "weights_mib", "tier"),
]


@pytest.mark.parametrize(("template", "name", "x", "y"), CASES)
def test_template_draws_the_csv(built: Path, template: str, name: str, x: str, y: str) -> None:
    assert {x, y} <= plots.COLUMNS[name].keys()
    with (built / f"reports/plots/{name}.csv").open(newline="") as f:
        rows = [row | {"rev": "workspace"} for row in csv.DictReader(f)]
    text = (TEMPLATES / f"{template}.json").read_text()
    text = text.replace('"<DVC_METRIC_DATA>"', json.dumps(rows))
    for anchor, value in {"X_LABEL": x, "Y_LABEL": y, "TITLE": name, "X": x, "Y": y}.items():
        text = text.replace(f"<DVC_METRIC_{anchor}>", value)
    assert "<DVC" not in text
    svg = vl_convert.vegalite_to_svg(json.loads(text), allowed_base_urls=[])
    for tier in {row["tier"] for row in rows}:
        assert tier in svg
    marks = "mark-line" if template == "by_stage" else "mark-rect"
    assert marks in svg


def test_every_template_is_used_here() -> None:
    assert {p.stem for p in TEMPLATES.glob("*.json")} == {c[0] for c in CASES}
