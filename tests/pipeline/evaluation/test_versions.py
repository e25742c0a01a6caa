"""Versions: their order, what a change needs, and comparing a set with what git has."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from pipeline.errors import SeatrialError
from pipeline.evaluation import sets, versions
from pipeline.evaluation.items import Item, load_evalset, to_line
from tests.pipeline.evaluation.make import chat_item, write_evalset

ONE, TWO = chat_item("extract.one", "Which city?"), chat_item("extract.two", "Which river?")
REQUEST = chat_item("extract.request", "Which hill?", origin="production")


@pytest.mark.parametrize(
    ("before", "after", "size"),
    [
        ([ONE], [ONE], None),
        ([ONE], [ONE, TWO], "minor"),
        ([ONE, TWO], [ONE], "major"),
        ([ONE, REQUEST], [ONE], "minor"),
        ([ONE], [chat_item("extract.one", "Which town?")], "major"),
        ([ONE], [chat_item("extract.one", "Which city?", reference="Rome")], "major"),
        ([ONE], [chat_item("extract.one", "Which city?", week="2026-W02")], "patch"),
        ([ONE, TWO], [TWO, ONE], "patch"),
    ],
)
def test_a_change_says_which_version_it_needs(before: list[Item], after: list[Item], size: str | None) -> None:
    assert versions.diff(before, after).size == size


def test_a_diff_names_items_and_fields() -> None:
    changed = chat_item("extract.one", "Which town?", max_tokens=9)
    lines = versions.diff([ONE, REQUEST], [changed, TWO]).lines()
    assert lines == [
        "+ extract.two", "- extract.request", "~ extract.one: messages, max_tokens",
        "1 in, 1 out, 1 changed; a major version",
    ]  # fmt: skip


def test_the_next_version_by_size() -> None:
    assert [versions.next_version("1", s) for s in ("major", "minor", "patch")] == ["2.0.0", "1.1.0", "1.0.1"]
    assert versions.next_version("1.9.3", "minor") == "1.10.0"
    assert versions.parsed("1.10") > versions.parsed("1.9.9")
    with pytest.raises(SeatrialError, match=r"version 'one' is not MAJOR"):
        versions.next_version("one", "minor")


def test_only_the_major_version_is_in_the_name_that_margins_use(tmp_path: Path) -> None:
    folder = write_evalset(tmp_path, [ONE])
    (folder / "items/extract.jsonl").write_text(to_line(ONE) + to_line(TWO))
    sets.main(["record", str(folder), "--size", "minor", "--week", "2026-W49", "--what", "one more"])
    evalset = load_evalset(folder)
    assert (evalset.manifest.version, evalset.identity.name) == ("1.1.0", "core-v1")


def test_a_version_never_goes_back(tmp_path: Path) -> None:
    folder = write_evalset(tmp_path, [ONE])
    (folder / "items/extract.jsonl").write_text(TWO.model_dump_json() + "\n")
    with pytest.raises(SeatrialError, match=r"version 0\.9\.0 is not after 1"):
        versions.record(folder, "0.9.0", "2026-W49", "older")


def test_items_that_cannot_be_read_are_no_version_and_leave_the_manifest_as_it_was(tmp_path: Path) -> None:
    folder = write_evalset(tmp_path, [ONE])
    before = (folder / "manifest.yaml").read_bytes()
    (folder / "items/extract.jsonl").write_text(to_line(ONE) + "{\n")
    with pytest.raises(SeatrialError, match=r"extract\.jsonl:2"):
        versions.record(folder, "2", "2026-W49", "half a line")
    assert (folder / "manifest.yaml").read_bytes() == before


def test_an_edited_file_is_named_with_the_command_that_mends_it(tmp_path: Path) -> None:
    folder = write_evalset(tmp_path, [ONE])
    (folder / "items/extract.jsonl").write_text(TWO.model_dump_json() + "\n")
    evalset = load_evalset(folder)
    (problem,) = [p for p in versions.version_problems(evalset, folder) if "digest is" in p]
    assert f"seatrial evalset record {folder} --size major --week WEEK" in problem
    sets.main(["record", str(folder), "--size", "major", "--week", "2026-W49", "--what", "another question"])
    assert versions.version_problems(load_evalset(folder), folder) == []
    assert load_evalset(folder).manifest.version == "2.0.0"


def test_a_set_is_compared_with_a_revision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = write_evalset(Path(), [ONE])
    who = ["-c", "user.name=n", "-c", "user.email=e"]
    for arguments in (["init", "-q"], ["add", "."], [*who, "commit", "-qm", "first"]):
        subprocess.run(["git", *arguments], check=True)
    (folder / "items/extract.jsonl").write_text(TWO.model_dump_json() + "\n")
    assert "diff HEAD:evalsets/core evalsets/core` says the size due" in _changed(folder)
    sets.main(["diff", "HEAD:evalsets/core", "evalsets/core"])
    assert "1 in, 1 out, 0 changed; a major version" in capsys.readouterr().out
    with pytest.raises(SeatrialError, match="git has no such folder there"):
        sets.main(["diff", "HEAD:evalsets/none", "evalsets/core"])
    with pytest.raises(SeatrialError, match="none is not a folder"):
        sets.main(["diff", "none", "evalsets/core"])


def test_nothing_is_offered_for_comparison_that_no_commit_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = write_evalset(Path(), [ONE])
    (folder / "items/extract.jsonl").write_text(TWO.model_dump_json() + "\n")
    assert "HEAD" not in _changed(folder)
    subprocess.run(["git", "init", "-q"], check=True)
    said = _changed(folder)
    assert "HEAD" not in said
    assert 'seatrial evalset record evalsets/core --size major --week WEEK --what "..." (version 2.0.0)' in said
    monkeypatch.setenv("PATH", str(tmp_path))  # no git
    assert "HEAD" not in _changed(folder)


def _changed(folder: Path) -> str:
    (problem,) = [p for p in versions.version_problems(load_evalset(folder), folder) if "digest is" in p]
    return problem
