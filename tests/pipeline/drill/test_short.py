"""The short drill: every planted fault is caught and named by what is meant to, and a sound trial is not accused."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pipeline.drill import artifacts, evalsets, records
from pipeline.drill.__main__ import main
from pipeline.drill.fault import Fault, Seen
from pipeline.drill.run import as_json, drill, markdown, row_of, rows_in
from pipeline.drill.trial import judged
from pipeline.errors import SeatrialError

SHORT = [*records.FAULTS, *evalsets.FAULTS, *artifacts.FAULTS]
SLOW_KIN = {"personal-data", "missing-item", "asked-twice", "item-of-the-future"}  # of the checks, which have tests too
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def _root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def test_the_trial_that_faults_are_planted_into_ships(tmp_path: Path) -> None:
    value = judged(tmp_path, lambda root: None)
    assert value["verdict"] == "ship", value["reason"]


@pytest.mark.parametrize("fault", [f for f in SHORT if f.id not in SLOW_KIN], ids=lambda f: f.id)
def test_each_is_caught_and_named(fault: Fault, tmp_path: Path) -> None:
    seen = fault.run(tmp_path)
    assert seen.caught, seen
    assert seen.named, seen


def test_what_was_missed_stands_first_and_a_fault_that_cannot_be_planted_is_not_caught(tmp_path: Path) -> None:
    def cannot(root: Path) -> Seen:
        raise SeatrialError("no such tensor")

    found = Fault("a", "records", "one thing", lambda root: Seen(True, True, "rule: fail", "seen"))
    results = drill([found, Fault("b", "artifact", "another", cannot)], tmp_path, lambda r: None, clock=lambda: 0.0)
    table = [row_of(r) for r in results]
    value = as_json(table)
    assert (value["planted"], value["caught"], value["named"]) == (2, 1, 1)
    rows = markdown(table).splitlines()[4:]
    assert rows[0] == "| another | artifact | NO | NO | not run | 0.0 s |"
    assert rows[1] == "| one thing | records | yes | yes | rule: fail | 0.0 s |"
    assert value["faults"][1]["said"] == "no such tensor"


def test_a_table_is_made_in_pieces_and_each_row_says_when(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def drilled(*options: str) -> list[str]:
        monkeypatch.setattr(sys, "argv", ["drill", "--short", "--out", str(tmp_path), *options])
        main()
        return [r["id"] for r in rows_in(tmp_path / "drill.json")]

    assert drilled("--only", "torn-file") == ["torn-file"]
    assert drilled("--only", "flipped-bit", "--keep") == ["torn-file", "flipped-bit"]
    assert drilled("--only", "torn-file", "--keep") == ["flipped-bit", "torn-file"]
    assert all(r["as_of"].endswith("Z") for r in rows_in(tmp_path / "drill.json"))
    assert "2 of 2 planted faults caught, 2 named." in (tmp_path / "drill.md").read_text(encoding="utf-8")
    assert drilled("--only", "extra-file") == ["extra-file"]
    (tmp_path / "drill.json").write_text('{"faults": [{"id": "torn-file"}]}', encoding="utf-8")
    with pytest.raises(SeatrialError, match=r"holds no table of faults .*a row without as_of"):
        drilled("--only", "extra-file", "--keep")


def test_the_set_as_it_is_gives_no_alarm(tmp_path: Path) -> None:
    seen = evalsets.by_check(lambda root, rows: None, "leaks_")(tmp_path)
    assert not seen.caught
    assert seen.said == "sound"


def test_at_least_two_dozen_kinds_are_planted() -> None:
    from pipeline.drill.engine import TABLE

    ids = [f.id for f in SHORT] + [row[0] for row in TABLE]
    assert len(ids) == len(set(ids)) >= 24
