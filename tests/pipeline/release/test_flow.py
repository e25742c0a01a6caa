"""Releases end to end in a repository: propose, promote, a second one, diff, rollback, and what must be refused."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from gto.tag import parse_name

from engine.artifact import ArtifactError
from pipeline.errors import SeatrialError
from pipeline.gate.verdict import VERDICT, verdict_exit_code
from pipeline.release.compare import compare
from pipeline.release.flow import Done, promote, propose, rollback
from pipeline.release.record import RELEASES, current_release
from pipeline.release.show import check, history, read_release, state_of
from tests.pipeline.gate.helpers import change_params, items_of_int8, judged, loses_a_pinned_case
from tests.pipeline.release.conftest import Git, release, write_artifact, write_candidate


def test_a_release_is_a_record_a_card_a_commit_and_two_tags(project: Path, git: Git) -> None:
    done = release("1.0.0")
    assert done == Done(RELEASES / "1.0.0.json", ("model@v1.0.0", "model#prod#1"))
    assert git("status", "--porcelain") == ""
    assert git("ls-files", "releases") == "releases/1.0.0.json\nreleases/1.0.0.md"
    assert git("cat-file", "-t", "model@v1.0.0") == git("cat-file", "-t", "model#prod#1") == "tag"
    assert git("rev-parse", "model@v1.0.0^{commit}") == git("rev-parse", "HEAD")
    assert parse_name("model@v1.0.0")["version"] == "v1.0.0"
    assert (parse_name("model#prod#1")["stage"], parse_name("model#prod#1")["counter"]) == ("prod", 1)
    record = read_release("1.0.0")
    assert record.promoted_by == record.proposed_by == record.owner == "Release Team <team@example.org>"
    assert set(record.tiers) == {"bf16", "int8", "int4"}
    assert record.digests.keys() > {"results/int8/eval/items.jsonl", "results/int8/load/records.parquet"}
    assert (RELEASES / "1.0.0.json").stat().st_size < 60_000
    card = (RELEASES / "1.0.0.md").read_text()
    for words in ("## Intended use", "Not stated", "int8 (released)", "50.0 %", "| sums | 40 | 80 |", "Drill x2",
                  "| bf16 | ship | 50.0 % | 320 |",
                  "People have not rated it", "Latency holds for the machine above"):  # fmt: skip
        assert words in card


def test_the_promoted_release_is_the_next_baseline(two: Path) -> None:
    assert verdict_exit_code(VERDICT)[0] == 2  # judged against the release before
    assert judged()["baseline"]["name"] == "1.1.0"


def test_two_releases_are_held_against_each_other(two: Path) -> None:
    found = compare(read_release("1.0.0"), read_release("1.1.0"))
    assert (found.changed, found.confounded) == (["quantisation"], False)
    assert (len(found.turned_wrong), len(found.turned_right)) == (3, 1)
    changes = {f.name: f.change for f in found.figures}
    assert changes["accuracy"] == pytest.approx(100 * -2 / 320)
    assert changes["short_burst TTFT P95"] == pytest.approx(20, abs=0.1)
    assert changes["short_burst ITL P95"] == pytest.approx(0, abs=0.1)
    text = "\n".join(found.lines())
    assert "3 answers turn wrong" in text
    assert "+20.0 %" in text


def test_what_differs_in_machine_or_traffic_is_not_compared(two: Path) -> None:
    a, b = read_release("1.0.0"), read_release("1.1.0")
    machine = b.load.machine.model_copy(update={"cores": 64})
    elsewhere = b.model_copy(update={"load": b.load.model_copy(update={"machine": machine})})
    found = compare(a, elsewhere)
    assert not [f for f in found.figures if "TTFT" in f.name]
    assert "different classes of machine" in "\n".join(found.lines())
    workload = b.evaluation.workload.model_copy(update={"digest": "1" * 64, "name": "core-v2"})
    other = b.model_copy(update={"evaluation": b.evaluation.model_copy(update={"workload": workload})})
    found = compare(a, other)
    assert not [f for f in found.figures if f.name == "accuracy"]
    assert found.confounded
    assert "core-v1 and core-v2 are different" in "\n".join(found.lines())


def test_a_rollback_makes_an_earlier_release_current_and_the_next_one_follows(two: Path, git: Git) -> None:
    done = rollback("1.0.0", "first tokens came late", artifact="model")
    assert done.tags == ("model#prod#3",)
    assert git("rev-parse", "model#prod#3^{commit}") == git("rev-parse", "model@v1.0.0^{commit}")
    current = current_release()
    assert current is not None
    assert current.name == "1.0.0"
    assert judged()["baseline"]["name"] == "1.0.0"
    with pytest.raises(SeatrialError, match=r"1\.0\.0 is in service already"):
        rollback("1.0.0", "again", artifact="model")
    rows = history(artifact="model")
    assert [(r["sequence"], r["event"], r["name"], r["current"]) for r in rows] == [
        (3, "rollback", "1.0.0", False), (2, "release", "1.1.0", False), (1, "release", "1.0.0", True),
    ]  # fmt: skip
    write_candidate(two, b"third weights")
    assert release("1.2.0").tags == ("model@v1.2.0", "model#prod#4")
    current = current_release()
    assert current is not None
    assert current.name == "1.2.0"


def test_a_rollback_needs_a_release_and_a_reason(two: Path) -> None:
    for name, reason, words in (
        ("9.9.9", "x", "no promoted release"), ("1.0.0", " ", "needs a reason"), ("late", "x", "cannot name a release"),
    ):  # fmt: skip
        with pytest.raises(SeatrialError, match=words):
            rollback(name, reason, artifact="model")
    assert not list(RELEASES.glob("rollback-*"))


def test_only_what_was_reviewed_is_promoted(project: Path, git: Git) -> None:
    with pytest.raises(SeatrialError, match=r"1\.0\.0\.json is not committed.*`seatrial release propose 1\.0\.0`"):
        promote("1.0.0", artifact="model")
    path = propose("1.0.0", artifact="model")
    with pytest.raises(SeatrialError, match=r"is not committed.*after its review"):
        promote("1.0.0", artifact="model")
    git("add", str(path))
    git("commit", "-qm", "Propose")
    path.write_text(path.read_text().replace("Release Team", "Someone Else"))
    with pytest.raises(SeatrialError, match="differs from what is committed"):
        promote("1.0.0", artifact="model")


def test_what_may_not_ship_is_neither_proposed_nor_promoted(project: Path, git: Git) -> None:
    path = propose("1.0.0", artifact="model")
    git("add", str(path))
    git("commit", "-qm", "Propose")
    items_of_int8(spoil=loses_a_pinned_case)(project)
    assert judged()["verdict"] == "hold"
    for act in (propose, promote):
        with pytest.raises(SeatrialError, match="only a verdict of ship can be promoted"):
            act("1.0.0", artifact="model")
    assert current_release() is None


def test_a_changed_record_or_rule_needs_a_new_proposal(project: Path, git: Git) -> None:
    path = propose("1.0.0", artifact="model")
    git("add", str(path))
    git("commit", "-qm", "Propose")
    write_candidate(project, flips=(1, 1))
    with pytest.raises(SeatrialError, match=r"results/int8/eval/.* is no longer what was proposed as 1\.0\.0"):
        promote("1.0.0", artifact="model")
    write_candidate(project)
    change_params(project, lambda raw: raw["gate"]["policies"]["pull_request"].update(confidence=0.9))
    assert judged()["verdict"] == "ship"
    with pytest.raises(SeatrialError, match="policy_digest is no longer what was proposed"):
        promote("1.0.0", artifact="model")


def test_a_tampered_artifact_is_refused(project: Path, git: Git) -> None:
    path = propose("1.0.0", artifact="model")
    git("add", str(path))
    git("commit", "-qm", "Propose")
    (Path("artifacts") / "int8" / "model.safetensors").write_bytes(b"WEIGHTS")
    with pytest.raises(ArtifactError, match=r"model\.safetensors"):
        promote("1.0.0", artifact="model")
    write_artifact(b"a manifest of its own")
    with pytest.raises(SeatrialError, match="was measured; bring that one back"):
        promote("1.0.0", artifact="model")
    assert git("tag") == ""
    assert current_release() is None


class _Killed(BaseException):
    """The process ended here: nothing is cleaned up."""


def _kill_at(number: int, steps: list[str]) -> Callable[[str], None]:
    def step(name: str) -> None:
        steps.append(name)
        if len(steps) == number:
            raise _Killed

    return step


def test_an_interrupted_promotion_is_finished_or_begun_anew(project: Path, git: Git, tmp_path: Path) -> None:
    """Killed before each step in turn, then run again: always the same release, the same bytes, nothing beside it."""
    path = propose("1.0.0", artifact="model")
    git("add", str(path))
    git("commit", "-qm", "Propose")
    proposed = git("rev-parse", "HEAD")
    names: list[str] = []
    promote("1.0.0", artifact="model", step=names.append)
    assert names == ["card", "record", "proposal", "commit", "tag model@v1.0.0", "tag model#prod#1"]
    whole = {p.name: p.read_bytes() for p in RELEASES.iterdir() if p.is_file()}
    for number in range(1, len(names) + 1):
        git("tag", "-d", "model@v1.0.0", "model#prod#1")
        git("reset", "-q", "--hard", proposed)
        steps: list[str] = []
        with pytest.raises(_Killed):
            promote("1.0.0", artifact="model", step=_kill_at(number, steps))
        assert "model#prod#1" not in git("tag").splitlines(), steps
        if (RELEASES / "1.0.0.json").is_file():
            state = state_of("1.0.0", artifact="model")
            assert not state.complete
            with pytest.raises(SeatrialError, match="not found: it"):
                check(state, require_signature=False)
        done = promote("1.0.0", artifact="model")
        assert done.finished == (number > 4)
        assert {p.name: p.read_bytes() for p in RELEASES.iterdir() if p.is_file()} == whole
        assert git("status", "--porcelain") == ""
        assert git("rev-list", "--count", f"{proposed}..HEAD") == "1"
        check(state_of("1.0.0", artifact="model"), require_signature=False)
        with pytest.raises(SeatrialError, match="exists already"):
            promote("1.0.0", artifact="model")


def test_an_interrupted_rollback_is_finished_or_begun_anew(two: Path, git: Git) -> None:
    before = git("rev-parse", "HEAD")
    for number in (1, 2, 3):
        with pytest.raises(_Killed):
            rollback("1.0.0", "late", artifact="model", step=_kill_at(number, []))
        done = rollback("1.0.0", "late", artifact="model")
        assert (done.tags, done.finished) == (("model#prod#3",), number == 3)
        current = current_release()
        assert current is not None
        assert current.name == "1.0.0"
        assert git("status", "--porcelain") == ""
        assert git("rev-list", "--count", f"{before}..HEAD") == "1"
        git("tag", "-d", "model#prod#3")
        git("reset", "-q", "--hard", before)


def test_a_refused_commit_leaves_everything_as_it_was(project: Path, git: Git) -> None:
    path = propose("1.0.0", artifact="model")
    git("add", str(path))
    git("commit", "-qm", "Propose")
    hook = Path(".git/hooks/pre-commit")
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\necho not today >&2\nexit 1\n")
    hook.chmod(0o755)
    with pytest.raises(SeatrialError, match="git commit: not today"):
        promote("1.0.0", artifact="model")
    assert git("status", "--porcelain") == ""
    assert path.is_file()
    assert current_release() is None


def test_what_else_is_staged_stays_out_of_the_release(project: Path, git: Git) -> None:
    Path("note.txt").write_text("mine")
    git("add", "note.txt")
    path = propose("1.0.0", artifact="model")
    git("add", str(path))
    git("commit", "-qm", "Propose", "--only", "--", str(path))
    promote("1.0.0", artifact="model")
    assert git("status", "--porcelain") == "A  note.txt"


def test_a_record_that_was_changed_after_it_went_out_is_seen(project: Path, git: Git) -> None:
    release("1.0.0")
    path = RELEASES / "1.0.0.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"owner": "someone else"}))
    git("commit", "-qam", "Rewrite history")
    with pytest.raises(SeatrialError, match="was changed after it went out"):
        check(state_of("1.0.0", artifact="model"), require_signature=False)


def test_a_signature_is_verified(project: Path, git: Git, tmp_path: Path) -> None:
    release("1.0.0")
    state = state_of("1.0.0", artifact="model")
    assert (state.signature, state.problem) == ("none", None)
    with pytest.raises(SeatrialError, match="no signature that holds: not signed"):
        check(state, require_signature=True)
    keys = [tmp_path / "one", tmp_path / "two"]
    for key in keys:
        made = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "team@example.org", "-f", str(key)]
        subprocess.run(made, check=True)
    git("config", "gpg.format", "ssh")
    git("config", "user.signingkey", str(keys[0]))
    write_candidate(project, b"second")
    path = propose("1.1.0", artifact="model")
    git("add", str(path))
    git("commit", "-qm", "Propose")
    promote("1.1.0", artifact="model", sign=True)
    assert state_of("1.1.0", artifact="model").signature == "unknown"
    allowed = tmp_path / "allowed"
    git("config", "gpg.ssh.allowedSignersFile", str(allowed))
    for key, word in ((keys[0], "good"), (keys[1], "bad")):
        allowed.write_text(f"team@example.org {key.with_suffix('.pub').read_text()}")
        assert state_of("1.1.0", artifact="model").signature == word
    with pytest.raises(SeatrialError, match=r"the signature of model@v1\.1\.0 does not hold"):
        check(state_of("1.1.0", artifact="model"), require_signature=False)


@pytest.mark.parametrize("name", ["2026.12", "v1.0.0", "1.0", "01.0.0", "../1.0.0", ""])
def test_a_release_is_named_by_a_version(project: Path, name: str) -> None:
    with pytest.raises(SeatrialError, match=r"expected a version such as 1\.4\.0"):
        propose(name, artifact="model")


def test_ratings_are_recorded_when_somebody_says_that_they_are_of_this_candidate(project: Path, git: Git) -> None:
    review = Path("reports/review.json")
    criterion = {"alpha": 0.8, "items": 12, "candidate_mean": 4.26, "baseline_mean": 4.0, "problem": None}
    value = {"rubric": 1, "raters": 2, "baseline": "baseline", "criteria": {"clarity": criterion}}
    review.write_text(json.dumps(value))
    with pytest.raises(SeatrialError, match=r"is stale: reports/review\.json has changed since"):
        propose("1.0.0", artifact="model", ratings=review)
    judged()
    path = propose("1.0.0", artifact="model", ratings=review)
    git("add", str(path))
    git("commit", "-qm", "Propose")
    promote("1.0.0", artifact="model")
    assert read_release("1.0.0").ratings == {"file": "reports/review.json", **value}
    assert "| clarity | 4.26 | 4.0 | 12 | 0.8 | - |" in (RELEASES / "1.0.0.md").read_text()
    review.write_text("{}")
    judged()
    with pytest.raises(SeatrialError, match="expected what `seatrial review import` writes"):
        propose("1.1.0", artifact="model", ratings=review)


def test_a_scenario_without_accuracy_is_no_change(two: Path) -> None:
    a, b = read_release("1.0.0"), read_release("1.1.0")
    unmeasured = b.model_copy(update={"scenarios": b.scenarios | {"sums": b.scenarios["sums"] | {"accuracy": None}}})
    for before, after in ((a, unmeasured), (unmeasured, a)):
        found = compare(before, after)
        figure = next(f for f in found.figures if f.name == "accuracy sums")
        assert figure.change is None
        assert {figure.before, figure.after} == {None, 50.0}
        assert any("accuracy sums" in line and "not compared" in line for line in found.lines())
    assert not [f for f in compare(unmeasured, unmeasured).figures if f.name == "accuracy sums"]
