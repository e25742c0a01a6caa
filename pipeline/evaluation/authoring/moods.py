"""``customer_mood``: the mood in which a message is written. Four solved examples, then the message."""

from __future__ import annotations

import random

from pipeline.evaluation.authoring.banks.moods import MOODS
from pipeline.evaluation.authoring.draft import DAYS, MONTHS, Draft, Scenario, fixed_choice, multiple_choice, spread

HEAD = """Message: What a charming shop, we had such a good time!
Mood: pleased

Message: I demand an apology for this nonsense!
Mood: angry

Message: I am frightened that the brake will fail on the hill.
Mood: worried

Message: Which of the two buttons is the right one? I cannot tell.
Mood: confused

Message: {text}
Mood:"""


def write(rng: random.Random, n: int) -> list[Draft]:
    moods = spread(rng, list(MOODS), n)
    texts = {mood: iter(spread(rng, MOODS[mood], n)) for mood in MOODS}
    drafts = []
    for mood in moods:
        topic, text = next(texts[mood])
        message = text.format(day=rng.choice(DAYS), month=rng.choice(MONTHS), a=rng.randint(12, 58))
        wrong = [m for m in MOODS if m != mood]
        drafts.append(
            multiple_choice(rng, f"mood.{mood}.{topic}", HEAD.format(text=message), mood, wrong, normalise="none")
        )
    return drafts


def pinned() -> list[Draft]:
    return [
        fixed_choice(
            "pinned.mood.irony",
            HEAD.format(
                text="Oh, brilliant. The fourth broken cup in a row. Keep your vouchers and never write to me again!"
            ),
            ["pleased", "worried", "angry", "confused"],
            2,
            "takes the kind words of an ironic complaint at their face value",
            normalise="none",
        ),
        fixed_choice(
            "pinned.mood.negated",
            HEAD.format(
                text="I am not angry at all, on the contrary: you solved it within an hour, thank you so much!"
            ),
            ["angry", "confused", "worried", "pleased"],
            3,
            "names the mood whose word occurs, although it is negated",
            normalise="none",
        ),
        fixed_choice(
            "pinned.mood.polite_fear",
            HEAD.format(
                text="Thank you for your kind reply. I still fear that the gas pipe leaks and that we are in danger."
            ),
            ["worried", "pleased", "confused", "angry"],
            0,
            "stops at the polite opening and misses what follows it",
            normalise="none",
        ),
    ]


SCENARIO = Scenario("customer_mood", "choice", 36, write, pinned)
