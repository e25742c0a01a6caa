"""What raters judge, in the words that stand on the form. A change of wording is a new version."""

from __future__ import annotations

from dataclasses import dataclass

VERSION = "1"


@dataclass(frozen=True)
class Criterion:
    name: str
    question: str
    anchors: dict[int, str]


RUBRIC = (
    Criterion(
        "clarity",
        "Is it easy to read and to act on?",
        {1: "cannot be understood", 3: "understood after a second reading", 5: "clear at once, nothing superfluous"},
    ),
    Criterion(
        "faithfulness",
        "Does it say only what the request, its text and common knowledge bear out?",
        {
            1: "mostly invented or wrong",
            3: "right in the main, a detail is not borne out",
            5: "all borne out",
        },
    ),
    Criterion(
        "completeness",
        "Does it answer all that was asked?",
        {1: "does not answer the question", 3: "answers the main point, leaves out another", 5: "answers every point"},
    ),
)
SCALE = range(1, 6)
