"""The workflows: pinned, with few permissions, and every step a command that is here and runs here."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
SCRIPTS = sorted((ROOT / ".github/scripts").glob("*.sh"))
USES = re.compile(r"^\s*-? *uses: (\S+)@([0-9a-f]{40}) # v\d+\.\d+\.\d+$")
EXPRESSION = re.compile(r"\$\{\{")


def _read(path: Path) -> dict[str, Any]:
    value: dict[Any, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return {"on" if k is True else k: v for k, v in value.items()}  # YAML 1.1 reads a bare `on` as true


def _steps(workflow: dict[str, Any]) -> list[dict[str, Any]]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


def _named(name: str) -> dict[str, Any]:
    return _read(ROOT / ".github/workflows" / f"{name}.yml")


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda p: p.stem)
def test_actions_are_pinned_to_a_commit_and_say_which_version(path: Path) -> None:
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if "uses:" in line]
    assert lines
    assert [line for line in lines if not USES.match(line)] == []


def test_one_action_has_one_version() -> None:
    pins: dict[str, set[str]] = {}
    for path in WORKFLOWS:
        for line in path.read_text(encoding="utf-8").splitlines():
            if found := USES.match(line):
                pins.setdefault(found[1], set()).add(found[2])
    assert {name: of for name, of in pins.items() if len(of) > 1} == {}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda p: p.stem)
def test_permissions_time_limits_and_concurrency_are_stated(path: Path) -> None:
    workflow = _read(path)
    assert workflow["permissions"] == {"contents": "read"}
    assert {"group", "cancel-in-progress"} == workflow["concurrency"].keys()
    for name, job in workflow["jobs"].items():
        assert 0 < job["timeout-minutes"] <= 720, name
    checkouts = [s for s in _steps(workflow) if str(s.get("uses")).startswith("actions/checkout@")]
    assert [s for s in checkouts if s["with"]["persist-credentials"] is not False] == []


def test_only_the_comment_has_a_token_that_writes() -> None:
    given = {
        (path.stem, name): job["permissions"]
        for path in WORKFLOWS
        for name, job in _read(path)["jobs"].items()
        if "permissions" in job
    }
    assert given == {("comment", "comment"): {"actions": "read", "contents": "read", "pull-requests": "write"}}


def test_code_of_strangers_sees_no_secret_and_no_token() -> None:
    text = (ROOT / ".github/workflows/pull-request.yml").read_text(encoding="utf-8")
    assert _named("pull-request")["on"] == {"pull_request": None}
    assert "secrets." not in text
    assert "github.token" not in text
    assert [p.stem for p in WORKFLOWS if "pull_request_target" in _read(p)["on"]] == []


def test_the_comment_follows_the_check_and_runs_the_default_branch_alone() -> None:
    workflow = _named("comment")
    assert workflow["on"]["workflow_run"]["workflows"] == [_named("pull-request")["name"]]
    checkout = workflow["jobs"]["comment"]["steps"][0]
    assert "ref" not in checkout["with"]
    assert "repository" not in checkout["with"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda p: p.stem)
def test_every_step_is_one_command_that_is_here(path: Path) -> None:
    """No expression within a command (its value would be read by the shell), and nothing that lives only in YAML."""
    runs = [s["run"] for s in _steps(_read(path)) if "run" in s]
    assert runs
    for run in runs:
        assert "\n" not in run.strip(), run
        assert not EXPRESSION.search(run), run
        first, *rest = shlex.split(run)
        if first == "make":
            assert re.search(rf"^{re.escape(rest[0])}:", (ROOT / "Makefile").read_text(), re.MULTILINE), run
        elif first.startswith(".github/scripts/"):
            assert os.access(ROOT / first, os.X_OK), run
        else:
            assert first in {".venv/bin/python", "python"}, run
            assert rest[0] == "-m", run
            assert importlib.util.find_spec(rest[1]) is not None, run


def test_the_planted_control_runs_before_the_check() -> None:
    runs = [s.get("run", "") for s in _named("pull-request")["jobs"]["trial"]["steps"]]
    control, check = (
        next(i for i, r in enumerate(runs) if f"checks.{name}" in r) for name in ("control", "pull_request")
    )
    assert control < check
    assert not [s for s in _steps(_named("pull-request")) if "continue-on-error" in s]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda p: p.stem)
def test_caches_are_keyed_by_what_their_content_depends_on(path: Path) -> None:
    for step in _steps(_read(path)):
        if not str(step.get("uses")).startswith(("actions/cache@", "actions/cache/restore@")):
            continue
        key = step["with"]["key"]
        assert "${{ runner.os }}-${{ runner.arch }}" in key
        named = re.findall(r"'([^']+)'", key)
        assert {"params.yaml", "requirements/lock-cpu.txt"} <= set(named)
        assert [n for n in named if not (ROOT / n.removesuffix("/**")).exists()] == []


@pytest.mark.parametrize("name", ["pull-request", "nightly"])
def test_what_a_red_trial_measured_is_kept_as_it_was_restored(name: str) -> None:
    """`actions/cache` alone saves after success only; a verdict of hold would be measured anew for ever."""
    steps = _named(name)["jobs"]["trial"]["steps"]
    at = {str(s.get("uses", "")).partition("@")[0]: i for i, s in enumerate(steps)}
    restored, saved = steps[at["actions/cache/restore"]], steps[at["actions/cache/save"]]
    check = next(i for i, s in enumerate(steps) if "checks.pull_request" in s.get("run", ""))
    assert at["actions/cache/restore"] < check < at["actions/cache/save"]
    assert saved["with"]["path"] == restored["with"]["path"]
    assert {".seatrial/verdicts", ".dvc/cache", "dvc.lock"} == set(saved["with"]["path"].split())
    assert saved["with"]["key"] == f"${{{{ steps.{restored['id']}.outputs.cache-primary-key }}}}"
    assert saved["if"] == "always() && hashFiles('reports/check/check.json') != ''"


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda p: p.stem)
def test_scripts_are_sound_bash(path: Path) -> None:
    assert os.access(path, os.X_OK)
    assert "set -euo pipefail" in path.read_text(encoding="utf-8")
    subprocess.run(["bash", "-n", str(path)], check=True)


def test_scripts_name_modules_and_commands_that_are_here() -> None:
    from pipeline.cli import app

    known = {c.name for c in app.registered_commands} | {g.name for g in app.registered_groups}
    known |= {c.callback.__name__ for c in app.registered_commands if c.callback and c.name is None}
    for path in SCRIPTS:
        text = path.read_text(encoding="utf-8")
        assert [m for m in re.findall(r"-m (pipeline[\w.]+)", text) if importlib.util.find_spec(m) is None] == []
        assert set(re.findall(r"(?:\$seatrial|bin/seatrial) ([a-z-]+)", text)) - known == set()


def test_the_rotation_reminder_runs_by_its_script(tmp_path: Path) -> None:
    """As the workflow calls it, in a copy whose environment is this one."""
    copy = tmp_path / "copy"
    (copy / ".github/scripts").mkdir(parents=True)
    (copy / ".venv/bin").mkdir(parents=True)
    script = copy / ".github/scripts/nightly.sh"
    script.write_bytes((ROOT / ".github/scripts/nightly.sh").read_bytes())
    for name in ("evalsets", "params.yaml"):
        (copy / name).symlink_to(ROOT / name)
    (copy / ".venv/bin/python").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    (copy / ".venv/bin/python").chmod(0o755)
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(["bash", str(script), "rotation"], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "production requests" in done.stdout
    usage = subprocess.run(["bash", str(script), "x"], env=env, capture_output=True, text=True, timeout=120)
    assert (usage.returncode, "usage:" in usage.stderr) == (3, True)
