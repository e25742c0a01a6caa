"""What a scenario module hands to the builder: questions without an id, a week or a place in the file."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from pipeline.evaluation.items import Kind

T = TypeVar("T")
NAMES = [
    "Amara", "Ben", "Carla", "Dev", "Elif", "Farah", "Goran", "Hana", "Ines", "Jonas", "Kofi", "Lena", "Mateo", "Nadia",
    "Oskar", "Priya", "Quinn", "Rosa", "Samir", "Tomas", "Uma", "Viktor", "Wanda", "Yusuf", "Zoe",
]  # fmt: skip
MONTHS = ["January", "March", "April", "June", "August", "October", "November"]
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"]


@dataclass(frozen=True)
class Draft:
    """One question. ``source`` is the template family, the cluster in the gate's statistics."""

    source: str
    grader: str
    params: dict[str, Any] = field(default_factory=dict)
    reference: Any = None
    prompt: str | None = None
    messages: list[dict[str, str]] | None = None
    choices: list[str] | None = None
    max_tokens: int = 0
    watches_for: str | None = None
    tag: str = ""  # becomes part of the id, for instance where in a document the fact stands


@dataclass(frozen=True)
class Scenario:
    """A group of questions that a product team would name.

    ``write(rng, n)`` gives ``n`` questions and draws from ``rng`` alone; ``pinned`` are fixed, whatever the seed.
    """

    name: str
    kind: Kind
    items: int
    write: Callable[[random.Random, int], list[Draft]]
    pinned: Callable[[], list[Draft]]


def multiple_choice(
    rng: random.Random, source: str, prompt: str, right: str, wrong: Sequence[str], *, normalise: str
) -> Draft:
    """A choice item with its options shuffled. Options are continuations of ``prompt``: they begin with a space."""
    options = [right, *wrong]
    rng.shuffle(options)
    return Draft(
        source=source,
        grader="choice.loglikelihood",
        params={"normalise": normalise},
        prompt=prompt,
        choices=[f" {o}" for o in options],
        reference=options.index(right),
    )


def fixed_choice(
    source: str, prompt: str, options: Sequence[str], reference: int, watches_for: str, *, normalise: str
) -> Draft:
    """A pinned choice item, its options in the order given."""
    return Draft(
        source=source,
        grader="choice.loglikelihood",
        params={"normalise": normalise},
        prompt=prompt,
        choices=[f" {o}" for o in options],
        reference=reference,
        watches_for=watches_for,
    )


def balanced(rng: random.Random, drafts: Sequence[Draft]) -> list[Draft]:
    """The drafts with the right option of choices in each place equally often, give or take one, in random order.

    The other options keep the order in which they were shuffled. Choices with more or fewer options count apart.
    """
    alike: dict[int, list[int]] = {}
    for i, d in enumerate(drafts):
        if d.choices is not None:
            alike.setdefault(len(d.choices), []).append(i)
    placed = list(drafts)
    for options, where in alike.items():
        places = [n % options for n in range(len(where))]
        rng.shuffle(places)
        for i, place in zip(where, places, strict=True):
            choices = list(drafts[i].choices or ())
            choices.insert(place, choices.pop(drafts[i].reference))
            placed[i] = replace(drafts[i], choices=choices, reference=place)
    return placed


def chat(system: str, shots: Iterable[tuple[str, str]], question: str) -> list[dict[str, str]]:
    """A conversation: the rules, solved examples as earlier turns, then the question."""
    turns = [{"role": "system", "content": system}]
    for asked, answered in shots:
        turns += [{"role": "user", "content": asked}, {"role": "assistant", "content": answered}]
    return [*turns, {"role": "user", "content": question}]


def spread(rng: random.Random, bank: Sequence[T], n: int) -> list[T]:
    """``n`` entries of a bank in random order, each used once before any is used twice."""
    drawn: list[T] = []
    while len(drawn) < n:
        drawn += rng.sample(list(bank), min(len(bank), n - len(drawn)))
    return drawn


def by_level(rng: random.Random, levels: Sequence[Sequence[T]], n: int) -> list[T]:
    """``n`` entries, as evenly as possible from banks that the author ranked from easy to hard."""
    drawn: list[T] = []
    for i, bank in enumerate(levels):
        drawn += spread(rng, bank, n // len(levels) + (i < n % len(levels)))
    return drawn
