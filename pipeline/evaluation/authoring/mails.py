"""``subject_lines``: which of four subjects fits a short mail; three are of other mails. Mean log-likelihood."""

from __future__ import annotations

import random

from pipeline.evaluation.authoring.banks.mails import ROWS
from pipeline.evaluation.authoring.draft import DAYS, MONTHS, Draft, Scenario, fixed_choice, multiple_choice, spread

ASK = "Mail: {body}\nSubject of the mail:"


def write(rng: random.Random, n: int) -> list[Draft]:
    drafts = []
    for family, body, subject in spread(rng, ROWS, n):
        text = body.format(day=rng.choice(DAYS), month=rng.choice(MONTHS), a=rng.randint(12, 98))
        alike = [s for f, _, s in ROWS if f == family and s != subject]
        other = [s for f, _, s in ROWS if f != family]
        wrong = [*rng.sample(alike, 2), rng.choice(other)]
        source = f"subject.{family}.{ROWS.index((family, body, subject)) % 4}"
        drafts.append(multiple_choice(rng, source, ASK.format(body=text), subject, wrong, normalise="tokens"))
    return drafts


def pinned() -> list[Draft]:
    return [
        fixed_choice(
            "pinned.subject.reversed",
            ASK.format(body="The concert that we called off last week takes place after all, on the same evening."),
            ["Concert called off", "The concert takes place", "New place for the concert"],
            1,
            "takes up a word of the mail that the mail itself takes back",
            normalise="tokens",
        ),
        fixed_choice(
            "pinned.subject.last_sentence",
            ASK.format(
                body="It was nice to see you in May. The garden is in bloom. Could you lend me your ladder on Friday?"
            ),
            ["The garden in May", "A visit to you", "May I borrow your ladder?"],
            2,
            "names how a mail begins instead of what it asks for",
            normalise="tokens",
        ),
        fixed_choice(
            "pinned.subject.who_pays",
            ASK.format(body="We owe you 20 euros, because you returned the second lamp. You need not do anything."),
            ["You will get 20 euros back", "You owe us 20 euros", "Please return the lamp"],
            0,
            "turns round who owes whom",
            normalise="tokens",
        ),
    ]


SCENARIO = Scenario("subject_lines", "choice", 32, write, pinned)
