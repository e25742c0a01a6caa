"""``small_steps``: sums of one or two steps, bare or told as a story. Levels rise with digits and steps."""

from __future__ import annotations

import random
from collections.abc import Callable

from pipeline.evaluation.authoring.draft import NAMES, Draft, Scenario, by_level, chat

SYSTEM = 'Work out the result. End with a line that says "The answer is" and the number.'
SHOTS = [
    ("What is 7 + 5?", "7 + 5 = 12\nThe answer is 12"),
    (
        "Ada has 8 shells. She finds 6 more and gives 3 away. How many does she have?",
        "8 + 6 = 14\n14 - 3 = 11\nThe answer is 11",
    ),
]  # fmt: skip
MAX_TOKENS = 64
Made = tuple[str, int]


def add_small(r: random.Random) -> Made:
    a, b = r.randint(2, 9), r.randint(2, 9)
    return f"What is {a} + {b}?", a + b


def add_tens(r: random.Random) -> Made:
    a, b = r.randint(1, 9) * 10, r.randint(1, 9) * 10
    return f"What is {a} + {b}?", a + b


def after(r: random.Random) -> Made:
    a = r.randint(11, 98)
    return f"Which number comes right after {a}?", a + 1


def double(r: random.Random) -> Made:
    a = r.randint(3, 25)
    return f"What is twice {a}?", 2 * a


def subtract_small(r: random.Random) -> Made:
    b = r.randint(1, 6)
    a = b + r.randint(2, 9)
    return f"What is {a} - {b}?", a - b


def times_small(r: random.Random) -> Made:
    a, b = r.randint(2, 9), r.randint(2, 9)
    return f"What is {a} times {b}?", a * b


def half(r: random.Random) -> Made:
    a = r.randint(3, 25)
    return f"What is half of {2 * a}?", a


def gain(r: random.Random) -> Made:
    name, thing = r.choice(NAMES), r.choice(["stamps", "marbles", "postcards", "coins"])
    a, b = r.randint(3, 12), r.randint(2, 9)
    return f"{name} has {a} {thing} and gets {b} more. How many {thing} does {name} have?", a + b


def loss(r: random.Random) -> Made:
    thing = r.choice(["eggs", "candles", "nails", "apples"])
    b = r.randint(2, 9)
    a = b + r.randint(2, 9)
    return f"A box holds {a} {thing}. {b} are used. How many {thing} are left?", a - b


def groups(r: random.Random) -> Made:
    a, b = r.randint(2, 9), r.randint(3, 9)
    return f"There are {a} bags with {b} oranges in each. How many oranges are there?", a * b


def share(r: random.Random) -> Made:
    a, b = r.randint(3, 9), r.randint(2, 6)
    return f"{a * b} sweets are shared equally among {b} children. How many does each child get?", a


def add_two_digits(r: random.Random) -> Made:
    a, b = r.randint(24, 88), r.randint(24, 88)
    return f"What is {a} + {b}?", a + b


def subtract_two_digits(r: random.Random) -> Made:
    b = r.randint(13, 48)
    a = b + r.randint(14, 47)
    return f"What is {a} - {b}?", a - b


def bus(r: random.Random) -> Made:
    a, off, on = r.randint(15, 40), r.randint(3, 12), r.randint(2, 11)
    return f"A bus carries {a} people. {off} get off and {on} get on. How many are on the bus now?", a - off + on


def price(r: random.Random) -> Made:
    a, n, b = r.randint(2, 6), r.randint(3, 6), r.randint(2, 9)
    return f"A notebook costs {a} euros and a pen {b} euros. What do {n} notebooks and one pen cost?", a * n + b


def percent(r: random.Random) -> Made:
    p, whole = r.choice([10, 20, 25, 50]), r.randint(2, 15) * 20
    return f"What is {p} percent of {whole}?", p * whole // 100


def minutes(r: random.Random) -> Made:
    h, m = r.randint(1, 4), r.randint(5, 55)
    return f"A film lasts {h} hours and {m} minutes. How many minutes is that?", 60 * h + m


def rectangle(r: random.Random) -> Made:
    a, b = r.randint(3, 14), r.randint(3, 14)
    return f"A garden is {a} metres long and {b} metres wide. What is its area in square metres?", a * b


def before(r: random.Random) -> Made:
    a = r.randint(12, 98)
    return f"Which number comes right before {a}?", a - 1


def sum_of_three(r: random.Random) -> Made:
    a, b, c = r.randint(2, 9), r.randint(2, 9), r.randint(2, 9)
    return f"What is {a} + {b} + {c}?", a + b + c


def pages(r: random.Random) -> Made:
    name, read = r.choice(NAMES), r.randint(2, 8) * 10
    whole = read + r.randint(2, 9) * 10
    return f"A book has {whole} pages. {name} has read {read} of them. How many pages are left?", whole - read


def change(r: random.Random) -> Made:
    cost = r.randint(3, 18)
    return f"A cake costs {cost} euros. You pay with a 20 euro note. How many euros do you get back?", 20 - cost


def age(r: random.Random) -> Made:
    one, two = r.sample(NAMES, 2)
    a, b = r.randint(5, 20), r.randint(2, 9)
    return f"{one} is {a} years old. {two} is {b} years older. How old is {two}?", a + b


def tables(r: random.Random) -> Made:
    a, b, c = r.randint(3, 8), r.randint(2, 6), r.randint(1, 5)
    return (
        f"A hall has {a} tables with {b} chairs each and {c} chairs at the wall. How many chairs are there?",
        a * b + c,
    )


def two_gains(r: random.Random) -> Made:
    name, a, b, c = r.choice(NAMES), r.randint(3, 12), r.randint(2, 9), r.randint(2, 9)
    asked = f"{name} picks {a} plums on Monday, {b} on Tuesday and {c} on Wednesday. How many plums is that in all?"
    return asked, a + b + c


def journey(r: random.Random) -> Made:
    speed, hours = r.randint(4, 9) * 10, r.randint(2, 5)
    return f"A train goes {speed} kilometres an hour. How many kilometres does it go in {hours} hours?", speed * hours


def later(r: random.Random) -> Made:
    start, hours = r.randint(1, 6), r.randint(2, 5)
    return (
        f"A meeting begins at {start} o'clock and lasts {hours} hours. At how many o'clock does it end?",
        start + hours,
    )


LEVELS: list[list[Callable[[random.Random], Made]]] = [
    [add_small, add_tens, subtract_small, times_small, double, after, before, sum_of_three],
    [half, gain, loss, groups, share, add_two_digits, pages, change, age, later],
    [subtract_two_digits, rectangle, bus, price, percent, minutes, tables, two_gains, journey],
]


def question(source: str, asked: str, answer: int, watches_for: str | None = None) -> Draft:
    return Draft(
        source=source,
        grader="math.last_number",
        params={"tolerance": 0},
        reference=answer,
        messages=chat(SYSTEM, SHOTS, asked),
        max_tokens=MAX_TOKENS,
        watches_for=watches_for,
    )


def write(rng: random.Random, n: int) -> list[Draft]:
    drafts: list[Draft] = []
    seen: set[str] = set()
    for make in by_level(rng, LEVELS, n):
        asked, answer = make(rng)
        while asked in seen:
            asked, answer = make(rng)
        seen.add(asked)
        drafts.append(question(f"steps.{make.__name__}", asked, answer))
    return drafts


def pinned() -> list[Draft]:
    return [
        question(
            "pinned.steps.unused_number",
            "Nadia is 9 years old and has 14 pencils. She gives 6 pencils to Dev. How many pencils does she have left?",
            8,
            "computes with a number that the question does not need",
        ),
        question(
            "pinned.steps.carry",
            "What is 58 + 47?",
            105,
            "loses a carry or truncates a result with one digit more than the operands",
        ),
        question(
            "pinned.steps.two_steps",
            "Oskar has 15 nails. He uses 7 and buys 4 more. How many nails does he have now?",
            12,
            "stops after the first of two steps",
        ),
    ]


SCENARIO = Scenario("small_steps", "math", 52, write, pinned)
