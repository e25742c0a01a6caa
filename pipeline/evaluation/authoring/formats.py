"""``exact_formats``: write something in the form that two solved examples show. Right is the very text, to the letter.

A form is a function from the parts of a value to (what is given, what is wanted), so that the right answer is computed.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from pipeline.evaluation.authoring.banks.records import CITIES, MONTHS, SURNAMES, THINGS
from pipeline.evaluation.authoring.draft import NAMES, Draft, Scenario, chat, spread

SYSTEM = "Write the text in the same form as in the examples. Reply with nothing else."
MAX_TOKENS = 32
COLOURS = ["red", "green", "black", "white", "yellow", "grey", "brown", "blue"]
WORDS = [
    "night train", "open gate", "warm bread", "old bridge", "first snow", "paper boat", "slow river", "green door",
    "lost key", "quiet street", "broken clock", "long summer", "deep well", "stone wall", "apple tree", "empty room",
    "golden ring", "silver coin", "winter coat", "small island", "high tower", "dusty road", "loud bell", "early bus",
    "wooden spoon", "sharp pencil", "heavy box", "clean plate", "thin ice", "sweet orange", "wild goose", "steep hill",
]  # fmt: skip
Pair = tuple[str, str]


def iso_date(r: random.Random) -> Pair:
    day, month, year = r.randint(1, 28), r.randrange(12), r.randint(2019, 2031)
    return f"{day} {MONTHS[month]} {year}", f"{year}-{month + 1:02d}-{day:02d}"


def surname_first(r: random.Random) -> Pair:
    first, last = r.choice(NAMES), r.choice(SURNAMES)
    return f"{first} {last}", f"{last}, {first}"


def initial(r: random.Random) -> Pair:
    first, last = r.choice(NAMES), r.choice(SURNAMES)
    return f"{first} {last}", f"{first[0]}. {last}"


def upper(r: random.Random) -> Pair:
    text = r.choice(WORDS)
    return text, text.upper()


def hyphens(r: random.Random) -> Pair:
    text = f"{r.choice(COLOURS)} {r.choice(THINGS)}"
    return text, text.replace(" ", "-")


def underscores(r: random.Random) -> Pair:
    text = f"{r.choice(['Open', 'New', 'Last', 'Old'])} {r.choice(THINGS)}"
    return text, text.lower().replace(" ", "_")


def bold(r: random.Random) -> Pair:
    text = r.choice(WORDS)
    return text, f"**{text}**"


def table_row(r: random.Random) -> Pair:
    thing, colour, n = r.choice(THINGS), r.choice(COLOURS), r.randint(2, 60)
    return f"{thing}, {colour}, {n}", f"| {thing} | {colour} | {n} |"


def assignments(r: random.Random) -> Pair:
    city, n = r.choice(CITIES), r.randint(2, 60)
    return f"The city is {city}, the count is {n}.", f"city={city}; count={n}"


def money(r: random.Random) -> Pair:
    n = r.randint(3, 98)
    return f"{n} euros", f"EUR {n}.00"


def hour(r: random.Random) -> Pair:
    n = r.randint(1, 11)
    return f"{n} pm", f"{n + 12}:00"


def tagged(r: random.Random) -> Pair:
    city = r.choice(CITIES)
    return city, f"<city>{city}</city>"


def ticket(r: random.Random) -> Pair:
    letters, n = "".join(r.sample("abdefgkmprstv", 2)), r.randint(100, 999)
    return f"{letters} {n}", f"{letters.upper()}-{n}"


def semicolons(r: random.Random) -> Pair:
    picked = r.sample(CITIES, 3)
    return ", ".join(picked), "; ".join(picked)


def listed(r: random.Random) -> Pair:
    picked = r.sample(COLOURS, 3)
    return f"{picked[0]}, {picked[1]} and {picked[2]}", "[" + ", ".join(f'"{p}"' for p in picked) + "]"


def dimensions(r: random.Random) -> Pair:
    a, b = r.sample(range(12, 99), 2)
    return f"{a} centimetres wide and {b} centimetres high", f"{a} x {b} cm"


def marked(r: random.Random) -> Pair:
    n, thing = r.randint(2, 60), r.choice(THINGS)
    return f"{thing}: {n} left", f"[{n}] {thing}"


def mention(r: random.Random) -> Pair:
    first, last = r.choice(NAMES), r.choice(SURNAMES)
    return f"{first} {last}", f"@{first.lower()}.{last.lower()}"


FORMS: list[Callable[[random.Random], Pair]] = [
    iso_date, surname_first, initial, upper, hyphens, underscores, bold, table_row, assignments, money, hour, tagged,
    ticket, semicolons, listed, dimensions, marked, mention,
]  # fmt: skip


def question(source: str, shots: list[Pair], given: str, wanted: str, watches_for: str | None = None) -> Draft:
    """One line that begins and ends with ``wanted`` is that text: nothing else fits in."""
    exact = {"text": wanted, "ignore_case": False}
    return Draft(
        source=source,
        grader="instruct.constraints",
        params={
            "constraints": [
                {"type": "line_count", "count": 1},
                {"type": "starts_with", **exact},
                {"type": "ends_with", **exact},
            ]
        },
        messages=chat(SYSTEM, shots, given),
        max_tokens=MAX_TOKENS,
        watches_for=watches_for,
    )


def write(rng: random.Random, n: int) -> list[Draft]:
    drafts, seen = list[Draft](), set[str]()
    for form in spread(rng, FORMS, n):
        pairs: dict[str, str] = {}
        while len(pairs) < 3:
            given, wanted = form(rng)
            if given not in seen:
                pairs[given] = wanted
                seen.add(given)
        *shots, (given, wanted) = pairs.items()
        drafts.append(question(f"format.{form.__name__}", shots, given, wanted))
    return drafts


def pinned() -> list[Draft]:
    return [
        question(
            "pinned.format.leading_zero",
            [("7 January 1998", "1998-01-07"), ("16 October 2004", "2004-10-16")],
            "5 September 2011",
            "2011-09-05",
            "drops the leading zeros of a date",
        ),
        question(
            "pinned.format.keeps_the_case",
            [("Vase (glass)", "glass: Vase"), ("Bowl (clay)", "clay: Bowl")],
            "LAMP (brass)",
            "brass: LAMP",
            "tidies up capital letters that were to be kept",
        ),
        question(
            "pinned.format.no_remark",
            [("anna, bert", "anna/bert"), ("mona, nils", "mona/nils")],
            "olga, paul",
            "olga/paul",
            "adds a remark to an answer that a program is going to read",
        ),
    ]


SCENARIO = Scenario("exact_formats", "instruct", 36, write, pinned)
