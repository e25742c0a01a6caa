"""The health rules that Great Expectations cannot express: version, graders, duplicates, leaks, own outputs, personal
data, production requests. Each is one entry of the report and says which items broke it, against what, by how much.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from datetime import date
from pathlib import Path
from typing import Any

from pipeline.errors import SeatrialError
from pipeline.evaluation import duplicates, leaks, outputs, personal
from pipeline.evaluation.expectations import EXAMPLES
from pipeline.evaluation.graders import check_item
from pipeline.evaluation.items import Evalset, Item
from pipeline.evaluation.leaks import Text
from pipeline.evaluation.personal import Found
from pipeline.evaluation.versions import version_problems

SHOT_SHARED_BY = 3
ROTATION = "Rotation:"  # how the changelog entries of rotations begin


def entry(
    name: str, what: str, problems: Iterable[str], expected: str, *, blocking: bool = True, observed: str | None = None
) -> dict[str, Any]:
    """One entry of the report for a check of our own: it holds if there are no problems."""
    found = list(problems)
    return {
        "name": name,
        "what": what,
        "engine": "seatrial",
        "success": not found,
        "blocking": blocking,
        "observed": observed or f"{len(found)} found",
        "expected": expected,
        "examples": found[:EXAMPLES],
    }


def checks_of(
    evalset: Evalset, folder: Path, week: str, calibration: list[Text], corpora: list[Text]
) -> list[dict[str, Any]]:
    """All entries, in the order of the report.

    Raises:
        SeatrialError: a ledger of own outputs cannot be read.
    """
    items = evalset.items
    ledgers = outputs.ledgers()
    prints = outputs.read(ledgers)
    m = evalset.manifest
    return [
        entry("version", "The content is the one recorded for this version.", version_problems(evalset, folder),
              f"digest {m.content_digest[:12]} (version {m.version})"),
        entry("graders", "Every item suits its grader: parameters, reference, choices, output budget.",
              grader_problems(items), "none"),
        entry("duplicates", "No two items ask the same.", duplicates.exact(items), "none"),
        entry("near_duplicates", "No item asks what another one asks, reworded.", duplicates.reworded(items),
              f"no pair {duplicates.ALIKE:.0%} alike with the same numbers and answer"),
        *leak_checks(items, calibration, corpora),
        entry("own_outputs", "No reference was written by a model that was evaluated before.",
              outputs.own_outputs(items, prints),
              f"none, against {len(prints)} generations in {len(ledgers)} ledgers"),
        entry("personal_data", "No mail address, phone, account, card, id, secret or network address.",
              personal_data(items, soft=False), "none"),
        entry("personal_names", "No name or postal address in a production request.",
              personal_data([i for i in items if i.origin == "production"], soft=True), "none"),
        entry("personal_names_imported", "No name or postal address in an imported item; published sets have some.",
              personal_data([i for i in items if i.origin == "imported"], soft=True), "none", blocking=False),
        *production_checks(evalset, week),
    ]  # fmt: skip


def grader_problems(items: Iterable[Item]) -> list[str]:
    problems = []
    for item in items:
        try:
            check_item(item)
        except SeatrialError as e:
            problems.append(str(e))
    return problems


def shots(items: Iterable[Item]) -> list[Text]:
    """The solved examples in prompts: earlier user turns, and blocks that stand in several raw prompts."""
    found: dict[tuple[str, ...], str] = {}
    blocks: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for item in items:
        for m in (item.messages or [])[:-1]:
            if m.role == "user":
                found.setdefault(leaks.words(m.content), item.id)
        for block in re.split(r"\n\s*\n", item.prompt or "")[:-1]:
            blocks[leaks.words(block)].append(item.id)
    found |= {w: ids[0] for w, ids in blocks.items() if len(ids) >= SHOT_SHARED_BY}
    return [Text(f"the prompt of {where}", w) for w, where in found.items() if w]


def example_problems(items: list[Item]) -> list[str]:
    """Items whose own question is a solved example in some prompt of the set, as it stands or nearly."""
    shown = shots(items)
    whole = {t.words: t.where for t in shown}
    problems, own = [], []
    for item in items:
        asked = leaks.words(leaks.question_of(item) if item.messages else re.split(r"\n\s*\n", item.prompt or "")[-1])
        if asked in whole:
            problems.append(f"{item.id} is a solved example in {whole[asked]}")
        else:
            own.append(Text(item.id, asked))
    return problems + [str(o) for o in leaks.near_duplicates(own, shown)]


def leak_checks(items: list[Item], calibration: list[Text], corpora: list[Text]) -> list[dict[str, Any]]:
    asked = leaks.texts_of(items)
    checks = []
    against_what = [("", "calibration", calibration)]
    if corpora:
        against_what.append(("_corpora", "declared training", corpora))
    for suffix, said, others in against_what:
        against = f"none, against {len(others)} {said} texts"
        checks += [
            entry(f"leaks_exact{suffix}",
                  f"No question stands as a whole in the {said} text, nor the other way round.",
                  map(str, leaks.exact(asked, others)), against),
            entry(f"leaks_ngram{suffix}", f"No question shares {leaks.NGRAM} words in a row with the {said} text.",
                  map(str, leaks.ngrams(asked, others)), against),
            entry(f"leaks_near_duplicate{suffix}",
                  f"No passage of a question is {leaks.SIMILAR:.0%} like a passage of {said} text.",
                  map(str, leaks.near_duplicates(asked, others)), against),
        ]  # fmt: skip
    examples = entry("leaks_examples", "No question is a solved example in a prompt.", example_problems(items), "none")
    return [*checks, examples]


def personal_data(items: Iterable[Item], *, soft: bool) -> list[str]:
    """What looks like personal data in an item's texts, once each; with ``soft`` names and postal addresses alone."""
    found: dict[tuple[str, Found], str] = {}
    for item in items:
        for text in personal.texts_in(item.model_dump(exclude={"id", "week", "source"})):
            hits = [f for f in personal.find(text, soft=soft) if (f.kind in personal.SOFT) == soft]
            found |= {(item.id, f): f"{item.id}: {f}" for f in hits}
    return list(found.values())


def week_index(week: str) -> int:
    """Weeks in order, one apart, across the end of a year."""
    year, number = week.split("-W")
    return date.fromisocalendar(int(year), int(number), 1).toordinal() // 7


def production_checks(evalset: Evalset, week: str) -> list[dict[str, Any]]:
    """Share and age of production requests; none where the manifest plans no rotation.

    The full share is due once as many rotations were made as weeks are kept; before that, its part.
    """
    plan = evalset.manifest.rotation
    if plan is None:
        return []
    mine = [i for i in evalset.items if i.origin == "production"]
    share_what = "Enough items are production requests."
    age_what = "Production requests are recent, and none stays longer than its weeks."
    made = sum(e.get("what", "").startswith(ROTATION) for e in evalset.manifest.changelog)
    due = plan.minimum_share * min(1.0, max(1, made) / plan.weeks_kept)
    expected_share = f"{due:.1%} of the items or more ({plan.minimum_share:.0%} from {plan.weeks_kept} rotations on)"
    expected_age = f"the newest at most {plan.stale_after_weeks} weeks old, the oldest at most {plan.weeks_kept}"
    if not mine:
        late = week_index(week) > week_index(plan.waived_until)
        waived = f"waived until the first rotation, at the latest until {plan.waived_until}"
        overdue = f"no rotation yet in {week}; it was waived until {plan.waived_until}: seatrial evalset rotate"
        problems = [overdue] if late else []
        observed = "no production request" if late else waived
        return [
            entry("production_share", share_what, problems, expected_share, observed=observed),
            entry("production_age", age_what, problems, expected_age, observed=observed),
        ]
    share = len(mine) / len(evalset.items)
    few = [f"{len(mine)} of {len(evalset.items)} items are production requests"] if share < due else []
    ages = {i.id: week_index(week) - week_index(i.week) for i in mine}
    old = [f"{i} is {a} weeks old" for i, a in ages.items() if a > plan.weeks_kept]
    if (newest := min(ages.values())) > plan.stale_after_weeks:
        old.insert(0, f"stale: the newest production request is {newest} weeks old in {week}")
    by_week = ", ".join(f"{w}: {n}" for w, n in sorted(Counter(i.week for i in mine).items()))
    return [
        entry("production_share", share_what, few, expected_share, observed=f"{share:.1%}"),
        entry("production_age", age_what, old, expected_age, observed=by_week),
    ]
