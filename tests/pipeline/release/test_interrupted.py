"""What was killed before its commit is no release: it is named, with the commands that finish it or take it back."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pipeline.cli import app
from pipeline.errors import SeatrialError
from pipeline.gate.__main__ import judge
from pipeline.params import load_params
from pipeline.release.flow import promote, propose, rollback
from pipeline.release.interrupted import baseline, in_service, interrupted, undo
from pipeline.release.record import RELEASES
from pipeline.release.show import check, history, state_of
from tests.pipeline.release.conftest import Git


class _Killed(BaseException):
    """The process ended here: nothing is cleaned up."""


def _killed_before(name: str) -> Callable[[str], None]:
    def step(at: str) -> None:
        if at == name:
            raise _Killed

    return step


def _propose(name: str, git: Git) -> None:
    path = propose(name, artifact="model")
    git("add", str(path))
    git("commit", "-qm", f"Propose {name}")


def _said(*command: str) -> str:
    done = CliRunner().invoke(app, ["release", *command])
    assert done.exit_code == 0, (done.output, done.exception)
    return done.output


@pytest.mark.parametrize("staged", [False, True])
def test_a_promotion_before_its_commit_is_named_and_taken_back(project: Path, git: Git, staged: bool) -> None:
    _propose("1.0.0", git)
    with pytest.raises(_Killed):
        promote("1.0.0", artifact="model", step=_killed_before("commit"))
    if staged:  # killed within the commit
        git("add", "--all", "--force", "--", "releases")
    assert in_service() is None
    assert history(artifact="model") == []
    said = _said("list")
    assert "! the promotion of 1.0.0 was interrupted before its commit" in said
    assert "`seatrial release promote 1.0.0` makes it anew, `seatrial release undo` takes back" in said
    assert "nothing has been released yet" in said
    listed = json.loads(_said("list", "--json"))
    assert (listed["events"], [x["name"] for x in listed["interrupted"]]) == ([], ["1.0.0"])
    state = state_of("1.0.0", artifact="model")
    assert (state.current, state.complete) == (False, False)
    with pytest.raises(SeatrialError, match=r"no release yet: the promotion of 1\.0\.0.*`seatrial release promote"):
        check(state, require_signature=False)
    with pytest.raises(SeatrialError, match="nothing else is released before that"):
        propose("1.1.0", artifact="model")
    assert "taken back: the promotion of 1.0.0" in _said("undo")
    assert git("status", "--porcelain") == ""
    assert interrupted() == []
    assert "nothing is left" in _said("undo")
    assert promote("1.0.0", artifact="model").tags == ("model@v1.0.0", "model#prod#1")


def test_a_card_alone_is_what_a_promotion_left(project: Path, git: Git) -> None:
    _propose("1.0.0", git)
    with pytest.raises(_Killed):
        promote("1.0.0", artifact="model", step=_killed_before("record"))
    assert [(x.event, x.name) for x in interrupted()] == [("promotion", "1.0.0")]
    assert [x.name for x in undo()] == ["1.0.0"]
    assert git("status", "--porcelain") == ""


def test_a_rollback_before_its_commit_leaves_in_service_what_was(two: Path, git: Git) -> None:
    with pytest.raises(_Killed):
        rollback("1.0.0", "late", artifact="model", step=_killed_before("commit"))
    current = in_service()
    assert current is not None
    assert current.name == "1.1.0"
    assert [(r["name"], r["current"]) for r in history(artifact="model")] == [("1.1.0", True), ("1.0.0", False)]
    assert "! the rollback to 1.0.0 was interrupted" in _said("list")
    assert '`seatrial release rollback 1.0.0 --reason "..."` makes it anew' in _said("list")
    assert not state_of("1.0.0", artifact="model").current
    with pytest.raises(SeatrialError, match=r"the rollback to 1\.0\.0 was interrupted"):
        promote("1.2.0", artifact="model")
    assert "taken back: the rollback to 1.0.0" in _said("undo")
    assert git("status", "--porcelain") == ""
    assert rollback("1.0.0", "late", artifact="model").tags == ("model#prod#3",)


def test_a_commit_without_its_tag_is_listed_with_the_command_that_makes_it(project: Path, git: Git) -> None:
    _propose("1.0.0", git)
    with pytest.raises(_Killed):
        promote("1.0.0", artifact="model", step=_killed_before("tag model#prod#1"))
    assert [(r["tagged"], r["finish"]) for r in history(artifact="model")] == [
        (False, "`seatrial release promote 1.0.0`")
    ]
    assert "then `seatrial release promote 1.0.0` finishes it" in _said("list")
    assert interrupted() == []
    assert promote("1.0.0", artifact="model").finished
    assert [(r["tagged"], r["finish"]) for r in history(artifact="model")] == [(True, None)]


def test_other_files_beside_the_records_are_nobodys_promotion(two: Path) -> None:
    Path(RELEASES / "intended-use.md").write_text("For letters.")
    Path(RELEASES / "notes.json.bak").write_text("{}")
    assert interrupted() == []


def _gate() -> str | None:
    """Name of the release that the gate holds the run against."""
    found = judge(load_params(), datetime(2026, 12, 1, 12, tzinfo=UTC)).baseline
    return None if found is None else found.name


def test_the_gate_takes_no_record_that_was_never_committed_for_its_baseline(two: Path, git: Git) -> None:
    assert _gate() == "1.1.0"
    copy = json.loads(Path("releases/1.1.0.json").read_text()) | {"name": "1.2.0", "sequence": 9}
    Path("releases/1.2.0.json").write_text(json.dumps(copy))
    with pytest.raises(SeatrialError, match=r"the promotion of 1\.2\.0 was interrupted .* nothing is held against"):
        _gate()
    Path("releases/1.2.0.json").rename("releases/mine.json")
    with pytest.raises(SeatrialError, match=r"releases/mine\.json is not committed, so it is no baseline: commit it"):
        _gate()
    git("add", "releases/mine.json")
    with pytest.raises(SeatrialError, match="is not committed"):  # the index is no review
        _gate()
    git("commit", "-qm", "Reviewed")
    assert _gate() == "1.2.0"


@pytest.mark.parametrize("gone", [False, True])
def test_the_gate_takes_no_record_that_was_rewritten_since(two: Path, git: Git, gone: bool) -> None:
    path = Path("releases/1.1.0.json")
    path.unlink() if gone else path.write_text(path.read_text().replace('"owner"', ' "owner"'))
    with pytest.raises(SeatrialError, match=r"1\.1\.0\.json is not as it was committed; .* git checkout HEAD -- rel"):
        _gate()
    git("checkout", "HEAD", "--", str(path))
    assert _gate() == "1.1.0"


def test_without_a_repository_records_count_as_they_lie(two: Path) -> None:
    shutil.rmtree(".git")
    found = baseline()
    assert found is not None
    assert found.name == "1.1.0"
