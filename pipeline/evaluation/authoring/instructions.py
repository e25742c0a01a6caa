"""``writing_instructions``: a short text in a form that a program can check. Taste is not graded here."""

from __future__ import annotations

import random
from typing import Any

from pipeline.evaluation.authoring.banks.instructions import FORMS, TOPICS
from pipeline.evaluation.authoring.draft import Draft, Scenario, by_level, chat

SYSTEM = "Follow the instructions exactly. Reply with the text only."
MAX_TOKENS = 96


def question(source: str, request: str, constraints: list[dict[str, Any]], watches_for: str | None = None) -> Draft:
    return Draft(
        source=source,
        grader="instruct.constraints",
        params={"constraints": constraints},
        messages=chat(SYSTEM, [], request),
        max_tokens=MAX_TOKENS,
        watches_for=watches_for,
    )


def write(rng: random.Random, n: int) -> list[Draft]:
    levels = [[form for form in FORMS if form[1] == level] for level in (0, 1, 2)]
    drafts, seen = [], set[tuple[str, str]]()
    for family, _, request, constraints, _ in by_level(rng, levels, n):
        topic = rng.choice([t for t in TOPICS if (family, t) not in seen])
        seen.add((family, topic))
        drafts.append(question(f"instructions.{family}", request.format(t=topic), constraints))
    return drafts


def pinned() -> list[Draft]:
    return [
        question(
            "pinned.instructions.only_the_word",
            "Is water wet? Answer with the single word yes or no, in lower case and without a full stop.",
            [{"type": "word_count_between", "min": 1, "max": 1}, {"type": "all_lower"}],
            "explains where a single word was asked for",
        ),
        question(
            "pinned.instructions.no_preamble",
            "List the four seasons as bullet points that start with \"- \". Begin with the first bullet at once.",
            [{"type": "bullet_count", "count": 4}, {"type": "starts_with", "text": "- "}],
            "puts an introduction before a list that should stand alone",
        ),
        question(
            "pinned.instructions.stops_in_time",
            "Name three fruits, separated by commas, on one line.",
            [{"type": "line_count", "count": 1}, {"type": "word_count_between", "min": 3, "max": 8}],
            "goes on with a list after the number that was asked for",
        ),
    ]  # fmt: skip


SCENARIO = Scenario("writing_instructions", "instruct", 50, write, pinned)
