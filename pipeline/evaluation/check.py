"""Stage ``check_evalsets``: is the regression set sound? Writes ``reports/evalset.json``.

    python -m pipeline.evaluation.check [--as-of-week 2026-W48] [--folder evalsets/NAME]

Two engines: the Great Expectations suite of the evalset (schema, composition, pinned cases, weeks), and the rules of
``pipeline.evaluation.health``, which need more than one table. A check that fails is a finding, not a crash: the stage
ends well and the gate judges. A set that cannot be read at all is an error.
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from pipeline.errors import SeatrialError
from pipeline.evaluation import health, leaks
from pipeline.evaluation.expectations import run_suite
from pipeline.evaluation.items import EVALSETS, Evalset, Item, content_digest, is_week, load_evalset
from pipeline.files import write_json
from pipeline.params import Params, load_params
from pipeline.stage import Stage, run_main, stage

REPORT = Path("reports/evalset.json")
DISAGREEMENT = 0.10
Z_TWO_SIDED_95, Z_POWER_80 = 1.959964, 0.841621


def sensitivity(n: int, sources: int) -> dict[str, Any]:
    """What loss of accuracy ``n`` paired items of so many sources can show, if candidate and reference disagree on one
    item in ten.

    With a share d of discordant pairs the variance of a paired difference near zero is d / n (McNemar 1947; Connor
    1987): a two-sided 95 % interval is z(0.975) sqrt(d / n) wide to each side, and a true loss of
    (z(0.975) + z(0.8)) sqrt(d / n) is seen four times in five. That takes items as independent. Where items of a source
    are right or wrong together, sources count instead of items; what is true lies between the two.
    """
    deviation, whole = (100 * (DISAGREEMENT / m) ** 0.5 for m in (n, sources))
    return {
        "n": n,
        "detectable_points_at_10pct_disagreement": round((Z_TWO_SIDED_95 + Z_POWER_80) * deviation, 2),
        "sources": sources,
        "detectable_points_if_sources_flip_whole": round((Z_TWO_SIDED_95 + Z_POWER_80) * whole, 2),
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
        SeatrialError: the set, its suite, a calibration text, a corpus or a ledger cannot be read.
    """
    evalset = load_evalset(folder)
    week = as_of(evalset, as_of_week)
    calibration = leaks.calibration_texts(params)
    corpora = [t for path in params.evaluation.corpora for t in leaks.corpus_texts(path)]
    items = evalset.items
    checks = [*run_suite(folder, evalset, week), *health.checks_of(evalset, folder, week, calibration, corpora)]
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
        "sensitivity": sensitivity(len(items), len({(i.scenario, i.source) for i in items})),
    }


def tell(s: Stage, report: dict[str, Any]) -> None:
    failed = [c for c in report["checks"] if not c["success"]]
    for c in failed:
        s.say(
            f"{'FAILED' if c['blocking'] else 'advisory'} {c['name']}: {c['what']} {'; '.join(c['examples'])}".strip()
        )
    for c in report["checks"]:
        if str(c["observed"]).startswith("waived"):
            s.say(f"{c['name']}: {c['observed']}")
    e, seen = report["evalset"], report["sensitivity"]
    held, of = len(report["checks"]) - len(failed), len(report["checks"])
    s.say(f"{e['name']} version {e['version']}: {e['items']} items, {held} of {of} checks hold")
    losses = [seen[f"detectable_points_{k}"] for k in ("at_10pct_disagreement", "if_sources_flip_whole")]
    s.say(
        f"if one item in ten differs, {seen['n']} items see a loss of {losses[0]:.1f} points in 4 of 5 runs if they "
        f"are independent, of {losses[1]:.1f} if those of a source ({seen['sources']} in all) go together"
    )


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m pipeline.evaluation.check", description="Checks of the regression set."
    )
    parser.add_argument("--as-of-week", help="ISO week that counts as now; default: of the newest changelog entry")
    parser.add_argument("--folder", type=Path, help="check this set and write no report; default: that of params.yaml")
    given = parser.parse_args(argv)
    params = load_params()
    with stage("check_evalsets", note=given.folder is None) as s:
        report = examine(given.folder or EVALSETS / params.evaluation.evalset, params, given.as_of_week)
        if given.folder is None:
            write_json(REPORT, report)
        tell(s, report)


if __name__ == "__main__":
    run_main(main)
