from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from pipeline.report.plots import COLUMNS
from tests.pipeline.report import synthetic

ROOT = Path(__file__).resolve().parents[3]


def stage(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pipeline.report"]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240, check=False
    )


def test_the_stage_writes_all_its_outputs_even_of_an_empty_run(tmp_path: Path) -> None:
    synthetic.params_of(tmp_path)
    done = stage(tmp_path)
    assert done.returncode == 0, done.stderr
    assert "No verdict (int8): reports/scorecard.html" in done.stderr
    reports = tmp_path / "reports"
    assert {p.name for p in reports.iterdir()} == {"scorecard.html", "summary.md", "metrics.json", "plots"}
    assert {p.stem for p in (reports / "plots").iterdir()} == set(COLUMNS)


def test_without_params_it_says_so(tmp_path: Path) -> None:
    done = stage(tmp_path)
    assert done.returncode == 3
    assert "params.yaml not found" in done.stderr
    assert list(tmp_path.iterdir()) == []
