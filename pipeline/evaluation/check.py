"""Stage ``check_evalsets``: is the regression set sound? Writes ``reports/evalset.json``.

    python -m pipeline.evaluation.check [--as-of-week 2026-W48]

Two engines: the Great Expectations suite of the evalset (schema, composition, pinned cases, weeks), and checks that
need more than one table: version, graders, duplicates, leaks, personal data. A check that fails is a finding, not a
crash: the stage ends well and the gate judges. A set that cannot be read at all is an error.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pipeline.errors import SeatrialError
from pipeline.evaluation import leaks
from pipeline.evaluation.expectations import EXAMPLES, run_suite
from pipeline.evaluation.graders import check_item
from pipeline.evaluation.items import EVALSETS, Evalset, Item, content_digest, is_week, load_evalset
from pipeline.evaluation.versions import version_problems
from pipeline.files import write_json
from pipeline.params import Params, load_params
from pipeline.stage import Stage, run_main, stage

REPORT = Path("reports/evalset.json")
DISAGREEMENT = 0.10
Z_TWO_SIDED_95, Z_POWER_80 = 1.959964, 0.841621

PERSONAL = {
    "email address": re.compile(r"[\w.+-]+@[\w-]+\.[a-z]{2,}", re.IGNORECASE),
    "phone number": re.compile(
        r"(?<![\w.])(?:\+\d{8,15}|(?:\+\d{1,3}[ ./-]?)?\(?\d{2,5}\)?(?:[ ./-]\d{2,5}){2,4})(?![\w.]\d)"
    ),
    "bank account": re.compile(r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){3,7}(?: ?[A-Z0-9]{1,3})?\b"),
    "card number": re.compile(r"(?<!\d)\d(?:[ -]?\d){12,18}(?!\d)"),
}  # fmt: skip
PHONE_DIGITS = 9


def check(name: str, what: str, problems: Iterable[str], expected: str, *, blocking: bool = True) -> dict[str, Any]:
    """One entry of the report for a check of our own: it holds if there are no problems."""
    found = list(problems)
    return {
        "name": name,
        "what": what,
        "engine": "seatrial",
        "success": not found,
        "blocking": blocking,
        "observed": f"{len(found)} found",
        "expected": expected,
        "examples": found[:EXAMPLES],
    }


def grader_problems(items: Iterable[Item]) -> list[str]:
    problems = []
    for item in items:
        try:
            check_item(item)
        except SeatrialError as e:
            problems.append(str(e))
    return problems


def duplicate_problems(items: Iterable[Item]) -> list[str]:
    """Items that ask the same: equal words in the prompt and in every turn."""
    same: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for item in items:
        asked = item.prompt if item.messages is None else "\n".join(m.content for m in item.messages)
        same[leaks.words(asked or "")].append(item.id)
    return [f"{', '.join(ids)} ask the same" for ids in same.values() if len(ids) > 1]


def example_problems(items: list[Item]) -> list[str]:
    """Items whose question is a solved example in some prompt of the set."""
    shown: dict[tuple[str, ...], str] = {}
    for item in items:
        for m in (item.messages or [])[:-1]:
            if m.role == "user":
                shown.setdefault(leaks.words(m.content), item.id)
    return [
        f"{item.id} is a solved example in the prompt of {shown[asked]}"
        for item in items
        if (asked := leaks.words(leaks.question_of(item))) in shown
    ]


def personal_data(item: Item) -> list[str]:
    """What looks like personal data in any text of the item, by pattern; card numbers must pass the Luhn check."""
    found = []
    for text in texts_in(item.model_dump(exclude={"id", "week", "source"})):
        for what, pattern in PERSONAL.items():
            for match in pattern.finditer(text):
                digits = re.sub(r"\D", "", match[0])
                if what == "phone number" and len(digits) < PHONE_DIGITS:
                    continue
                if what == "card number" and not luhn(digits):
                    continue
                found.append(f"{item.id}: {what} {match[0][:4]}... ({len(match[0])} characters)")
    return found


def texts_in(value: Any) -> Iterable[str]:
    """Every text in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for v in value.values():
            yield from texts_in(v)
    elif isinstance(value, list):
        for v in value:
            yield from texts_in(v)


def luhn(digits: str) -> bool:
    """The check digit of card numbers (ISO/IEC 7812-1, annex B)."""
    total = 0
    for i, d in enumerate(map(int, reversed(digits))):
        total += d if i % 2 == 0 else sum(divmod(2 * d, 10))
    return total % 10 == 0


def leak_checks(items: list[Item], calibration: list[leaks.Text]) -> list[dict[str, Any]]:
    asked = leaks.texts_of(items)
    against = f"none, against {len(calibration)} calibration texts"
    return [
        check("leaks_exact", "No question stands as a whole in the calibration text, nor the other way round.",
              map(str, leaks.exact(asked, calibration)), against),
        check("leaks_ngram", f"No question shares {leaks.NGRAM} words in a row with the calibration text.",
              map(str, leaks.ngrams(asked, calibration)), against),
        check("leaks_near_duplicate", f"No passage of a question is {leaks.SIMILAR:.0%} like a calibration passage.",
              map(str, leaks.near_duplicates(asked, calibration)), against),
        check("leaks_examples", "No question is a solved example in a prompt.", example_problems(items), "none"),
    ]  # fmt: skip


def sensitivity(n: int) -> dict[str, Any]:
    """What loss of accuracy ``n`` paired items can show, if candidate and reference disagree on one item in ten.

    With a share d of discordant pairs the variance of a paired difference near zero is d / n (McNemar 1947; Connor
    1987): a two-sided 95 % interval is z(0.975) sqrt(d / n) wide to each side, and a true loss of
    (z(0.975) + z(0.8)) sqrt(d / n) is seen four times in five. Items are taken as independent; clusters make both
    larger.
    """
    deviation = 100 * (DISAGREEMENT / n) ** 0.5
    return {
        "n": n,
        "detectable_points_at_10pct_disagreement": round((Z_TWO_SIDED_95 + Z_POWER_80) * deviation, 2),
        "half_width_points_at_10pct_disagreement": round(Z_TWO_SIDED_95 * deviation, 2),
        "formula": "detectable in 4 of 5 cases: 100 (z(0.975) + z(0.8)) sqrt(0.1 / n); "
        "half width of the 95 % interval: 100 z(0.975) sqrt(0.1 / n)",
    }


def composition(evalset: Evalset) -> dict[str, dict[str, Any]]:
    per: dict[str, list[Item]] = defaultdict(list)
    for item in evalset.items:
        per[item.scenario].append(item)
    return {
        name: {
            "items": len(items),
            "pinned": sum(x.origin == "pinned" for x in items),
            "kind": items[0].kind,
            "origins": dict(sorted(Counter(x.origin for x in items).items())),
        }
        for name, items in per.items()
    }


def as_of(evalset: Evalset, given: str | None) -> str:
    """The week that counts as now: the given one, else that of the newest entry of the changelog.

    Raises:
        SeatrialError: not an ISO week.
    """
    week = given or next((e["week"] for e in reversed(evalset.manifest.changelog) if e.get("week")), "")
    if not is_week(week):
        where = "--as-of-week" if given else "`week` of the manifest's last changelog entry"
        raise SeatrialError(f"{where} is {week!r}; expected an ISO week such as 2026-W48")
    return week


def examine(folder: Path, params: Params, as_of_week: str | None = None) -> dict[str, Any]:
    """All checks of an evalset, as the content of ``reports/evalset.json``.

    Raises:
        SeatrialError: the set, its suite or a calibration text cannot be read.
    """
    evalset = load_evalset(folder)
    week = as_of(evalset, as_of_week)
    calibration = leaks.calibration_texts(params)
    items = evalset.items
    checks = [
        *run_suite(folder, evalset, week),
        check("version", "The content is the one recorded for this version.", version_problems(evalset, folder),
              f"digest {evalset.manifest.content_digest[:12]} (version {evalset.manifest.version})"),
        check("graders", "Every item suits its grader: parameters, reference, choices, output budget.",
              grader_problems(items), "none"),
        check("duplicates", "No two items ask the same.", duplicate_problems(items), "none"),
        *leak_checks(items, calibration),
        check("personal_data", "No email address, phone, bank account or card number.",
              (p for x in items for p in personal_data(x)), "none"),
    ]  # fmt: skip
    return {
        "schema_version": 1,
        "evalset": {
            "name": evalset.manifest.name,
            "version": evalset.manifest.version,
            "digest": content_digest(folder),
            "items": len(items),
        },
        "as_of_week": week,
        "success": all(c["success"] for c in checks if c["blocking"]),
        "checks": checks,
        "composition": composition(evalset),
        "sensitivity": sensitivity(len(items)),
    }


def tell(s: Stage, report: dict[str, Any]) -> None:
    failed = [c for c in report["checks"] if not c["success"]]
    for c in failed:
        s.say(
            f"{'FAILED' if c['blocking'] else 'advisory'} {c['name']}: {c['what']} {'; '.join(c['examples'])}".strip()
        )
    e = report["evalset"]
    held, of = len(report["checks"]) - len(failed), len(report["checks"])
    s.say(f"{e['name']} version {e['version']}: {e['items']} items, {held} of {of} checks hold")


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m pipeline.evaluation.check", description="Checks of the regression set."
    )
    parser.add_argument("--as-of-week", help="ISO week that counts as now; default: of the newest changelog entry")
    given = parser.parse_args(argv)
    params = load_params()
    with stage("check_evalsets") as s:
        report = examine(EVALSETS / params.evaluation.evalset, params, given.as_of_week)
        write_json(REPORT, report)
        tell(s, report)


if __name__ == "__main__":
    run_main(main)
