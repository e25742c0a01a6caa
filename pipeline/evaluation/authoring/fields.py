"""``field_extraction``: one named field out of a mail, a slip or a note."""

from __future__ import annotations

import random

from pipeline.evaluation.authoring.banks.records import CITIES, MONTHS, RECORDS, SURNAMES, THINGS
from pipeline.evaluation.authoring.draft import NAMES, Draft, Scenario, chat, spread

SYSTEM = "Answer with the value from the text only."
ASK = "{text}\n\nWhat is the {field}?"
SHOTS = [
    (ASK.format(text="Olga Brenner from Tartu asks about claim QX-3087 of 2 April.", field="claim number"), "QX-3087"),
    (ASK.format(text="Delivered to Derry: 14 rolls of felt, weight 320 kilos.", field="weight"), "320 kilos"),
    (ASK.format(text="Ida Lund signed the lease FT-5512 in Narva on 9 August.", field="date"), "9 August"),
]
MAX_TOKENS = 40


def values(rng: random.Random) -> dict[str, str]:
    """One of everything a record may name."""
    letters = "ABCDEFGHJKLMNPRSTUVWXYZ"
    return {
        "name": f"{rng.choice(NAMES)} {rng.choice(SURNAMES)}",
        "city": rng.choice(CITIES),
        "date": f"{rng.randint(1, 28)} {rng.choice(MONTHS)}",
        "count": str(rng.randint(2, 30)),
        "thing": rng.choice(THINGS),
        "code": f"{rng.choice(letters)}{rng.choice(letters)}-{rng.randint(1000, 9999)}",
        "money": str(rng.randint(40, 990)),
    }


def accepted(slot: str, have: dict[str, str]) -> list[str]:
    """The value as the text has it, then other forms of it that are as right."""
    value = have[slot]
    other = {
        "money": [f"{value} euros", f"{value} EUR", f"€{value}"],
        "thing": [f"{have['count']} {value}", f"{have['count']} x {value}"],
        "count": [f"{value} {have['thing']}", f"{value} boxes", f"{value} nights"],
    }
    return [value, *other.get(slot, [])]


def question(source: str, text: str, field: str, answers: list[str], watches_for: str | None = None) -> Draft:
    return Draft(
        source=source,
        grader="extract.match",
        reference=answers,
        messages=chat(SYSTEM, SHOTS, ASK.format(text=text, field=field)),
        max_tokens=MAX_TOKENS,
        watches_for=watches_for,
    )


def write(rng: random.Random, n: int) -> list[Draft]:
    pairs = [(family, field) for family, (_, fields) in RECORDS.items() for field in fields]
    drafts = []
    for family, field in spread(rng, pairs, n):
        text, fields = RECORDS[family]
        have = values(rng)
        drafts.append(question(f"fields.{family}", text.format(**have), field, accepted(fields[field], have)))
    return drafts


def pinned() -> list[Draft]:
    return [
        question(
            "pinned.fields.two_dates",
            "Contract KD-4471 was signed on 3 March and starts on 19 May. Contact: Yusuf Vega, Ghent.",
            "start date",
            ["19 May", "May 19"],
            "takes the first date although the field names the second",
        ),
        question(
            "pinned.fields.leading_zero",
            "Please quote file number 00728-B in your reply to Rosa Novak in Split; the fee is 61 euros.",
            "file number",
            ["00728-B"],
            "drops leading zeros of an identifier",
        ),
        question(
            "pinned.fields.sender_or_receiver",
            "From: Goran Sato, Basel\nTo: Hana Silva, Porto\n3 tin whistles, 45 euros",
            "name of the receiver",
            ["Hana Silva"],
            "takes the first name although the field asks for the other",
        ),
    ]


SCENARIO = Scenario("field_extraction", "extract", 40, write, pinned)
