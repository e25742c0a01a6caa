"""``people.rubric``: a free text that only people can judge. No program grades it.

Its answers are kept apart from the graded items (``people.jsonl`` beside ``items.jsonl``): they count in no accuracy,
neither as right nor as wrong, and ``seatrial review sample`` draws from them.
"""

from __future__ import annotations

from pipeline.evaluation.graders.base import Answer, Grade, GraderParams, GraderSpec, need_generation
from pipeline.evaluation.items import Item

NAME = "people.rubric"


class Params(GraderParams):
    pass


def check(item: Item, params: Params) -> None:
    need_generation(item)
    if item.reference is not None and not isinstance(item.reference, str):
        raise ValueError(f"reference is {item.reference!r}; expected null or a text for the raters to compare with")


def grade(item: Item, params: Params, answer: Answer) -> Grade:
    """Not a judgement: says that one is due."""
    return Grade(False, "for people to judge", status="ok" if answer.text.strip() else "error")


SPEC = GraderSpec(NAME, "1", Params, grade, check, for_people=True)
