"""``policy_answers``: a support answer that stands word for word in a short policy text."""

from __future__ import annotations

import random
from typing import Any

from pipeline.evaluation.authoring.banks.policies import POLICIES
from pipeline.evaluation.authoring.draft import Draft, Scenario, chat, spread

SYSTEM = "Answer with the shortest phrase from the text. Do not explain."
ASK = "{text}\n\nQuestion: {question}"
SHOTS = [
    (
        ASK.format(
            text="The ferry leaves from pier 4 at noon. Tickets are sold on board for 6 euros.",
            question="From which pier does the ferry leave?",
        ),
        "pier 4",
    ),
    (
        ASK.format(
            text="The studio is closed in July. Keys are kept by the porter, and guests stay for one night at most.",
            question="Who keeps the keys?",
        ),
        "the porter",
    ),
]
MAX_TOKENS = 40


def fill(rng: random.Random, slots: dict[str, Any]) -> dict[str, Any]:
    """A value for each slot; numbers of one text differ, so that an answer points at one place."""
    values: dict[str, Any] = {}
    for name, choice in slots.items():
        options = list(choice) if isinstance(choice, list) else list(range(choice[0], choice[1] + 1, choice[2]))
        free = [o for o in options if o not in values.values()]
        values[name] = rng.choice(free or options)
    return values


def question(source: str, text: str, asked: str, accepted: list[str], watches_for: str | None = None) -> Draft:
    return Draft(
        source=source,
        grader="extract.match",
        reference=accepted,
        messages=chat(SYSTEM, SHOTS, ASK.format(text=text, question=asked)),
        max_tokens=MAX_TOKENS,
        watches_for=watches_for,
    )


def write(rng: random.Random, n: int) -> list[Draft]:
    pairs = [(name, i) for name, (_, _, questions) in POLICIES.items() for i in range(len(questions))]
    drafts = []
    for name, i in spread(rng, pairs, n):
        text, slots, questions = POLICIES[name]
        values = fill(rng, slots)
        asked, accepted = questions[i]
        drafts.append(question(f"policy.{name}", text.format(**values), asked, [a.format(**values) for a in accepted]))
    return drafts


def pinned() -> list[Draft]:
    return [
        question(
            "pinned.policy.exception",
            "Tickets are refunded up to 7 days before the show. Season tickets are refunded up to 30 days before the "
            "first show.",
            "Up to how many days before can season tickets be refunded?",
            ["30 days", "30", "30 days before the first show", "up to 30 days"],
            "answers with the general rule where an exception applies",
        ),
        question(
            "pinned.policy.change",
            "Until May the pool closed at 8 pm. Since June it has closed at 10 pm.",
            "At what time does the pool close now?",
            ["10 pm", "at 10 pm", "10"],
            "answers with the value that is out of date because it comes first",
        ),
        question(
            "pinned.policy.two_prices",
            "A ticket costs 12 euros, for children 5 euros. A guide costs 30 euros a group.",
            "What does a ticket for a child cost?",
            ["5 euros", "€5", "5"],
            "takes the first of several prices",
        ),
    ]


SCENARIO = Scenario("policy_answers", "extract", 48, write, pinned)
