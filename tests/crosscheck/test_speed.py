"""The pairing of two evaluations: the same questions, both orders, and nobody fast by leaving something out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from pipeline.errors import SeatrialError
from pipeline.evaluation.items import Item
from tests.crosscheck.speed import FIGURES, Timed, read_timed, show, turns
from tests.crosscheck.speed_items import CHOICES, GENERATED, core_items, same_choices, same_texts, write_tasks

ITEMS = core_items(2)


def rendered(item: Item) -> str:
    return f"<{item.id}> answer"


def answers(likeliest: int, other: float = -5.0) -> dict[tuple[str, str], float]:
    return {
        (item.prompt or "", choice): -1.0 if i == likeliest else other
        for item in ITEMS[CHOICES]
        for i, choice in enumerate(item.choices or [])
    }


def rows_of(folder: Path, name: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


def test_both_sides_are_asked_the_same_choices(tmp_path: Path) -> None:
    name, *_ = write_tasks(ITEMS, rendered, tmp_path)
    rows = rows_of(tmp_path, name)
    asked = {(str(row["prompt"]), choice) for row in rows for choice in row["choices"]}  # type: ignore[attr-defined]
    assert asked == answers(0).keys()
    assert [row["answer"] for row in rows] == [x.reference for x in ITEMS[CHOICES]]
    task = yaml.safe_load((tmp_path / f"{name}.yaml").read_text(encoding="utf-8"))
    assert task["task"] == name
    assert task["target_delimiter"] == ""  # a choice begins with its own space


def test_each_text_is_asked_once_with_its_own_length(tmp_path: Path) -> None:
    _, *names = write_tasks(ITEMS, rendered, tmp_path)
    found: dict[object, object] = {}
    for name in names:
        task = yaml.safe_load((tmp_path / f"{name}.yaml").read_text(encoding="utf-8"))
        how = task["generation_kwargs"]
        assert (task["output_type"], how["until"], how["do_sample"]) == ("generate_until", [], False)
        found |= {row["id"]: (row["prompt"], how["max_gen_toks"]) for row in rows_of(tmp_path, name)}
    assert found == {item.id: (rendered(item), item.max_tokens) for item in ITEMS[GENERATED]}


def test_so_many_items_of_each_scenario() -> None:
    scenarios = [item.scenario for items in ITEMS.values() for item in items]
    assert {scenarios.count(s) for s in scenarios} == {2}
    assert min(len(items) for items in ITEMS.values()) >= 10


def test_neither_side_is_always_first() -> None:
    assert turns(4) == [True, False, True, False]


def test_what_a_side_wrote_is_read_by_question() -> None:
    told = {
        "seconds": {"choices": 2, "generated": 0.5},
        "loglikelihoods": [["a", " b", -1.5], ["a", " c", -2]],
        "texts": [["item-1", "yes"]],
    }
    run = read_timed(told, 3.0)
    assert run == Timed({CHOICES: 2.0, GENERATED: 0.5}, 3.0, {("a", " b"): -1.5, ("a", " c"): -2.0}, {"item-1": "yes"})
    assert [run.figure(name) for name in FIGURES] == [2.0, 0.5, 2.5, 3.0]


def test_answering_is_a_part_of_the_total() -> None:
    with pytest.raises(ValueError, match=r"answering took 4.0 s of 3.0 s in total"):
        read_timed({"seconds": {"choices": 1, "generated": 3}, "loglikelihoods": [], "texts": []}, 3.0)
    with pytest.raises(KeyError, match="generated"):
        read_timed({"seconds": {"choices": 1}, "loglikelihoods": [], "texts": []}, 3.0)


def test_items_that_both_judge_alike_are_counted() -> None:
    items = ITEMS[CHOICES]
    assert same_choices(items, answers(0), answers(0)) == (len(items), 0.0)
    assert same_choices(items, answers(0), answers(1, other=-4.0)) == (0, 4.0)


def test_equal_texts_are_counted() -> None:
    ours = {item.id: f"{item.id} is so" for item in ITEMS[GENERATED]}
    assert same_texts(ITEMS[GENERATED], ours, {name: f" {text}\n" for name, text in ours.items()}) == len(ours)
    assert same_texts(ITEMS[GENERATED], ours, {**ours, ITEMS[GENERATED][0].id: "not so"}) == len(ours) - 1
    with pytest.raises(SeatrialError, match=f"lm-eval has no answer to {len(ours)} of {len(ours)} questions"):
        same_texts(ITEMS[GENERATED], ours, {})


def test_a_question_left_out_is_an_error() -> None:
    fewer = answers(0)
    fewer.popitem()
    with pytest.raises(SeatrialError, match=f"our evaluation has no answer to 1 of {len(answers(0))} questions"):
        same_choices(ITEMS[CHOICES], fewer, answers(0))
    with pytest.raises(SeatrialError, match="lm-eval has no answer to 1 of"):
        same_choices(ITEMS[CHOICES], answers(0), fewer)


def test_the_ratio_is_ours_to_theirs() -> None:
    ours = [Timed({CHOICES: 1.0, GENERATED: 2.0}, 4.0, {}, {}), Timed({CHOICES: 2.0, GENERATED: 4.0}, 8.0, {}, {})]
    theirs = [Timed({CHOICES: 3.0, GENERATED: 3.0}, 8.0, {}, {}), Timed({CHOICES: 6.0, GENERATED: 6.0}, 16.0, {}, {})]
    table = show({CHOICES: 8, GENERATED: 4}, ours, theirs, (8, 16))
    assert list(table.columns[0].cells) == list(FIGURES)
    assert list(table.columns[1].cells) == ["8", "4", "12", "12"]
    assert next(iter(table.columns[2].cells)) == "8.00 (4.00 to 8.00)"
    assert list(table.columns[4].cells) == ["3.00", "1.50", "2.00", "2.00"]
    assert next(iter(table.columns[6].cells)) == "3.00 3.00"
