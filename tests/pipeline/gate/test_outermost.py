"""A planted failing control comes out red through every layer: the stage in DVC, `seatrial trial`, make, the workflow.

The project is a made-up run whose graph is the shipped gate stage alone, so that DVC, make and the workflow's own
command run for real in seconds. `tests/test_graph.py` runs the whole graph.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.pipeline.gate.factory import records, write_load
from tests.pipeline.gate.helpers import slow

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def project(run: Path) -> Path:
    """The shipped Makefile and gate stage over a made-up run; ``.venv`` leads to the interpreter of the tests."""
    shutil.copy(ROOT / "Makefile", run)
    graph: dict[str, Any] = yaml.safe_load((ROOT / "dvc.yaml").read_text())
    gate = graph["stages"]["gate"]
    for name in gate["deps"]:
        if not (run / name).exists():
            (run / name).parent.mkdir(parents=True, exist_ok=True)
            (run / name).symlink_to(ROOT / name)
    (run / "dvc.yaml").write_text(yaml.safe_dump({"stages": {"gate": gate}}))
    binaries = run / ".venv/bin"
    binaries.mkdir(parents=True)
    for name, module in (("python", ""), ("seatrial", "-m pipeline.cli")):
        (binaries / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {module} "$@"\n')
        (binaries / name).chmod(0o755)
    (run / "requirements").mkdir()
    for name in ("requirements/lock-cpu.txt", "pyproject.toml", ".venv/.installed-cpu"):  # the stamp is made last
        (run / name).touch()
    subprocess.run(["git", "init", "-q"], check=True)
    subprocess.run([sys.executable, "-m", "dvc", "init", "-q"], check=True, env=_env())
    return run


def _env() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "DVC_NO_ANALYTICS": "1"}


def _code(*command: str) -> tuple[int, str]:
    done = subprocess.run(command, env=_env(), capture_output=True, text=True, timeout=240)
    return done.returncode, done.stdout + done.stderr


def _workflow_step() -> str:
    """What the pull-request workflow runs for its verdict, as it stands there, without the A/B of two builds."""
    jobs = yaml.safe_load((ROOT / ".github/workflows/pull-request.yml").read_text())["jobs"]
    steps = [s for job in jobs.values() for s in job["steps"] if "checks.pull_request" in str(s.get("run"))]
    assert len(steps) == 1
    assert not steps[0].get("continue-on-error")
    run, against = str(steps[0]["run"]), '--base "$BASE"'
    assert against in run
    return run.replace(against, "--no-ab")


def test_a_planted_failing_control_is_red_at_every_layer_and_its_repair_green(project: Path) -> None:
    good = {name: (project / "results/int8/load" / name).read_bytes() for name in ("records.parquet", "load.json")}
    write_load(project, "int8", records(1, change=slow(30, "ttft")))
    code, said = _code("bash", "-e", "-c", _workflow_step())
    assert code == 1, said
    assert "HOLD: int8 is held: P95 time to first token" in said
    code, said = _code(sys.executable, "-m", "pipeline.cli", "verdict")
    assert code == 1, said
    code, said = _code("make", "trial")  # make has one code for every failure
    assert code == 2, said
    assert "HOLD: " in said
    assert "didn't change" in said  # the stage itself is cached: it is the verdict that is red, not the stage
    for name, content in good.items():
        (project / "results/int8/load" / name).write_bytes(content)
    code, said = _code("make", "trial")
    assert code == 0, said
    assert "SHIP: int8 may ship" in said
