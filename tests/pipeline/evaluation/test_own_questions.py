"""Questions of one's own, kinds mixed: what a row becomes, and how they take the place of the examples of `init`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import SeatrialError
from pipeline.evaluation import sets
from pipeline.evaluation.check import examine
from pipeline.evaluation.expectations import load_suite, suite_path
from pipeline.evaluation.graders import Answer, grade
from pipeline.evaluation.importers import import_set
from pipeline.evaluation.items import Item, load_evalset
from pipeline.gate.policy import read_policy
from pipeline.params import load_params
from pipeline.project.init import init

WEEK = "2026-W49"
ASKED = {"question": "Which town?"}
RIME = {"type": "not_contains", "text": "sea"}


def rows(tmp_path: Path, *given: dict[str, Any]) -> Path:
    path = tmp_path / "questions.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in given))
    return path


def one(tmp_path: Path, **fields: Any) -> Item:
    import_set("own", rows(tmp_path, ASKED | fields), tmp_path / "mine", WEEK)
    (item,) = load_evalset(tmp_path / "mine").items
    return item


def test_a_number_is_worked_out_and_a_text_is_read(tmp_path: Path) -> None:
    path = rows(
        tmp_path, ASKED | {"answer": 12}, ASKED | {"answer": "Ulm"}, ASKED | {"answer": ["Ulm", "Ulm, Germany"]}
    )
    import_set("own", path, tmp_path / "mine", WEEK)
    number, text, texts = load_evalset(tmp_path / "mine").items
    assert [i.scenario for i in (number, text, texts)] == ["math", "extract", "extract"]
    assert [i.id for i in (number, text, texts)] == ["mine-00001", "mine-00002", "mine-00003"]
    assert number.messages is not None
    assert (number.messages[0].content, number.origin, number.week) == ("Which town?", "written", WEEK)
    assert grade(number, Answer("It is 12.")).correct
    assert grade(text, Answer("Ulm")).correct
    assert not grade(text, Answer("Bern")).correct
    assert grade(texts, Answer("Ulm, Germany")).correct


@pytest.mark.parametrize(
    ("choices", "answer", "right"),
    [(["Bern", "Ulm"], "Ulm", 1), (["Bern", "Ulm"], "B", 1), (["Bern", "Ulm"], 0, 0), (["3", "1", "2"], "2", 2)],
)
def test_the_right_choice_by_its_text_its_letter_or_its_index(
    tmp_path: Path, choices: list[str], answer: Any, right: int
) -> None:
    item = one(tmp_path, choices=choices, answer=answer)
    assert (item.kind, item.reference, item.scenario) == ("choice", right, "choice")
    assert item.choices == [f" {c}" for c in choices]


def test_constraints_and_tests_judge_an_answer_without_a_reference(tmp_path: Path) -> None:
    path = rows(
        tmp_path,
        ASKED | {"constraints": [RIME], "max_tokens": 9},
        ASKED | {"tests": "assert f(2) == 4", "entry_point": "f"},
    )
    import_set("own", path, tmp_path / "mine", WEEK)
    text, code = load_evalset(tmp_path / "mine").items
    assert (text.kind, text.max_tokens) == ("instruct", 9)
    assert grade(text, Answer("A boat.")).correct
    assert not grade(text, Answer("The sea.")).correct
    assert (code.kind, code.grader.params["entry_point"]) == ("code", "f")


def test_what_a_row_says_of_itself_is_kept(tmp_path: Path) -> None:
    item = one(tmp_path, answer="Ulm", id="U 1", scenario="towns", source="atlas", watches_for="naming the river")
    assert (item.id, item.scenario, item.source) == ("mine-u-1", "towns", "mine.atlas")
    assert (item.origin, item.watches_for) == ("pinned", "naming the river")


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({}, "nothing to judge an answer by; expected one of choices, constraints, tests, answer"),
        ({"answer": True}, "the answer is 'True'; expected a number, a text or a list of texts"),
        ({"answer": []}, "the answer is '[]'"),
        ({"anwser": "Ulm"}, "unknown field 'anwser'; there are answer, choices"),
        ({"answer": "Ulm", "max_tokens": 0}, "max_tokens is '0'; expected a whole number"),
        ({"choices": ["Bern", "Ulm"], "answer": "Rome"}, "the right choice is 'Rome', not an index or a letter"),
        ({"constraints": [{"type": "rhymes"}]}, "constraints"),
        ({"tests": "assert g(2)", "entry_point": "f"}, "never uses entry_point 'f'"),
    ],
)
def test_a_row_that_cannot_be_judged_is_named_with_its_line(tmp_path: Path, fields: dict[str, Any], why: str) -> None:
    path = rows(tmp_path, ASKED | {"answer": "Ulm"}, ASKED | fields)
    (said,) = import_set("own", path, tmp_path / "mine", WEEK).lines()
    assert why in said
    assert said.endswith(f"({path}:2)")


def test_a_scenario_holds_one_kind(tmp_path: Path) -> None:
    path = rows(tmp_path, ASKED | {"answer": 1, "scenario": "towns"}, ASKED | {"answer": "Ulm", "scenario": "towns"})
    with pytest.raises(SeatrialError, match=r":2: scenario 'towns' has math items already, and this one is extract"):
        import_set("own", path, tmp_path / "mine", WEEK)


def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    init(folder, None, "ours", WEEK)
    monkeypatch.chdir(folder)
    return rows(tmp_path, *({"question": f"Which town is number {n}?", "answer": f"Town {n}"} for n in range(20)))


def test_the_first_questions_take_the_place_of_the_examples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One command, and nothing else to be set: settings, rules and suite are of this set already."""
    path = project(tmp_path, monkeypatch)
    sets.main(["import", "--format", "own", str(path), "--out", "evalsets/ours", "--week", WEEK])
    said = capsys.readouterr().out.splitlines()
    assert said == ["evalsets/ours: 20 items, version 1.0.0", "Next: seatrial check-evalsets"]
    evalset = load_evalset(Path("evalsets/ours"))
    assert (evalset.identity.name, evalset.manifest.suite, len(evalset.items)) == ("ours-v1", "ours", 20)
    assert [p.name for p in Path("evalsets/expectations").iterdir()] == ["ours.json"]
    report = examine(Path("evalsets/ours"), load_params())
    assert [c["name"] for c in report["checks"] if not c["success"]] == ["set_size"]  # advice
    with pytest.raises(SeatrialError, match="evalsets/ours exists; choose another folder"):
        import_set("own", path, Path("evalsets/ours"), WEEK)


def test_examples_that_were_edited_are_not_thrown_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = project(tmp_path, monkeypatch)
    mine = Path("evalsets/ours/items/sums.jsonl")
    mine.write_text(mine.read_text().replace("14 + 9", "15 + 8"))
    with pytest.raises(SeatrialError, match="evalsets/ours exists; choose another folder"):
        import_set("own", path, Path("evalsets/ours"), WEEK)
    assert "15 + 8" in mine.read_text()


def test_a_set_of_another_name_brings_its_suite_and_says_what_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = project(tmp_path, monkeypatch)
    sets.main(["import", "--format", "own", str(path), "--out", "evalsets/towns", "--week", WEEK])
    told = capsys.readouterr().out.splitlines()[-1]
    assert told == (
        "Next: set in params.yaml evaluation.evalset: towns and evalset: towns-v1 in the rules accuracy, "
        "accuracy-baseline (a margin is chosen for a set); then seatrial check-evalsets"
    )
    settings = Path("params.yaml").read_text()
    Path("params.yaml").write_text(settings.replace("evalset: ours-v1", "evalset: towns-v1").replace("ours", "towns"))
    params = load_params()
    evalset = load_evalset(Path("evalsets/towns"))
    assert len(load_suite(suite_path(Path("evalsets/towns"), evalset.manifest)).expectations) > 10
    named = {getattr(rule, "evalset", None) for rule in read_policy(params.gate, params.measured).rules}
    assert named == {None, "towns-v1"}
