"""What stands around DVC: locks of dead processes, the machine's fingerprint, death with the parent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from pipeline import trial
from pipeline.errors import SeatrialError
from pipeline.gate.inputs import input_digests
from pipeline.stage import FAILED

ROOT = Path(__file__).resolve().parents[2]


def _holder(pid: int) -> dict[str, object]:
    return {"pid": pid, "cmd": "dvc repro"}


@pytest.fixture
def dead_pid() -> int:
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    child.wait()
    return child.pid


@pytest.fixture
def living_dvc() -> object:
    script = "import time; print(flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", script, "dvc"], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()  # before it has become the interpreter it has no command line to be known by
        yield child.pid
        child.kill()


def test_locks_of_dead_processes_go_and_those_of_living_ones_stay(
    tmp_path: Path, dead_pid: int, living_dvc: int
) -> None:
    path = tmp_path / "rwlock"
    path.write_text(
        json.dumps(
            {
                "read": {"a": [_holder(dead_pid), _holder(living_dvc)], "b": [_holder(dead_pid)]},
                "write": {"c": _holder(dead_pid), "d": _holder(living_dvc)},
            }
        )
    )
    assert trial.drop_dead_locks(path) == 3
    left = json.loads(path.read_text())
    assert left == {"read": {"a": [_holder(living_dvc)]}, "write": {"d": _holder(living_dvc)}}
    assert trial.drop_dead_locks(path) == 0


def test_a_number_reused_by_something_else_is_dead(tmp_path: Path) -> None:
    path = tmp_path / "rwlock"
    other = subprocess.Popen(["sleep", "60"])
    try:
        path.write_text(json.dumps({"write": {"x": _holder(other.pid)}}))
        assert trial.drop_dead_locks(path) == 1
    finally:
        other.kill()
        other.wait()


@pytest.mark.parametrize("content", ["{not json", '{"write": 3}', '{"write": {"x": {}}}'])
def test_an_unreadable_lock_is_removed(tmp_path: Path, content: str) -> None:
    path = tmp_path / "rwlock"
    path.write_text(content)
    assert trial.drop_dead_locks(path) == 1
    assert not path.exists()


def test_the_fingerprint_is_not_touched_when_nothing_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    trial.write_machine()
    os.utime(trial.MACHINE, (1, 1))
    trial.write_machine()
    assert trial.MACHINE.stat().st_mtime == 1
    trial.MACHINE.write_text("{}")
    trial.write_machine()
    assert json.loads(trial.MACHINE.read_text())["cores"] >= 1


def test_ratings_that_came_changed_or_went_are_judged_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They lie outside the graph, so DVC by itself would leave the verdict stale for good."""
    monkeypatch.chdir(tmp_path)
    review = Path("reports/review.json")
    review.parent.mkdir()
    assert trial.changed_unseen() is None  # no verdict: the graph makes one

    def judge() -> None:
        trial.VERDICT.write_text(json.dumps({"inputs": input_digests([])}))

    judge()
    assert trial.changed_unseen() is None
    for text in ("{}", '{"candidate": "int8"}', None):
        review.unlink(missing_ok=True) if text is None else review.write_text(text)
        assert trial.changed_unseen() == "people's ratings have changed since the verdict"
        judge()
        assert trial.changed_unseen() is None
    for broken in ("{torn", "[]", "{}", '{"inputs": 3}'):
        trial.VERDICT.write_text(broken)
        assert trial.changed_unseen() is None


def test_what_was_judged_on_results_of_an_earlier_run_is_judged_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DVC may bring the results back without running the stage again, and sees no change that the gate depends on."""
    monkeypatch.chdir(tmp_path)
    failed = FAILED / "evaluate@int8.txt"
    failed.parent.mkdir(parents=True)
    failed.write_text("the server died\n")
    trial.VERDICT.parent.mkdir()
    trial.VERDICT.write_text(json.dumps({"inputs": input_digests(["int8"])}))
    failed.unlink()
    assert trial.changed_unseen() == "evaluate@int8 had not ended well when it was judged"
    trial.VERDICT.write_text(json.dumps({"inputs": input_digests(["int8"])}))
    assert trial.changed_unseen() is None


def test_a_trial_that_fails_says_what_is_of_an_earlier_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_bytes((ROOT / "params.yaml").read_bytes())
    (FAILED / "fetch.txt").parent.mkdir(parents=True)
    (FAILED / "fetch.txt").write_text("no such model\n")
    found: list[bool] = []

    def repro(_targets: list[str]) -> int:
        found.append(FAILED.exists())
        return 255

    monkeypatch.setattr(trial, "die_with_parent", lambda *_: None)
    monkeypatch.setattr(trial, "repro", repro)
    monkeypatch.setattr(sys, "argv", ["trial"])
    with pytest.raises(SeatrialError, match=r"once the cause is mended$"):
        trial.main()
    trial.SCORECARD.parent.mkdir()
    trial.SCORECARD.write_text("<p>ship")
    with pytest.raises(SeatrialError, match=r"mended\. What is in reports/scorecard\.html is of an earlier trial$"):
        trial.main()
    assert found == [False, False]  # what failed before is DVC's to run again
    monkeypatch.setattr(sys, "argv", ["trial", "fetch"])
    (FAILED / "evaluate@int8.txt").parent.mkdir()
    (FAILED / "evaluate@int8.txt").write_text("the server died\n")
    with pytest.raises(SeatrialError):
        trial.main()
    assert found[-1]  # of a part of the graph nothing is known beyond it


def test_a_trial_judges_anew_before_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_bytes((ROOT / "params.yaml").read_bytes())
    ran: list[list[str]] = []

    def repro(targets: list[str]) -> int:
        ran.append(targets)
        return 0

    monkeypatch.setattr(trial, "die_with_parent", lambda *_: None)
    monkeypatch.setattr(trial, "repro", repro)
    for changed, expected in ((None, [[]]), ("it has", [[], ["--force", "--single-item", "gate"], []])):
        ran.clear()
        monkeypatch.setattr(trial, "changed_unseen", lambda changed=changed: changed)
        monkeypatch.setattr(sys, "argv", ["trial"])
        with pytest.raises(SystemExit) as end:
            trial.main()
        assert (end.value.code, ran) == (2, expected)


def test_a_child_does_not_outlive_a_killed_parent() -> None:
    grandchild = (
        "import subprocess, sys; from pipeline.processes import die_with_parent;"
        "p = subprocess.Popen(['sleep', '60'], preexec_fn=die_with_parent); print(p.pid, flush=True); p.wait()"
    )
    parent = subprocess.Popen([sys.executable, "-c", grandchild], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert psutil.pid_exists(pid)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 240
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, "the grandchild still runs"
        time.sleep(0.05)
