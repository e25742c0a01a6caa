"""Scenarios in which a loss would hardly show are named, others are not."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.evaluation.items import Item
from pipeline.evaluation.resolution import sees_little
from tests.pipeline.evaluation.make import chat_item, choice_item

TWO = {"choices": [" yes", " no"], "reference": 0}


def answered(items: list[Item], right: int) -> list[dict[str, Any]]:
    return [{"id": item.id, "scenario": item.scenario, "score": float(n < right)} for n, item in enumerate(items)]


@pytest.mark.parametrize(
    ("right", "why"),
    [
        (22, "22 of 43 right (37% to 65%), and guessing gives 50%: no loss shows"),
        (12, "12 of 43 right (17% to 43%), and guessing gives 50%: no loss shows"),  # worse than a guess
        (30, None),
        (36, None),
        (37, "37 of 43 right, over 85%: items that a worse model gets right as well"),
    ],
)
def test_a_choice_of_two(right: int, why: str | None) -> None:
    items = [choice_item(f"choice.{i}", **TWO) for i in range(43)]
    assert sees_little(items, answered(items, right)) == ({} if why is None else {"choice": why})


def test_what_is_written_is_not_guessed() -> None:
    items = [chat_item(f"extract.{i}") for i in range(40)]
    assert sees_little(items, answered(items, 8)) == {}
    assert sees_little(items, answered(items, 7)) == {"extract": "7 of 40 right, under 20%: there is little to lose"}


def test_options_of_different_number_and_scenarios_beside_each_other() -> None:
    mixed = [choice_item(f"choice.{i}", **(TWO if i % 2 else {})) for i in range(60)]  # two options, or three
    written = [chat_item(f"extract.{i}") for i in range(20)]
    found = sees_little([*mixed, *written], [*answered(mixed, 25), *answered(written, 10)])
    assert list(found) == ["choice"]
    assert "guessing gives 42%" in found["choice"]


def test_what_a_server_cannot_do_says_nothing_of_the_model() -> None:
    items = [chat_item(f"extract.{i}") for i in range(20)]
    assert sees_little(items, [row | {"lacks": "echo"} for row in answered(items, 0)]) == {}
