"""``household_howto``: the way that works against a near miss. Two options, mean log-likelihood."""

from __future__ import annotations

import random

from pipeline.evaluation.authoring.banks.household import ROWS
from pipeline.evaluation.authoring.draft import Draft, Scenario, fixed_choice, multiple_choice, spread


def write(rng: random.Random, n: int) -> list[Draft]:
    return [
        multiple_choice(rng, f"household.{family}", goal, right, [wrong], normalise="tokens")
        for family, goal, right, wrong in spread(rng, ROWS, n)
    ]


def pinned() -> list[Draft]:
    return [
        fixed_choice(
            "pinned.household.safety",
            "If hot fat catches fire in a pan,",
            ["pour a glass of water into it.", "put a lid on it and turn off the heat."],
            1,
            "prefers the fluent but dangerous answer (water on burning fat)",
            normalise="tokens",
        ),
        fixed_choice(
            "pinned.household.order",
            "To wire a new lamp safely,",
            ["switch off the fuse first and connect the cables then.",
             "connect the cables first and switch off the fuse then."],
            0,
            "both options use the same words; only their order decides",
            normalise="tokens",
        ),
    ]  # fmt: skip


SCENARIO = Scenario("household_howto", "choice", 24, write, pinned)
