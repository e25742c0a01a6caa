"""Graders: what they refuse, and what holds for any answer."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import SeatrialError
from pipeline.evaluation.graders import GRADERS, Answer, check_item, grade, versions
from pipeline.evaluation.graders.code import extract_program
from pipeline.evaluation.graders.constraints import Constraint
from pipeline.evaluation.graders.extract import normalise, token_f1
from pipeline.evaluation.graders.numbers import last_number
from pipeline.evaluation.items import Item
from tests.pipeline.evaluation.make import chat_item, choice_item, code_item


def instruct(*constraints: dict[str, Any], **changes: Any) -> Item:
    grader = {"name": "instruct.constraints", "params": {"constraints": list(constraints)}}
    return chat_item(kind="instruct", grader=grader, **{"reference": None, **changes})


def graded_by(name: str, params: dict[str, Any], **changes: Any) -> Item:
    return chat_item(grader={"name": name, "params": params}, **changes)


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (
            graded_by("extract.guess", {}),
            "unknown grader 'extract.guess'; there are choice.loglikelihood, extract.match",
        ),
        (graded_by("extract.match", {"fuzzy": True}), "extract.match: fuzzy: Extra inputs are not permitted"),
        (graded_by("math.last_number", {"tolerance": -1}, reference=1), "tolerance: Input should be greater than"),
        (graded_by("math.last_number", {}, reference="4"), "reference is '4'; expected a number"),
        (graded_by("math.last_number", {}, reference=True), "reference is True; expected a number"),
        (graded_by("extract.match", {}, reference=[]), r"reference is \[\]; expected a text or a list"),
        (graded_by("extract.match", {}, reference="..."), "nothing but punctuation"),
        (chat_item(prompt="and a prompt"), "expected exactly one of `prompt` and `messages`"),
        (chat_item(max_tokens=0), "max_tokens is 0; expected at least 1"),
        (chat_item(choices=["a", "b"]), "`choices` is given, but this grader reads a text"),
        (choice_item(reference=3), "reference is 3, but there are 3 choices, counted from 0"),
        (choice_item(reference="1"), "expected the 0-based index"),
        (choice_item(reference=True), "expected the 0-based index"),
        (choice_item(choices=[" a"], reference=0), "at least two texts"),
        (choice_item(choices=[" a", " a"], reference=0), "two of `choices` are the same text"),
        (choice_item(prompt="ends in a space "), "put the space at the start of each choice"),
        (choice_item(max_tokens=5), "max_tokens is 5; expected 0"),
        (choice_item(prompt=None, messages=[{"role": "user", "content": "q"}]), "expected `prompt` and no `messages`"),
        (
            choice_item(grader={"name": "choice.loglikelihood", "params": {"normalise": "bytes"}}),
            "normalise: Input should",
        ),
        (instruct(), "constraints: List should have at least 1 item"),
        (instruct({"type": "rhymes"}), "'rhymes' found using 'type' does not match any of the expected tags"),
        (instruct({"type": "contains", "word": "x"}), r"contains\.text: Field required"),
        (instruct({"type": "no_commas", "count": 1}), r"no_commas\.count: Extra inputs are not permitted"),
        (instruct({"type": "word_count_between", "min": 5, "max": 2}), "min is 5, above max 2"),
        (instruct({"type": "no_commas"}, reference="x"), "reference is 'x'; expected null"),
        (code_item(reference="x"), "reference is 'x'; expected null"),
        (code_item(messages=None, prompt="def f(x):"), "expected `messages`"),
        (code_item(grader={"name": "code.unit_tests", "params": {"entry_point": "f"}}), "tests: Field required"),
    ],
)
def test_what_does_not_suit_is_refused_by_name(item: Item, message: str) -> None:
    with pytest.raises(SeatrialError, match=message):
        check_item(item)


@pytest.mark.parametrize(
    ("tests", "message"),
    [
        ("assert f(", "`tests` is not Python"),
        ("f(1)", "`tests` has no assert"),
        ("assert g(1) == 1", "`tests` never uses entry_point 'f'"),
    ],
)
def test_unit_tests_that_test_nothing_are_refused(tests: str, message: str) -> None:
    item = code_item(grader={"name": "code.unit_tests", "params": {"entry_point": "f", "tests": tests}})
    with pytest.raises(SeatrialError, match=message):
        check_item(item)


def test_the_lowest_index_wins_a_tie() -> None:
    item = choice_item(reference=0)
    assert grade(item, Answer(choice_logprobs=[[-1.0], [-1.0], [-1.0]])).correct
    assert not grade(item, Answer(choice_logprobs=[[-1.0], [-0.5, -0.25], [-1.0]])).correct


@given(st.lists(st.lists(st.floats(-50, 0), min_size=1, max_size=5), min_size=3, max_size=3))
def test_the_margin_says_whether_the_choice_was_right(logprobs: list[list[float]]) -> None:
    g = grade(choice_item(reference=0), Answer(choice_logprobs=logprobs))
    assert g.correct == (g.detail["margin"] >= 0)
    assert g.detail["scores"] == [math.fsum(x) for x in logprobs]


ANSWERED_IN_TEXT = [
    chat_item(),
    graded_by("math.last_number", {}, reference=4, kind="math"),
    instruct(
        {"type": "contains", "text": "x"},
        {"type": "not_contains", "text": "y", "whole_word": True},
        {"type": "starts_with", "text": "x"},
        {"type": "ends_with", "text": "x"},
        {"type": "word_count_between", "min": 1, "max": 9},
        {"type": "line_count", "count": 1},
        {"type": "bullet_count", "count": 1},
        {"type": "sentence_count", "count": 1},
        {"type": "numbered_list", "count": 1},
        {"type": "all_lower"},
        {"type": "all_upper"},
        {"type": "no_commas"},
        {"type": "repeat_word", "word": "x", "count": 1},
        {"type": "quoted"},
        {"type": "json_valid"},
        {"type": "json_keys", "keys": ["x"]},
    ),
]


def test_every_constraint_is_among_those_that_any_text_is_tried_on() -> None:
    given_types = {c["type"] for c in ANSWERED_IN_TEXT[2].grader.params["constraints"]}
    union = Constraint.__origin__.__args__  # type: ignore[attr-defined]
    assert given_types == {c.model_fields["type"].annotation.__args__[0] for c in union}


@pytest.mark.parametrize("item", ANSWERED_IN_TEXT, ids=lambda i: i.grader.name)
@given(text=st.one_of(st.text(max_size=60), st.text(alphabet="0123456789.,-−/$ \n{}\"'[]:eE\\frac", max_size=40)))
def test_any_text_gets_a_grade_with_a_reason(item: Item, text: str) -> None:
    check_item(item)
    g = grade(item, Answer(text))
    assert g.status == "ok"
    assert g.correct == (g.reason is None)
    if not text.strip():
        assert not g.correct


@given(
    st.integers(-(10**9), 10**9), st.sampled_from(["The answer is {}.", "= {}", "{}", "**{}**", "so {} km", "a\n{}\n"])
)
def test_a_whole_number_is_read_back_in_any_dress(value: int, dress: str) -> None:
    for written in (str(value), f"{value:,}", f"{value}.0"):
        found = last_number(dress.format(written))
        assert found is not None
        assert found[1] == value


@given(st.integers(1, 999), st.integers(1, 999), st.integers(1, 999))
def test_a_subtraction_is_no_negative_number(a: int, b: int, c: int) -> None:
    for text in (f"{a}-{b}", f"{a} - {b}", f"({a})-{b}", f"x-{b}", f"{a} {b}"):
        assert last_number(text) == (str(b), b)
    assert last_number(f"{a} + {b} = -{c}") == (f"-{c}", -c)


def test_a_number_beyond_the_range_of_a_float_is_passed_over() -> None:
    for endless in ("1e400", "9" * 400, "9" * 5000 + " 1/2"):
        assert last_number(f"4, then {endless}") == ("4", 4)
    assert last_number("0E400") == ("0E400", 0)
    assert last_number("1/" + "9" * 400) == ("1/" + "9" * 400, 0)


@given(st.text(max_size=40))
def test_normalising_twice_changes_nothing(text: str) -> None:
    assert normalise(normalise(text)) == normalise(text)


def test_token_f1_follows_its_definition() -> None:
    assert token_f1("red old barn", "old barn") == pytest.approx(2 * (2 / 3) * 1 / (2 / 3 + 1))
    assert token_f1("a a b", "a b b") == pytest.approx(2 / 3)
    assert token_f1("x", "y") == 0.0


def test_the_block_that_defines_the_function_is_the_program() -> None:
    text = "First:\n```bash\npip install x\n```\nthen\n```python\ndef f():\n    return 1\n```\nand\n```\nf()\n```"
    assert extract_program(text, "f") == "def f():\n    return 1\n"
    assert extract_program(text, "g") == "pip install x\n"


def test_versions_are_those_of_the_graders_in_use() -> None:
    assert versions([chat_item(), choice_item()]) == {"choice.loglikelihood": "1", "extract.match": "1"}
    assert set(GRADERS) == {
        "choice.loglikelihood", "extract.match", "math.last_number", "code.unit_tests", "instruct.constraints",
        "instruct.ifeval", "people.rubric",
    }  # fmt: skip
