"""``correct_wording``: which of two wordings continues a sentence in correct English. Mean log-likelihood."""

from __future__ import annotations

import random

from pipeline.evaluation.authoring.banks.wording import ROWS
from pipeline.evaluation.authoring.draft import NAMES, Draft, Scenario, fixed_choice, multiple_choice, spread


def write(rng: random.Random, n: int) -> list[Draft]:
    return [
        multiple_choice(rng, f"wording.{family}", opening.format(n=rng.choice(NAMES)), right, wrong, normalise="tokens")
        for family, opening, right, wrong in spread(rng, ROWS, n)
    ]


def pinned() -> list[Draft]:
    return [
        fixed_choice(
            "pinned.wording.attractor",
            "The list of the books that the teachers ordered for the children",
            ["have been lost.", "has been lost."],
            1,
            "agrees with the nearest noun instead of the subject",
            normalise="tokens",
        ),
        fixed_choice(
            "pinned.wording.double_negative",
            "Without a ticket you cannot",
            ["go anywhere on this train.", "go nowhere on this train."],
            0,
            "loses a negation that stands a few words back",
            normalise="tokens",
        ),
        fixed_choice(
            "pinned.wording.tense_far",
            "When the guests who had come by the last ship finally sat down at the long table, the soup",
            ["was cold.", "is cold."],
            0,
            "loses the tense of the sentence over a long clause",
            normalise="tokens",
        ),
    ]


SCENARIO = Scenario("correct_wording", "choice", 44, write, pinned)
