"""Public forms, each from a small file written for this test, and what does not fit them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import SeatrialError
from pipeline.evaluation import sets
from pipeline.evaluation.graders import Answer, grade
from pipeline.evaluation.importers import import_set
from pipeline.evaluation.items import Item, content_digest, load_evalset

ROOT = Path(__file__).resolve().parents[3]
WEEK = "2026-W49"


def imported(tmp_path: Path, form: str, *rows: Any, name: str = "mine") -> list[Item]:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    import_set(form, path, tmp_path / "sets" / name, WEEK)
    return load_evalset(tmp_path / "sets" / name).items


CHOICES = ["Iron", "Salt", "Chalk", "Ice"]


@pytest.mark.parametrize(
    "row",
    [
        {"id": "a", "question": "What melts?", "choices": CHOICES, "gold": 3},
        {"id": "a", "question": "What melts?", "choices": CHOICES, "answer": "D"},
        {"id": "a", "question": "What melts?", "choices": CHOICES, "label": "3"},
        {"id": "a", "question": "What melts?", "choices": {"text": CHOICES, "label": list("1234")}, "answerKey": "4"},
    ],
)
def test_every_way_to_name_the_right_choice(tmp_path: Path, row: dict[str, Any]) -> None:
    (item,) = imported(tmp_path, "choice", row)
    assert (item.id, item.prompt, item.reference) == ("mine-a", "Question: What melts?\nAnswer:", 3)
    assert item.choices == [" Iron", " Salt", " Chalk", " Ice"]
    assert (item.origin, item.week, item.max_tokens) == ("imported", WEEK, 0)


def test_two_solutions_and_endings(tmp_path: Path) -> None:
    (goal,) = imported(tmp_path, "choice", {"goal": "Cool it", "sol1": "In ice", "sol2": "In fire", "label": 0})
    assert (goal.choices, goal.reference) == ([" In ice", " In fire"], 0)
    row = {"ind": 7, "ctx": "She opens the door and ", "endings": ["walks in.", "flies."], "label": "0"}
    (context,) = imported(tmp_path, "continuation", row, name="stories")
    assert (context.id, context.prompt) == ("stories-7", "She opens the door and")


def test_squad_questions_of_a_paragraph_are_one_cluster(tmp_path: Path) -> None:
    asked = [
        {"id": "q1", "question": "Where?", "answers": [{"text": "in Ulm"}, {"text": "Ulm"}, {"text": "Ulm"}]},
        {"id": "q2", "question": "When?", "answers": []},
        {"id": "q3", "question": "Who?", "answers": [{"text": "a smith"}]},
    ]
    path = tmp_path / "squad.json"
    path.write_text(json.dumps({"data": [{"paragraphs": [{"context": "A smith lived in Ulm.", "qas": asked}]}]}))
    result = import_set("squad", path, tmp_path / "reading", WEEK)
    assert result.lines() == [f"1 left out: has no answer in the passage ({path}: data[0].paragraphs[0].qas[1])"]
    first, second = load_evalset(tmp_path / "reading").items
    assert first.reference == ["in Ulm", "Ulm"]
    assert first.source == second.source == "reading.0.0"
    assert grade(first, Answer("Ulm.")).correct
    path.write_text('{"data": [{}]}')
    with pytest.raises(SeatrialError, match="not of the SQuAD form"):
        import_set("squad", path, tmp_path / "other", WEEK)


def test_the_number_after_the_marks_is_the_reference(tmp_path: Path) -> None:
    rows = [{"question": f"q{n}?", "answer": f"So.\n#### {a}"} for n, a in enumerate(["1,200", "-3", "2.5", "$4"])]
    assert [i.reference for i in imported(tmp_path, "gsm8k", *rows)] == [1200, -3, 2.5, 4]


def test_programs_keep_the_tests_of_their_source(tmp_path: Path) -> None:
    mbpp = {
        "task_id": 9, "prompt": "Write a function that doubles.", "test_imports": ["import math"],
        "code": "def helper(x):\n    return x\ndef twice(x):\n    return helper(x) * 2",
        "test_list": ["assert twice(2) == 4", "assert math.isclose(twice(0.5), 1)"],
    }  # fmt: skip
    (item,) = imported(tmp_path, "mbpp", mbpp)
    assert item.grader.params["entry_point"] == "twice"
    assert item.messages is not None
    assert "assert twice(2) == 4" in item.messages[0].content
    human = {
        "task_id": "Own/3", "prompt": "def half(x):\n    '''Half of x.'''\n", "entry_point": "half",
        "test": "def check(candidate):\n    assert candidate(4) == 2\n",
    }  # fmt: skip
    (item,) = imported(tmp_path, "humaneval", human, name="human")
    assert item.id == "human-own-3"
    g = grade(item, Answer("```python\ndef half(x):\n    return x / 2\n```"))
    assert g.correct or "not measurable here" in str(g.reason)
    assert not grade(item, Answer("def half(x):\n    return x")).correct


def test_instructions_with_their_arguments(tmp_path: Path) -> None:
    row = {
        "key": 12, "prompt": "Say it in ten words or more, in lower case.",
        "instruction_id_list": ["length_constraints:number_words", "change_case:english_lowercase"],
        "kwargs": [{"num_words": 10, "relation": "at least", "num_bullets": None}, {}],
    }  # fmt: skip
    other = {**row, "key": 13, "instruction_id_list": ["language:response_language"], "kwargs": [{"language": "de"}]}
    (item,) = imported(tmp_path, "ifeval", row, other)
    assert grade(item, Answer("one two three four five six seven eight nine ten")).correct


def test_logged_samples_of_lm_eval_in_both_shapes(tmp_path: Path) -> None:
    choice = {"doc_id": 0, "target": "1", "arguments": [["The sky is", " red"], ["The sky is", " blue"]], "resps": []}
    named = {
        "doc_id": 1, "target": "blue",
        "arguments": {"gen_args_0": {"arg_0": "The sea is", "arg_1": {"until": ["\n"], "max_gen_toks": 16}}},
    }  # fmt: skip
    perplexity = {"doc_id": 2, "target": "x", "arguments": [["", "A whole text."]]}
    first, second = imported(tmp_path, "lm-eval", choice, named, perplexity)
    assert (first.prompt, first.choices, first.reference) == ("The sky is", [" red", " blue"], 1)
    assert (second.prompt, second.reference, second.max_tokens) == ("The sea is", ["blue"], 16)


def test_rows_that_do_not_fit_are_counted_by_reason(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    good = {"question": "Which?", "choices": ["a", "b"], "gold": 0}
    bad = [{**good, "gold": 2}, {**good, "choices": ["a", "a"]}, {"question": "Which?"}, {**good, "gold": "x1"}]
    path.write_text("".join(json.dumps(r) + "\n" for r in [good, *bad]))
    result = import_set("choice", path, tmp_path / "mine", WEEK)
    assert len(result.items) == 1
    assert sorted(result.left_out.values()) == [1, 1, 1, 1]
    assert "the right choice is number 2 of 2, counted from 0" in result.left_out
    assert f"1 left out: has none of choices, endings, options ({path}:4)" in result.lines()
    assert any("two of `choices` are the same text" in why for why in result.left_out)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"question": "q"\n', r"rows\.jsonl:1: expected a JSON object in UTF-8"),
        ('{"question": "q\u00e9"}\n'.encode("latin-1"), r"rows\.jsonl:1: expected a JSON object in UTF-8"),
        (b"[1]\n", r"rows\.jsonl:1: found list, expected a JSON object"),
        (b'{"question": "q"}\n', "no row became an item"),
    ],
)
def test_a_file_of_another_form_is_an_error(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "rows.jsonl").write_bytes(content)
    with pytest.raises(SeatrialError, match=message):
        import_set("choice", tmp_path / "rows.jsonl", tmp_path / "mine", WEEK)
    assert not (tmp_path / "mine").exists()


def test_names_must_be_unique_and_the_folder_new(tmp_path: Path) -> None:
    row = {"id": "a", "question": "Which?", "choices": ["a", "b"], "gold": 0}
    with pytest.raises(SeatrialError, match=r"rows\.jsonl:2 has the name 'mine-a' of .*rows\.jsonl:1"):
        imported(tmp_path, "choice", row, row)
    imported(tmp_path, "choice", row)
    with pytest.raises(SeatrialError, match="exists; choose another folder"):
        imported(tmp_path, "choice", row)
    with pytest.raises(SeatrialError, match="it names scenario and ids"):
        imported(tmp_path, "choice", row, name="My-Set")


def test_the_command_leaves_a_set_with_a_version_and_a_suite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"question": "Which?", "choices": ["a", "b"], "gold": 0}) + "\n")
    out = tmp_path / "sets" / "mine"
    sets.main(["import", "--format", "choice", str(path), "--out", str(out), "--week", WEEK])
    assert "1 items, version 1.0.0" in capsys.readouterr().out
    evalset = load_evalset(out)
    assert evalset.manifest.content_digest == content_digest(out)
    assert evalset.manifest.scenarios == {"mine": {"kind": "choice", "items": 1, "pinned": 0}}
    assert (tmp_path / "sets/expectations/imported.json").is_file()
