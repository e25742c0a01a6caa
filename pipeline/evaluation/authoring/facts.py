"""``short_facts``: one-line questions with four answers of the same family, so that form alone gives nothing away."""

from __future__ import annotations

import random

from pipeline.evaluation.authoring.banks.facts import FAMILIES
from pipeline.evaluation.authoring.draft import Draft, Scenario, by_level, fixed_choice, multiple_choice

PROMPT = "Question: {q}\nAnswer:"


def write(rng: random.Random, n: int) -> list[Draft]:
    levels = [
        [(name, x) for name, (_, level, facts) in FAMILIES.items() if level == wanted for x in facts]
        for wanted in (0, 1, 2)
    ]
    drafts = []
    for name, x in by_level(rng, levels, n):
        question, _, facts = FAMILIES[name]
        wrong = rng.sample(sorted(set(facts.values()) - {facts[x]}), 3)
        prompt = PROMPT.format(q=question.format(x=x))
        drafts.append(multiple_choice(rng, f"facts.{name}", prompt, facts[x], wrong, normalise="none"))
    return drafts


def pinned() -> list[Draft]:
    return [
        fixed_choice(
            "pinned.facts.not_the_largest",
            PROMPT.format(q="Which city is the capital of Australia?"),
            ["Sydney", "Canberra", "Melbourne", "Perth"],
            1,
            "takes the best-known city for the capital",
            normalise="none",
        ),
        fixed_choice(
            "pinned.facts.negation",
            PROMPT.format(q="Which of these animals cannot fly: the eagle, the penguin, the bat or the swallow?"),
            ["the eagle", "the penguin", "the bat", "the swallow"],
            1,
            "overlooks the negation in the question",
            normalise="none",
        ),
        fixed_choice(
            "pinned.facts.which_way",
            PROMPT.format(q="Paris is the capital of which country?"),
            ["Italy", "Spain", "Belgium", "France"],
            3,
            "knows a fact in one direction only",
            normalise="none",
        ),
    ]


SCENARIO = Scenario("short_facts", "choice", 60, write, pinned)
