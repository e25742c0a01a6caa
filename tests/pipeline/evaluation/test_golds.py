"""The right answers of the shipped set, worked out again from the questions by other means than wrote them."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pipeline.evaluation.authoring import WEEK
from pipeline.evaluation.authoring.banks.functions import LEVELS, Function
from pipeline.evaluation.authoring.build import SCENARIOS, items_of
from pipeline.evaluation.authoring.draft import balanced, multiple_choice
from pipeline.evaluation.authoring.functions import PINNED
from pipeline.evaluation.graders import Answer, grade
from pipeline.evaluation.items import Item, load_evalset

CORE = Path(__file__).resolve().parents[3] / "evalsets" / "core"
ITEMS = load_evalset(CORE).items
BY_NAME = {s.name: s for s in SCENARIOS}


def items(scenario: str) -> list[Item]:
    """The shipped items of a scenario, and those of two more seeds."""
    return [i for i in ITEMS if i.scenario == scenario] + [
        i for seed in (1, 2) for i in items_of(BY_NAME[scenario], seed, WEEK) if i.origin == "written"
    ]


def asked(item: Item) -> str:
    assert item.messages is not None
    return item.messages[-1].content


# How the numbers of a question make its answer, by the template's name.
SUMS: dict[str, Callable[..., float]] = {
    "add_small": lambda a, b: a + b, "add_tens": lambda a, b: a + b, "add_two_digits": lambda a, b: a + b,
    "after": lambda a: a + 1, "before": lambda a: a - 1, "double": lambda a: 2 * a, "half": lambda a: a / 2,
    "subtract_small": lambda a, b: a - b, "subtract_two_digits": lambda a, b: a - b, "times_small": lambda a, b: a * b,
    "sum_of_three": lambda a, b, c: a + b + c, "gain": lambda a, b: a + b, "loss": lambda a, b: a - b,
    "groups": lambda a, b: a * b, "share": lambda a, b: a / b, "pages": lambda a, b: a - b,
    "change": lambda cost, note: note - cost, "age": lambda a, b: a + b, "later": lambda a, b: a + b,
    "bus": lambda a, off, on: a - off + on, "price": lambda a, b, n: n * a + b, "percent": lambda p, w: w * p / 100,
    "minutes": lambda h, m: 60 * h + m, "rectangle": lambda a, b: a * b, "tables": lambda a, b, c: a * b + c,
    "two_gains": lambda a, b, c: a + b + c, "journey": lambda v, h: v * h,
}  # fmt: skip


def test_every_sum_is_right() -> None:
    seen = set()
    for item in items("small_steps"):
        if item.origin == "pinned":
            continue
        name = item.source.removeprefix("steps.")
        assert item.reference == SUMS[name](*map(int, re.findall(r"\d+", asked(item)))), item.id
        seen.add(name)
    assert seen == set(SUMS)


def _reading(text: str, form: str) -> str:
    """What the examples of a form ask for, by string methods and dates."""
    words = text.split()
    match form:
        case "iso_date":
            return datetime.strptime(text, "%d %B %Y").replace(tzinfo=UTC).date().isoformat()
        case "surname_first":
            return f"{words[1]}, {words[0]}"
        case "initial":
            return f"{words[0][:1]}. {words[1]}"
        case "mention":
            return "@" + ".".join(words).lower()
        case "upper":
            return "".join(c.upper() for c in text)
        case "hyphens":
            return "-".join(words)
        case "underscores":
            return "_".join(words).casefold()
        case "bold":
            return "**" + text + "**"
        case "tagged":
            return "<city>" + text + "</city>"
        case "semicolons":
            return "; ".join(text.split(", "))
        case "table_row":
            return "| " + " | ".join(text.split(", ")) + " |"
        case "listed":
            return json.dumps(re.split(r", | and ", text))
        case "money":
            return "EUR " + format(int(words[0]), ".2f")
        case "hour":
            return datetime.strptime(text.upper(), "%I %p").replace(tzinfo=UTC).strftime("%H:00")
        case "ticket":
            return "-".join(w.upper() for w in words)
        case "assignments":
            return "; ".join("=".join(pair) for pair in re.findall(r"(\w+) is ([\w]+)", text))
        case "dimensions":
            return " x ".join(re.findall(r"\d+", text)) + " cm"
        case "marked":
            thing, _, rest = text.partition(": ")
            return f"[{rest.split()[0]}] {thing}"
    raise AssertionError(f"no reading of {form}")


def test_every_form_is_what_its_examples_show_and_nothing_else_passes() -> None:
    for item in items("exact_formats"):
        assert item.messages is not None
        wanted = item.grader.params["constraints"][1]["text"]
        if item.origin == "written":
            form = item.source.removeprefix("format.")
            shown = [m.content for m in item.messages[1:]]
            for given, written in zip(shown[::2], [*shown[1::2], wanted], strict=True):
                assert written == _reading(given, form), item.id
        assert grade(item, Answer(text=wanted)).correct
        for wrong in (
            f"{wanted} it is",
            f"Sure: {wanted}",
            f"{wanted}\n{wanted}",
            asked(item),
            wanted[:-1],
            wanted.swapcase(),
        ):
            assert wrong == wanted or not grade(item, Answer(text=wrong)).correct, (item.id, wrong)


def test_json_holds_the_values_of_the_text_under_the_keys_asked_for() -> None:
    for item in items("records_as_json"):
        keys, *quoted = item.grader.params["constraints"]
        values = [json.loads(q["text"]) for q in quoted]
        text, _, question = asked(item).rpartition("\n\n")
        assert re.findall(r'"(\w+)"', question) == keys["keys"], item.id
        assert all(v in text for v in values), item.id
        right = dict(zip(keys["keys"], values, strict=True))
        assert grade(item, Answer(text=json.dumps(right))).correct, item.id
        for wrong in (
            right | {"more": "1"},
            {k: f"{v} too" for k, v in right.items()},
            dict.fromkeys(right, "?"),
            {keys["keys"][0]: values[0]},
        ):
            assert not grade(item, Answer(text=json.dumps(wrong))).correct, item.id
        assert not grade(item, Answer(text=f"Here: {json.dumps(right)}")).correct


def test_choices_of_a_scenario_are_right_in_each_place_equally_often() -> None:
    found: dict[tuple[str, int], Counter[int]] = {}
    for item in ITEMS:
        if item.choices is not None and item.origin == "written":
            found.setdefault((item.scenario, len(item.choices)), Counter())[item.reference] += 1
    assert len(found) >= 7
    for (scenario, options), places in found.items():
        counts = [places[i] for i in range(options)]
        assert max(counts) - min(counts) <= 1, (scenario, counts)


def test_balancing_moves_the_right_option_and_no_other() -> None:
    rng = random.Random(3)
    before = [multiple_choice(rng, "s", f"q{i}", "right", ["a", "b", "c"], normalise="none") for i in range(9)]
    after = balanced(rng, before)
    for old, new in zip(before, after, strict=True):
        assert old.choices is not None
        assert new.choices is not None
        assert new.choices[new.reference] == " right"
        assert [c for c in new.choices if c != " right"] == [c for c in old.choices if c != " right"]
    assert sorted(Counter(d.reference for d in after).values()) == [2, 2, 2, 3]


@pytest.mark.parametrize("f", [*(f for level in LEVELS for f in level), *(f for f, _ in PINNED)], ids=lambda f: f.name)
def test_a_function_that_only_knows_the_example_fails(f: Function) -> None:
    """The asserts that a model does not see must ask for more than the one that it sees."""
    shown = re.split(r" (?:==|is) ", f.example)[-1]
    asserts = "\n".join(f"assert {a}" for a in f.asserts)
    with pytest.raises(AssertionError):
        exec(f"def {f.name}({f.args}):\n    return {shown}\n{asserts}", {})
