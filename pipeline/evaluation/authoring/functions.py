"""``python_functions``: write one function; unit tests decide. One assert is shown, the others are not."""

from __future__ import annotations

import random

from pipeline.evaluation.authoring.banks.functions import LEVELS, Function
from pipeline.evaluation.authoring.draft import Draft, Scenario, by_level, chat

SYSTEM = "You write Python. Reply with the function only, in one code block, without examples."
ASK = "Write a function `{name}({args})` that {does}. For example, {example}."
SHOTS = [
    (
        ASK.format(name="triple", args="n", does="returns n times three", example="triple(2) == 6"),
        "```python\ndef triple(n):\n    return n * 3\n```",
    )
]
MAX_TOKENS = 96


def question(source: str, f: Function, watches_for: str | None = None) -> Draft:
    tests = "\n".join(f"assert {test}" for test in (f.example, *f.asserts)) + "\n"
    return Draft(
        source=source,
        grader="code.unit_tests",
        params={"entry_point": f.name, "tests": tests, "timeout_s": 5},
        messages=chat(SYSTEM, SHOTS, ASK.format(name=f.name, args=f.args, does=f.does, example=f.example)),
        max_tokens=MAX_TOKENS,
        watches_for=watches_for,
    )


def write(rng: random.Random, n: int) -> list[Draft]:
    return [question(f"functions.{f.name}", f) for f in by_level(rng, LEVELS, n)]


PINNED = [
    (
        Function("is_leap", "year", "returns True if the year is a leap year", "is_leap(2024) == True",
                 ("is_leap(2023) == False", "is_leap(1900) == False", "is_leap(2000) == True"),
                 "return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)"),
        "handles the common case and forgets the exceptions (1900, 2000)",
    ),
    (
        Function("safe_divide", "a, b", "returns a divided by b, or None if b is 0", "safe_divide(6, 3) == 2",
                 ("safe_divide(1, 0) is None", "safe_divide(0, 4) == 0"), "return None if b == 0 else a / b"),
        "leaves out the special case that the request names",
    ),
    (
        Function("without_last", "items", "returns a new list without the last item",
                 "without_last([1, 2, 3]) == [1, 2]",
                 ("without_last([7]) == []", "without_last([]) == []"), "return items[:-1]"),
        "goes wrong at the end of a list, or with an empty one",
    ),
]  # fmt: skip


def pinned() -> list[Draft]:
    return [question(f"pinned.functions.{f.name}", f, watches) for f, watches in PINNED]


SCENARIO = Scenario("python_functions", "code", 36, write, pinned)
