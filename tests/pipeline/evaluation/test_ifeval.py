"""Public instructions: for each, an answer that obeys and one that does not, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.errors import SeatrialError
from pipeline.evaluation.graders import Answer, check_item, grade
from pipeline.evaluation.graders.ifeval import INSTRUCTIONS
from pipeline.evaluation.items import Item
from tests.pipeline.evaluation.ifeval_cases import CASES
from tests.pipeline.evaluation.make import chat_item


def item(*instructions: dict[str, Any], **changes: Any) -> Item:
    grader = {"name": "instruct.ifeval", "params": {"instructions": list(instructions)}}
    return chat_item(kind="instruct", reference=None, grader=grader, **changes)


def test_every_instruction_has_a_case() -> None:
    assert set(CASES) == set(INSTRUCTIONS)


@pytest.mark.parametrize("name", CASES)
def test_an_instruction_tells_obeying_answers_from_others(name: str) -> None:
    kwargs, obeying, others = CASES[name]
    one = item({"id": name, "kwargs": kwargs})
    check_item(one)
    for text in obeying:
        assert grade(one, Answer(text)).correct, text
    for text in [*others, "", " \n"]:
        g = grade(one, Answer(text))
        assert not g.correct, text
        assert g.reason


def test_all_instructions_must_be_obeyed_and_the_broken_one_is_named() -> None:
    both = item({"id": "punctuation:no_comma"}, {"id": "change_case:english_lowercase"})
    assert grade(both, Answer("fine")).detail == {"met": 2, "of": 2}
    g = grade(both, Answer("Fine"))
    assert (g.correct, g.reason, g.detail["met"]) == (False, "does not obey change_case:english_lowercase", 1)


@pytest.mark.parametrize(
    ("instruction", "message"),
    [
        ({"id": "language:response_language", "kwargs": {"language": "de"}}, "not one that can be checked here"),
        ({"id": "punctuation:no_comma", "kwargs": {"n": 1}}, r"has the arguments \['n'\], expected \[\]"),
        ({"id": "keywords:existence", "kwargs": {"keywords": []}}, "expected a list of texts"),
        ({"id": "startend:end_checker", "kwargs": {"end_phrase": 3}}, "end_phrase is 3, expected str"),
        (
            {"id": "length_constraints:number_words", "kwargs": {"num_words": 3, "relation": "about"}},
            "relation is 'about', expected one of at least, less than",
        ),
    ],
)
def test_what_cannot_be_checked_is_refused(instruction: dict[str, Any], message: str) -> None:
    with pytest.raises(SeatrialError, match=message):
        check_item(item(instruction))
