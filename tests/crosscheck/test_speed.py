"""The pairing of two evaluations: the same questions, both orders, and nobody fast by leaving something out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from pipeline.errors import SeatrialError
from tests.crosscheck.speed import TASK, Timed, read_timed, same_choices, show, turns, write_task
from tests.crosscheck.timed_ours import choice_items

ITEMS = choice_items(1)


def answers(likeliest: int, other: float = -5.0) -> dict[tuple[str, str], float]:
    return {
        (item.prompt or "", choice): -1.0 if i == likeliest else other
        for item in ITEMS
        for i, choice in enumerate(item.choices or [])
    }


def test_both_sides_are_asked_the_same(tmp_path: Path) -> None:
    write_task(ITEMS, tmp_path)
    rows = [json.loads(line) for line in (tmp_path / f"{TASK}.jsonl").read_text(encoding="utf-8").splitlines()]
    assert {(row["prompt"], choice) for row in rows for choice in row["choices"]} == answers(0).keys()
    assert [row["choices"][row["answer"]] for row in rows] == [(x.choices or [])[x.reference] for x in ITEMS]
    task = yaml.safe_load((tmp_path / f"{TASK}.yaml").read_text(encoding="utf-8"))
    assert task["target_delimiter"] == ""  # a choice begins with its own space
    assert all(choice.startswith(" ") for row in rows for choice in row["choices"])


def test_one_item_of_each_scenario() -> None:
    scenarios = [item.scenario for item in ITEMS]
    assert len(set(scenarios)) == len(scenarios) >= 5


def test_neither_side_is_always_first() -> None:
    assert turns(4) == [True, False, True, False]


def test_what_a_side_wrote_is_read_by_question() -> None:
    run = read_timed({"answering_s": 2, "loglikelihoods": [["a", " b", -1.5], ["a", " c", -2]]}, 3.0)
    assert run == Timed(2.0, 3.0, {("a", " b"): -1.5, ("a", " c"): -2.0})


def test_answering_is_a_part_of_the_total() -> None:
    with pytest.raises(ValueError, match=r"answering took 4.0 s of 3.0 s in total"):
        read_timed({"answering_s": 4, "loglikelihoods": []}, 3.0)


def test_items_that_both_judge_alike_are_counted() -> None:
    assert same_choices(ITEMS, answers(0), answers(0)) == (len(ITEMS), 0.0)
    assert same_choices(ITEMS, answers(0), answers(1, other=-4.0)) == (0, 4.0)


def test_a_question_left_out_is_an_error() -> None:
    fewer = answers(0)
    fewer.popitem()
    with pytest.raises(SeatrialError, match=f"our evaluation has no answer to 1 of {len(answers(0))} questions"):
        same_choices(ITEMS, fewer, answers(0))
    with pytest.raises(SeatrialError, match="lm-eval has no answer to 1 of"):
        same_choices(ITEMS, answers(0), fewer)


def test_the_ratio_is_ours_to_theirs() -> None:
    ours = [Timed(1.0, 4.0, {}), Timed(2.0, 8.0, {})]
    theirs = [Timed(3.0, 4.0, {}), Timed(6.0, 8.0, {})]
    table = show(ITEMS, ours, theirs, 8)
    ratios, rounds = list(table.columns[3].cells), list(table.columns[5].cells)
    assert ratios == ["3.00", "1.00"]
    assert rounds == ["3.00 3.00", "1.00 1.00"]
