"""A change that alters no code repeats the verdict of its base, whatever that was, and says so."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pipeline.checks import reuse
from pipeline.checks.control import planted
from pipeline.checks.reuse import KEPT, keep, kept_for
from pipeline.drill.trial import CANDIDATE, judged, requests, write_load
from pipeline.gate.verdict import VERDICT

ROOT = Path(__file__).resolve().parents[3]
Plant = Callable[[Path], None]


def _nothing(root: Path) -> None:
    pass


def _slow(root: Path) -> None:
    rows = requests(1)
    for row in rows:
        planted(row)
    write_load(root, CANDIDATE, rows)


def _few(root: Path) -> None:
    write_load(root, CANDIDATE, requests(1, 5))


PLANTS: dict[str, Plant] = {"ship": _nothing, "hold": _slow, "undecided": _few}


def _git(*arguments: str) -> str:
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def _commit() -> str:
    _git("add", "--all")
    _git("commit", "-qm", "x")
    return _git("rev-parse", "HEAD")


@pytest.fixture(scope="module")
def trials(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A made-up trial of each verdict."""
    made = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)  # whose policy it is judged under
        for word, plant in PLANTS.items():
            made[word] = tmp_path_factory.mktemp(word)
            assert judged(made[word], plant)["verdict"] == word
    return made


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of this tree's code with a history of its own."""
    root = tmp_path / "clone"
    for name in ("engine", "pipeline", "loadtests"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / ".gitignore", root)
    monkeypatch.chdir(root)
    _git("init", "-q", "-b", "main")
    _commit()
    return root


def _alter_a_docstring(clone: Path) -> str:
    path = clone / "engine/scheduler.py"
    source = path.read_text()
    start = source.index('"""') + 3
    path.write_text(source[:start] + "In other words: " + source[start:] + "# the end\n")
    return _commit()


def _check(clone: Path, summary: Path) -> subprocess.CompletedProcess[str]:
    """The command of the workflow, in a process of its own."""
    env = os.environ | {"PYTHONPATH": str(clone), "GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(summary)}
    command = [sys.executable, "-m", "pipeline.checks.pull_request", "--base", "HEAD~1"]
    return subprocess.run(command, cwd=clone, env=env, capture_output=True, text=True, timeout=240)


@pytest.mark.parametrize(
    ("word", "code", "title", "said"),
    [
        ("ship", 0, "## 🟢 Seatrial: SHIP", None),
        ("hold", 1, "## 🔴 Seatrial: HOLD", "::error title=Seatrial hold::Trial and A/B"),
        ("undecided", 0, "## 🟡 Seatrial: UNDECIDED", "::warning title=Seatrial undecided::Trial and A/B"),
    ],
)
def test_the_kept_for_the_base_is_repeated_whatever_it_was(
    clone: Path, trials: dict[str, Path], tmp_path: Path, word: str, code: int, title: str, said: str | None
) -> None:
    base = _git("rev-parse", "HEAD")
    assert keep("what the page said", trials[word] / VERDICT) == KEPT / f"{base}.json"
    _alter_a_docstring(clone)
    done = _check(clone, tmp_path / "summary.md")
    assert done.returncode == code, done.stderr
    comment = (clone / "reports/check/comment.md").read_text()
    assert comment.startswith(title)
    assert "no code is altered (engine/scheduler.py): the verdict of" in comment
    assert "nothing was measured" in comment
    assert f"{word} (reused)" in comment
    assert f"Reused: the verdict of {base[:12]}, judged 2026-12-01T12:00:00Z: **{word.upper()}: " in comment
    assert "what the page said" in comment
    assert (said in done.stdout) if said else ("::" not in done.stdout)
    assert (tmp_path / "summary.md").read_text().strip() == comment.strip()
    assert json.loads((clone / "reports/check/check.json").read_text())["verdict"] == word


def test_where_no_verdict_is_kept_there_is_none_to_repeat(clone: Path, tmp_path: Path) -> None:
    _alter_a_docstring(clone)
    done = _check(clone, tmp_path / "summary.md")
    assert done.returncode == 0, done.stderr
    comment = (clone / "reports/check/comment.md").read_text()
    assert comment.startswith("## 🟡 Seatrial: UNDECIDED")
    assert "there is none to repeat: undecided" in comment
    assert "::warning title=Seatrial undecided" in done.stdout


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one file of code."""
    (tmp_path / "engine").mkdir()
    monkeypatch.chdir(tmp_path)
    Path("engine/core.py").write_text('"""About."""\nx = 1\n')
    Path(".gitignore").write_text("/.seatrial/\n")
    _git("init", "-q", "-b", "main")
    _commit()
    return tmp_path


def test_a_verdict_is_found_for_every_commit_of_the_same_code_and_the_newest_counts(
    small: Path, trials: dict[str, Path]
) -> None:
    first = _git("rev-parse", "HEAD")
    keep("a", trials["ship"] / VERDICT)
    Path("engine/core.py").write_text('"""In other words."""\nx = 1\n')
    second = _commit()
    found = kept_for(second)
    assert found is not None
    assert (found.commit, found.code, found.summary) == (first, 0, "a")
    later = json.loads((trials["hold"] / VERDICT).read_text()) | {"as_of": "2026-12-02T12:00:00Z"}
    Path("later.json").write_text(json.dumps(later))
    keep("b", Path("later.json"))  # a work tree in which later.json is new is that of no commit
    assert [p.stem for p in KEPT.glob("*.json")] == [first]
    Path("later.json").rename(".seatrial/later.json")
    keep("b", Path(".seatrial/later.json"))
    found = kept_for(first)
    assert found is not None
    assert (found.commit, found.code) == (second, 1)
    Path("engine/core.py").write_text("x = 2\n")
    assert kept_for(_commit()) is None


def test_what_cannot_be_read_is_not_kept_and_not_repeated(small: Path, trials: dict[str, Path]) -> None:
    head = _git("rev-parse", "HEAD")
    assert keep("a", Path(".seatrial/absent.json")) is None
    (KEPT / "x.json").parent.mkdir(parents=True)
    (KEPT / f"{head}.json").write_text('{"schema_version": 0}')
    assert kept_for(head) is None
    assert keep("a", KEPT / f"{head}.json") is None


def test_a_waiver_that_has_expired_since_takes_the_repeated_ship_back(small: Path, trials: dict[str, Path]) -> None:
    value: dict[str, Any] = json.loads((trials["ship"] / VERDICT).read_text())
    rule = next(r for r in value["tiers"][CANDIDATE]["rules"] if r["id"] == "pinned")
    yesterday = (datetime.now(UTC) - timedelta(days=1)).date().isoformat()
    waiver = {"rule": "pinned", "tier": CANDIDATE, "reason": "known", "owner": "team", "expires": yesterday}
    rule |= {"outcome": "fail", "waiver": waiver | {"expired": False}}
    Path(".seatrial").mkdir()
    Path(".seatrial/v.json").write_text(json.dumps(value))
    keep("a", Path(".seatrial/v.json"))
    found = kept_for(_git("rev-parse", "HEAD"))
    assert found is not None
    assert found.code == 1
    assert found.text.startswith("HOLD: the waiver of pinned")


def test_only_the_newest_are_kept(small: Path, trials: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reuse, "MOST", 2)
    for n in range(4):
        Path("engine/core.py").write_text(f"x = {n}\n")
        commit = _commit()
        keep("a", trials["ship"] / VERDICT)
        os.utime(KEPT / f"{commit}.json", (n, n))
    assert len(list(KEPT.glob("*.json"))) == 2
    assert (KEPT / f"{commit}.json").is_file()
