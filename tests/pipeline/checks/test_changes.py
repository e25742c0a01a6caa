"""What counts as a change: code does, words do not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.checks.changes import change_between
from pipeline.errors import SeatrialError

ROOT = Path(__file__).resolve().parents[3]
CODE = '"""About."""\n\n\ndef double(x):\n    """Doubles."""\n    return 2 * x  # why\n'


def _git(*arguments: str) -> str:
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def _write(name: str, text: str) -> None:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(text)


def _commit() -> None:
    _git("add", "--all")
    _git("commit", "-qm", "x", "--allow-empty")


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _git("init", "-q", "-b", "main")
    for name in ("engine/core.py", "tests/test_core.py"):
        _write(name, CODE)
    for name in ("README.md", "params.yaml", "requirements/lock-cpu.txt", "engine/kernel.c", "pipeline/x.py"):
        _write(name, "a = 1\n")
    _commit()
    _git("checkout", "-qb", "change")


@pytest.mark.parametrize(
    ("name", "text", "counts"),
    [
        ("engine/core.py", CODE.replace("Doubles.", "Twice as much.").replace("why", "how"), False),
        ("engine/core.py", CODE.replace("    return", "\n    return"), False),
        ("engine/core.py", CODE.replace("2 * x", "3 * x"), True),
        ("engine/core.py", "def double(x:\n", True),
        ("engine/new.py", CODE, True),
        ("tests/test_core.py", CODE.replace("2 * x", "3 * x"), False),
        ("README.md", "other", False),
        (".github/workflows/x.yml", "other", False),
        ("releases/1.0.0.json", "{}", True),
        ("releases/proposed/1.0.0.json", "{}", False),
        ("params.yaml", "a: 2\n", True),
        ("requirements/lock-cpu.txt", "b==1\n", True),
        ("evalsets/own/words.txt", "text\n", True),
        ("engine/kernel.c", "a = 1; // why\n", True),
    ],
)
def test_code_counts_and_words_do_not(repository: None, name: str, text: str, counts: bool) -> None:
    _write(name, text)
    _commit()
    change = change_between("main")
    assert change.alters_code == counts
    assert (change.counts, change.others) == (([name], []) if counts else ([], [name]))
    assert name in change.words()
    assert ("nothing was measured" in change.words()) != counts


def test_a_file_that_went_or_moved_counts(repository: None) -> None:
    _git("mv", "engine/core.py", "engine/heart.py")
    Path("pipeline/x.py").unlink()
    _commit()
    assert change_between("main").counts == ["engine/core.py", "engine/heart.py", "pipeline/x.py"]


def test_what_the_base_did_since_is_not_the_changes_doing(repository: None) -> None:
    _write("README.md", "mine")
    _commit()
    _git("checkout", "-q", "main")
    _write("engine/core.py", "x = 1\n")
    _commit()
    _git("checkout", "-q", "change")
    change = change_between("main")
    assert (change.counts, change.others) == ([], ["README.md"])


def test_unknown_revisions_are_told(repository: None) -> None:
    with pytest.raises(SeatrialError, match="nowhere names no commit here"):
        change_between("nowhere")
    _git("checkout", "-q", "--orphan", "other")
    _write("README.md", "a history of its own")
    _commit()
    with pytest.raises(SeatrialError, match="no common ancestor here"):
        change_between("main")


def test_a_docstring_of_the_engine_reuses_the_verdict_on_a_clone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command of the workflow, in a process of its own, on a copy of this tree with a history of its own."""
    clone = tmp_path / "clone"
    for name in ("engine", "pipeline", "loadtests"):
        shutil.copytree(ROOT / name, clone / name, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.chdir(clone)
    _git("init", "-q", "-b", "main")
    _commit()
    path = clone / "engine/scheduler.py"
    source = path.read_text()
    start = source.index('"""') + 3
    path.write_text(source[:start] + "In other words: " + source[start:] + "# the end\n")
    _commit()
    summary = tmp_path / "summary.md"
    env = os.environ | {"PYTHONPATH": str(clone), "GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(summary)}
    command = [sys.executable, "-m", "pipeline.checks.pull_request", "--base", "HEAD~1"]
    done = subprocess.run(command, cwd=clone, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    comment = (clone / "reports/check/comment.md").read_text()
    assert comment.startswith("## 🟢 Seatrial: SHIP")
    assert "no code is altered (engine/scheduler.py): the verdict of" in comment
    assert "nothing was measured" in comment
    assert "::" not in done.stdout
    assert summary.read_text().strip() == comment.strip()
