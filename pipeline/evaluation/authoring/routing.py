"""``ticket_routing``: which team answers a customer's message. Four solved examples, then the message."""

from __future__ import annotations

import random

from pipeline.evaluation.authoring.banks.tickets import TEAMS
from pipeline.evaluation.authoring.draft import DAYS, MONTHS, Draft, Scenario, by_level, fixed_choice, multiple_choice

HEAD = """Message: Please send me last year's invoice once more.
Team: billing

Message: When will the courier bring my order?
Team: delivery

Message: I cannot log in to my profile.
Team: account

Message: The dress does not fit, I would like to send it back.
Team: returns

Message: The program stops with an error.
Team: technical

Message: {text}
Team:"""


def write(rng: random.Random, n: int) -> list[Draft]:
    levels = [[(team, i) for team in TEAMS for i in range(len(TEAMS[team][level]))] for level in (0, 1)]
    easy = by_level(rng, levels[:1], n // 2)
    hard = by_level(rng, levels[1:], n - n // 2)
    drafts = []
    for level, picked in enumerate((easy, hard)):
        for team, i in picked:
            text = TEAMS[team][level][i].format(
                k=rng.randint(1000, 9999), a=rng.randint(3, 98), month=rng.choice(MONTHS), day=rng.choice(DAYS)
            )
            wrong = rng.sample([t for t in TEAMS if t != team], 3)
            source = f"routing.{team}.{'implied' if level else 'named'}"
            drafts.append(multiple_choice(rng, source, HEAD.format(text=text), team, wrong, normalise="none"))
    return drafts


def pinned() -> list[Draft]:
    return [
        fixed_choice(
            "pinned.routing.wrong_keyword",
            HEAD.format(text="I can log in without a problem, but the parcel that I paid for has not come."),
            ["account", "delivery", "billing", "technical"],
            1,
            "routes by the first keyword although the sentence rules it out",
            normalise="none",
        ),
        fixed_choice(
            "pinned.routing.two_topics",
            HEAD.format(text="The courier was on time, yet you took the money for the shipping twice."),
            ["delivery", "returns", "billing", "account"],
            2,
            "a satisfied remark about one team hides the complaint to another",
            normalise="none",
        ),
        fixed_choice(
            "pinned.routing.last_clause",
            HEAD.format(
                text="The bill was right and the parcel quick, thank you; only the new lamp does not switch on."
            ),
            ["technical", "billing", "account", "delivery"],
            0,
            "answers to the praise at the beginning and not to the request at the end",
            normalise="none",
        ),
    ]


SCENARIO = Scenario("ticket_routing", "choice", 40, write, pinned)
