"""The commands as a user types them: completion, and JSON where there is a table."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


def _seatrial(*arguments: str, cwd: Path = ROOT, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pipeline.cli", *arguments],
        cwd=cwd, env=os.environ | {"PYTHONPATH": str(ROOT)} | env, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_that_asks_this_command(shell: str) -> None:
    done = _seatrial("completion", shell)
    assert done.returncode == 0, done.stderr
    assert "_SEATRIAL_COMPLETE" in done.stdout
    if shell == "bash" and (bash := shutil.which("bash")):
        subprocess.run([bash, "-n"], input=done.stdout, text=True, check=True)


def test_completion_knows_commands_and_options() -> None:
    env = {"_SEATRIAL_COMPLETE": "complete_bash", "COMP_CWORD": "1", "COMP_WORDS": "seatrial re"}
    assert {"release", "review"} <= set(_seatrial(**env).stdout.split())
    env = {"_SEATRIAL_COMPLETE": "complete_bash", "COMP_CWORD": "3", "COMP_WORDS": "seatrial release show --"}
    assert {"--json", "--require-signature"} <= set(_seatrial(**env).stdout.split())


def test_doctor_and_verdict_as_json(tmp_path: Path) -> None:
    done = _seatrial("doctor", "--json")
    value = json.loads(done.stdout)
    assert done.returncode == (0 if value["fit"] else 1)
    done = _seatrial("verdict", "--json", cwd=tmp_path)
    value = json.loads(done.stdout)
    assert (done.returncode, value["exit_code"], value["verdict"]) == (2, 2, "undecided")


def test_plan_and_list_of_releases_as_json(tmp_path: Path) -> None:
    done = _seatrial("plan", "--layers", "32", "--hidden", "4096", "--params", "7e9", "--memory", "40", "--json")
    value = json.loads(done.stdout)
    assert value["ledger"]["weights_bytes"] == 14_000_000_000
    assert value["tables"][0]["rows"][0] == ["weights", "13 GiB (14 GB)"]
    (tmp_path / "params.yaml").write_bytes((ROOT / "params.yaml").read_bytes())
    done = _seatrial("release", "list", "--json", cwd=tmp_path)
    assert json.loads(done.stdout) == {"schema_version": 1, "events": [], "proposed": [], "interrupted": []}
    done = _seatrial("release", "show", "1.0.0", cwd=tmp_path)
    assert done.returncode == 3
    assert "README.md#release" in done.stderr
