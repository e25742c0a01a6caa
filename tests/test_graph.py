"""The whole graph on the real model, through DVC, with a shortened profile: what a user's `make trial` does.

The tests run in order in one project directory (a copy of the tracked files), each building on the state before.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]  # bounds a hang


def _copy_tracked(target: Path) -> None:
    names = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    ).stdout.split(b"\0")
    for name in filter(None, names):
        source = ROOT / name.decode()
        if source.is_file() and source.name != "dvc.lock":
            (target / name.decode()).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target / name.decode())
    subprocess.run(["git", "init", "-q"], cwd=target, check=True)


def _change(project: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = project / "params.yaml"
    raw = yaml.safe_load(path.read_text())
    change(raw)
    path.write_text(yaml.safe_dump(raw, sort_keys=False))


def _shorten(raw: dict[str, Any]) -> None:
    raw["tiers"] = ["bf16", "int8"]
    raw["load"]["profile"] = "smoke"
    raw["evaluation"]["items"] = 2


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("project")
    _copy_tracked(directory)
    _change(directory, _shorten)
    return directory


def _trial(project: Path, *arguments: str, module: str = "pipeline.trial") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", module, *arguments], cwd=project, capture_output=True, text=True, timeout=3000
    )


def _stages_run(output: str) -> list[str]:
    return [line.split("'")[1] for line in output.splitlines() if line.startswith("Running stage '")]


def _processes_in(project: Path) -> dict[int, list[str]]:
    """The command line of each that runs in the project's folder."""
    found = {}
    for p in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # ended meanwhile
            if p.cwd() == str(project) and p.pid != os.getpid() and p.status() != psutil.STATUS_ZOMBIE:
                found[p.pid] = p.cmdline()
    return found


def _wait_until_none(project: Path) -> None:
    deadline = time.monotonic() + 240
    while left := _processes_in(project):
        assert time.monotonic() < deadline, f"still running: {left}"
        time.sleep(0.1)


@pytest.mark.parametrize("stage", ["quantize@int8", "loadtest@bf16"])  # alone, and with a server and Locust below it
def test_killed_in_a_stage_it_leaves_no_process_behind(project: Path, stage: str) -> None:
    """SIGKILL to DVC in the middle of a stage; the next test starts again and completes."""
    log = project / f"killed-{stage}.log"
    with log.open("w") as out:
        run = subprocess.Popen(
            [sys.executable, "-m", "pipeline.trial", stage], cwd=project, stdout=out, stderr=subprocess.STDOUT
        )
        deadline = time.monotonic() + 3000
        while f"{stage}: begins" not in log.read_text():
            assert run.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        if "quantize" not in stage:  # with the server up
            while not any("engine.server" in line for line in _processes_in(project).values()):
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.05)
            time.sleep(2)
        children = {p.pid for p in psutil.Process(run.pid).children()}
        dvc = next(pid for pid, line in _processes_in(project).items() if pid in children and "dvc" in line)
        os.kill(dvc, signal.SIGKILL)
        assert run.wait(timeout=240) != 0
    _wait_until_none(project)
    assert not (project / "reports" / "stages" / f"{stage}.json").exists()


def test_from_source_to_a_verdict(project: Path) -> None:
    done = _trial(project)
    shown = done.stdout + done.stderr
    verdict = json.loads((project / "reports/verdict.json").read_text()) if done.returncode < 3 else None
    assert verdict is not None, shown
    assert set(verdict["tiers"]) == {"bf16", "int8"}
    assert done.returncode == {"ship": 0, "hold": 1, "undecided": 2}[verdict["verdict"]], shown
    assert verdict["verdict"] == "undecided", "two items a scenario and a smoke profile decide nothing"
    assert verdict["verdict"] in done.stdout.lower()
    for tier in verdict["tiers"]:
        evaluated = json.loads((project / f"results/{tier}/eval/eval.json").read_text())
        assert evaluated["errors"] == 0, evaluated
        assert evaluated["partial"] is True
        assert evaluated["header"]["quantisation"]["name"] == tier
        loaded = json.loads((project / f"results/{tier}/load/load.json").read_text())
        assert loaded["overall"]["ok"] > 0
        assert loaded["header"]["engine"] == evaluated["header"]["engine"]
    page = (project / "reports/scorecard.html").read_text()
    assert 10_000 < len(page) < 3_000_000
    assert "int8" in page
    note = json.loads((project / "reports/stages/evaluate@int8.json").read_text())
    assert note["peak_rss_bytes"] < 4 * 1024**3
    _wait_until_none(project)


def test_a_second_run_has_nothing_to_do(project: Path) -> None:
    done = _trial(project)
    assert _stages_run(done.stdout) == [], done.stdout
    assert "up to date" in done.stdout


def test_one_tiers_parameter_reruns_that_tier_only(project: Path) -> None:
    _change(project, lambda raw: raw["quantization"]["int8"].update(smoothing=0.5))
    status = _trial(project, "repro", "--dry", module="dvc")
    assert status.returncode == 0, status.stderr
    rerun = set(_stages_run(status.stdout))
    assert "quantize@int8" in rerun
    assert rerun <= {
        "quantize@int8", "plan@int8", "evaluate@int8", "loadtest@int8", "gate", "scorecard",
    }  # fmt: skip
    _change(project, lambda raw: raw["quantization"]["int8"].update(smoothing=0.65))


def test_dvc_shows_metrics_and_plots(project: Path) -> None:
    metrics = _trial(project, "metrics", "show", "--json", module="dvc")
    assert "int8" in metrics.stdout, metrics.stderr
    plots = _trial(project, "plots", "show", "--json", module="dvc")
    assert plots.returncode == 0, plots.stderr
    assert "latency_over_time" in plots.stdout


def test_a_planted_failure_comes_out_red_at_the_outermost_layer(project: Path) -> None:
    """A regression set that leaks into the calibration text must hold the release, through DVC and the command."""
    calibration = sorted((project / "pipeline/quantize/calibration").glob("*.jsonl"))[0]
    text = max((json.loads(line).get("text", "") for line in calibration.read_text().splitlines()), key=len)
    target = sorted((project / "evalsets/core/items").glob("*.jsonl"))[0]
    lines = target.read_text().split("\n")
    item = json.loads(lines[0])
    if item.get("messages"):
        item["messages"][-1]["content"] = text
    else:
        item["prompt"] = text
    original = target.read_text()
    target.write_text("\n".join([json.dumps(item), *lines[1:]]))
    try:
        check = _trial(project, module="pipeline.evaluation.check")
        assert check.returncode == 0, check.stderr
        gate = _trial(project, module="pipeline.gate")
        assert gate.returncode == 0, gate.stderr
        outer = _trial(project, "verdict", module="pipeline.cli")
        assert outer.returncode == 1, outer.stdout + outer.stderr
        assert "leak" in outer.stdout.lower()
    finally:
        target.write_text(original)


def test_a_broken_line_is_named_and_earlier_results_stay(project: Path) -> None:
    target = sorted((project / "evalsets/core/items").glob("*.jsonl"))[0]
    original = target.read_text()
    target.write_text(original + "{broken\n")
    before = (project / "results/bf16/load/load.json").read_bytes()
    try:
        done = _trial(project)
        assert done.returncode == 3
        assert f"{target.name}:{len(original.splitlines()) + 1}: " in done.stderr
        assert (project / "results/bf16/load/load.json").read_bytes() == before
    finally:
        target.write_text(original)
