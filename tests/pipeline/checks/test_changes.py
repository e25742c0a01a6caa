"""What counts as a change: code does, words do not."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from pipeline.checks.changes import change_between, commit_here, same_code
from pipeline.errors import SeatrialError

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


def test_a_commit_is_what_the_work_tree_runs_as_long_as_nothing_that_counts_differs(repository: None) -> None:
    head = _git("rev-parse", "HEAD")
    _write("dvc.lock", "schema: '2.0'")
    _write("tests/test_core.py", "x = 1\n")
    _write("README.md", "other words")
    assert commit_here() == head
    _write("engine/unheard_of.py", "x = 1\n")
    assert commit_here() is None
    Path("engine/unheard_of.py").unlink()
    _write("params.yaml", "a: 2\n")
    assert commit_here() is None


def test_without_git_no_commit_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert commit_here() is None


def test_commits_of_the_same_code_are_alike_in_either_order(repository: None) -> None:
    first = _git("rev-parse", "HEAD")
    _write("engine/core.py", CODE.replace("Doubles.", "Twice as much."))
    _commit()
    words = _git("rev-parse", "HEAD")
    _write("engine/core.py", CODE.replace("2 * x", "3 * x"))
    _commit()
    assert same_code(first, words)
    assert same_code(words, first)
    assert not same_code(words, "HEAD")
    assert not same_code("0" * 40, "HEAD")
