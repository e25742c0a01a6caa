"""``records_as_json``: two fields of a note as a JSON object with the keys that are asked for, and nothing besides.

A value is right in its quotation marks, as the text has it: neither cut short nor with anything added.
"""

from __future__ import annotations

import random

from pipeline.evaluation.authoring.banks.records import RECORDS
from pipeline.evaluation.authoring.draft import Draft, Scenario, chat, spread
from pipeline.evaluation.authoring.fields import values

SYSTEM = "Reply with JSON only."
ASK = '{text}\n\nGive "{a}" and "{b}" as JSON.'
SHOTS = [
    (
        ASK.format(text="Olga Brenner from Tartu asks about claim QX-3087 of 2 April.", a="code", b="city"),
        '{"code": "QX-3087", "city": "Tartu"}',
    ),
    (
        ASK.format(text="Ida Lund signed the lease FT-5512 in Narva on 9 August.", a="name", b="date"),
        '{"name": "Ida Lund", "date": "9 August"}',
    ),
]
KEYS = ("name", "city", "date", "code")
MAX_TOKENS = 40


def question(source: str, text: str, wanted: dict[str, str], watches_for: str | None = None) -> Draft:
    a, b = wanted
    constraints = [{"type": "json_keys", "keys": [a, b], "only": True}]
    constraints += [{"type": "contains", "text": f'"{value}"', "ignore_case": False} for value in wanted.values()]
    return Draft(
        source=source,
        grader="instruct.constraints",
        params={"constraints": constraints},
        messages=chat(SYSTEM, SHOTS, ASK.format(text=text, a=a, b=b)),
        max_tokens=MAX_TOKENS,
        watches_for=watches_for,
    )


def write(rng: random.Random, n: int) -> list[Draft]:
    drafts = []
    for family in spread(rng, sorted(RECORDS), n):
        text, _ = RECORDS[family]
        have = values(rng)
        wanted = {key: have[key] for key in rng.sample(KEYS, 2)}
        drafts.append(question(f"json.{family}", text.format(**have), wanted))
    return drafts


def pinned() -> list[Draft]:
    return [
        question(
            "pinned.json.quoted_number",
            "Parcel 0047 for Rosa Novak is waiting in Split since 11 May.",
            {"code": "0047", "city": "Split"},
            "writes an identifier with leading zeros as a number, which is no JSON",
        ),
        question(
            "pinned.json.order_of_keys",
            "Yusuf Vega rang from Ghent on 6 July about form LB-2206.",
            {"date": "6 July", "name": "Yusuf Vega"},
            "gives the keys of the example instead of those that were asked for",
        ),
        question(
            "pinned.json.apostrophe",
            "Form KD-9030 was filled in by Ines O'Hara in Cork on 3 June.",
            {"name": "Ines O'Hara", "code": "KD-9030"},
            "breaks the JSON at an apostrophe in a name",
        ),
    ]


SCENARIO = Scenario("records_as_json", "instruct", 28, write, pinned)
