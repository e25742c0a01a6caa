"""From the scenario modules to the files of an evalset: same seed, same bytes."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Literal

from pipeline.evaluation.authoring import (
    arithmetic,
    completion,
    dialogues,
    documents,
    facts,
    fields,
    formats,
    functions,
    instructions,
    json_records,
    mails,
    moods,
    policy,
    refusals,
    routing,
    wording,
)
from pipeline.evaluation.authoring.draft import Draft, Scenario, balanced
from pipeline.evaluation.items import Grader, Item, Message, to_line
from pipeline.files import atomic_write

SCENARIOS: tuple[Scenario, ...] = (
    completion.SCENARIO,
    wording.SCENARIO,
    facts.SCENARIO,
    routing.SCENARIO,
    moods.SCENARIO,
    mails.SCENARIO,
    refusals.SCENARIO,
    policy.SCENARIO,
    fields.SCENARIO,
    dialogues.SCENARIO,
    arithmetic.SCENARIO,
    functions.SCENARIO,
    instructions.SCENARIO,
    formats.SCENARIO,
    json_records.SCENARIO,
    documents.SCENARIO,
)


def items_of(scenario: Scenario, seed: int, week: str) -> list[Item]:
    """The written items of a scenario, then its pinned ones. Each scenario has a random stream of its own."""
    rng = random.Random(f"{seed}/{scenario.name}")
    written = balanced(rng, scenario.write(rng, scenario.items))
    items = [_item(scenario, "written", f"{n:03d}", d, week) for n, d in enumerate(written, 1)]
    return items + [_item(scenario, "pinned", f"p{n:02d}", d, week) for n, d in enumerate(scenario.pinned(), 1)]


def _item(scenario: Scenario, origin: Literal["written", "pinned"], number: str, d: Draft, week: str) -> Item:
    return Item(
        id="-".join(filter(None, (scenario.name, number, d.tag))),
        scenario=scenario.name,
        kind=scenario.kind,
        origin=origin,
        week=week,
        source=d.source,
        prompt=d.prompt,
        messages=[Message.model_validate(m) for m in d.messages] if d.messages else None,
        choices=d.choices,
        reference=d.reference,
        grader=Grader(name=d.grader, params=d.params),
        max_tokens=d.max_tokens,
        watches_for=d.watches_for,
    )


def build(seed: int, week: str) -> dict[str, str]:
    """File name -> content of ``items/``."""
    return {f"{s.name}.jsonl": "".join(map(to_line, items_of(s, seed, week))) for s in SCENARIOS}


def write_items(out: Path, seed: int, week: str) -> dict[str, int]:
    """Writes ``out/items/*.jsonl``, removing files of scenarios that are no more; returns lines per file."""
    files = build(seed, week)
    for name, content in files.items():
        atomic_write(out / "items" / name, content)
    for path in (out / "items").glob("*.jsonl"):
        if path.name not in files:
            path.unlink()
    return {name: content.count("\n") for name, content in files.items()}
