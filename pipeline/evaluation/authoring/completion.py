"""``everyday_completion``: which ending follows from an everyday opening. Three endings, mean log-likelihood."""

from __future__ import annotations

import random

from pipeline.evaluation.authoring.banks.completion import ROWS
from pipeline.evaluation.authoring.draft import NAMES, Draft, Scenario, fixed_choice, multiple_choice, spread


def write(rng: random.Random, n: int) -> list[Draft]:
    drafts = []
    for family, opening, right, *wrong in spread(rng, ROWS, n):
        one, two = rng.sample(NAMES, 2)
        fill = [text.format(n=one, m=two) for text in (opening, right, *wrong)]
        drafts.append(multiple_choice(rng, f"completion.{family}", fill[0], fill[1], fill[2:], normalise="tokens"))
    return drafts


def pinned() -> list[Draft]:
    return [
        fixed_choice(
            "pinned.completion.negation",
            "The shop had sold every loaf by noon, so when Wanda came at three she",
            ["went home without bread.", "chose the largest loaf.", "bought the last two loaves."],
            0,
            "ignores a state that the opening set (sold out) and continues with the usual script",
            normalise="tokens",
        ),
        fixed_choice(
            "pinned.completion.order",
            "Before he locked the shed, Kofi put the mower inside. When he went to bed that night, the mower was",
            ["standing on the lawn.", "locked in the shed.", "waiting for the key."],
            1,
            "loses the order of two events when they are told in reverse",
            normalise="tokens",
        ),
        fixed_choice(
            "pinned.completion.whose",
            "Priya lent Samir her umbrella because his was broken. When the rain was over, Samir",
            [
                "gave his own umbrella to the rain.",
                "thanked himself for the broken one.",
                "gave the umbrella back to her.",
            ],
            2,
            "confuses who lent and who borrowed",
            normalise="tokens",
        ),
    ]


SCENARIO = Scenario("everyday_completion", "choice", 44, write, pinned)
