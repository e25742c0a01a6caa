"""``follow_up_turns``: a conversation of five turns whose last question an earlier turn answers."""

from __future__ import annotations

import random
from typing import Any

from pipeline.evaluation.authoring.banks.dialogues import DIALOGUES
from pipeline.evaluation.authoring.draft import Draft, Scenario, spread
from pipeline.evaluation.authoring.fields import values as record
from pipeline.evaluation.authoring.policy import fill

SYSTEM = "You remember what was said. Answer the last question with a few words from the conversation."
MAX_TOKENS = 32


def slots_of(rng: random.Random, slots: dict[str, Any]) -> dict[str, Any]:
    """A value for each slot; named banks give what a record would have, and the others differ from each other."""
    have = record(rng)
    named = {name: have[bank] for name, bank in slots.items() if isinstance(bank, str)}
    return named | fill(rng, {name: bank for name, bank in slots.items() if not isinstance(bank, str)})


def question(source: str, turns: list[str], asked: str, answers: list[str], watches_for: str | None = None) -> Draft:
    roles = ("user", "assistant")
    told = [{"role": roles[i % 2], "content": text} for i, text in enumerate([*turns, asked])]
    return Draft(
        source=source,
        grader="extract.match",
        reference=answers,
        messages=[{"role": "system", "content": SYSTEM}, *told],
        max_tokens=MAX_TOKENS,
        watches_for=watches_for,
    )


def write(rng: random.Random, n: int) -> list[Draft]:
    pairs = [(name, i) for name, (_, _, questions) in DIALOGUES.items() for i in range(len(questions))]
    drafts = []
    for name, i in spread(rng, pairs, n):
        slots, turns, questions = DIALOGUES[name]
        have = slots_of(rng, slots)
        asked, accepted = questions[i]
        said = [t.format(**have) for t in turns]
        drafts.append(
            question(f"dialogue.{name}.{i}", said, asked.format(**have), [a.format(**have) for a in accepted])
        )
    return drafts


def pinned() -> list[Draft]:
    return [
        question(
            "pinned.dialogue.first_turn",
            ["My customer number is 5083.", "Thank you. What can I do for you?", "Do you sell rain barrels?",
             "Yes, in two sizes, for 60 and for 90 euros."],
            "What is my customer number?",
            ["5083"],
            "forgets the first turn of a conversation (a template or a window that drops it)",
        ),
        question(
            "pinned.dialogue.corrected",
            ["Please wake me at 6 am.", "I will wake you at 6 am.", "Sorry, make that 7 am.", "Fine, I have noted it."],
            "At what time will you wake me?",
            ["7 am", "at 7 am", "7"],
            "keeps to a value that a later turn has corrected",
        ),
        question(
            "pinned.dialogue.who_said_it",
            ["I paid 30 euros for the ticket.", "The price was 25 euros.", "So I paid too much?", "Yes, a little."],
            "How much did I pay?",
            ["30 euros", "30"],
            "mixes up what the customer and what the assistant said",
        ),
    ]  # fmt: skip


SCENARIO = Scenario("follow_up_turns", "extract", 36, write, pinned)
