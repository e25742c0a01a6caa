"""Reads raters' files back: who agrees how much, and whether the candidate is rated otherwise than the baseline.

Agreement is Krippendorff's alpha on the ordinal scale, for each criterion. The comparison is paired by item: an
answer's rating is the mean over its raters, an item's difference candidate minus baseline, and the interval Student's t
over items (raters are not units: the same people rated both). Below ``MIN_ALPHA`` the raters do not measure one thing,
and the comparison is reported as unreliable rather than used.
"""

from __future__ import annotations

import csv
import io
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from pipeline.errors import SeatrialError
from pipeline.evaluation.review.agreement import alpha
from pipeline.evaluation.review.rubric import RUBRIC, SCALE, VERSION
from pipeline.files import write_json

MIN_ALPHA = 0.667  # "where tentative conclusions are still acceptable": Krippendorff 2004, p. 241
MIN_ITEMS = 10
CONFIDENCE = 0.95
SCHEMA_VERSION = 1
REPORT = Path("reports/review.json")

Ratings = dict[str, dict[str, int]]  # line -> criterion -> 1..5


def read_key(folder: Path) -> dict[str, Any]:
    """
    Raises:
        SeatrialError: no key, or that of another rubric.
    """
    path = folder / "key.json"
    try:
        key = json.loads(path.read_text(encoding="utf-8"))
        rubric, _ = key["rubric"], [(x["line"], x["item"], x["of"]) for x in key["lines"]]
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise SeatrialError(f"{path}: {e!r}; expected the key that `seatrial review sample` wrote") from e
    if rubric != VERSION:
        raise SeatrialError(f"{path} is for version {rubric} of the rubric, this is {VERSION}; draw a new sample")
    return dict(key)


def read_ratings(path: Path, lines: set[str]) -> Ratings:
    """One rater's file: columns ``line`` and the criteria; an empty cell is no rating.

    Raises:
        SeatrialError: other columns, a line that was not drawn or is there twice, a value off the scale.
    """
    found: Ratings = {}
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as e:
        raise SeatrialError(f"{path}: {e}; expected a rater's CSV in UTF-8") from e
    reader = csv.DictReader(io.StringIO(text, newline=""))
    missing = {"line", *(c.name for c in RUBRIC)} - set(reader.fieldnames or ())
    if missing:
        raise SeatrialError(f"{path} has no column {', '.join(sorted(missing))}; expected those of form.csv")
    for row in reader:
        line = (row["line"] or "").zfill(3)  # spreadsheets drop leading zeros
        if line not in lines or line in found:
            raise SeatrialError(f"{path}: line {line} {'is there twice' if line in found else 'is not in the sample'}")
        found[line] = {}
        for c in RUBRIC:
            value = (row[c.name] or "").strip()
            if not value:
                continue
            if value not in {str(n) for n in SCALE}:
                raise SeatrialError(f"{path}: line {line}: {c.name} is {value!r}; expected 1 to 5 or nothing")
            found[line][c.name] = int(value)
    return found


def _interval(differences: Sequence[float]) -> list[float]:
    from scipy import stats

    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(differences) - 1)) * stdev(differences) / len(differences) ** 0.5
    middle = fmean(differences)
    return [middle - half, middle + half]


def judge(key: dict[str, Any], raters: Sequence[Ratings]) -> dict[str, Any]:
    """The content of ``reports/review.json``: one entry a criterion, with agreement, means, difference and interval."""
    criteria = {}
    for c in RUBRIC:
        units: dict[str, list[int]] = defaultdict(list)
        for rater in raters:
            for line, given in rater.items():
                if c.name in given:
                    units[line].append(given[c.name])
        criteria[c.name] = _criterion(key, units)
    return {
        "schema_version": SCHEMA_VERSION,
        "rubric": VERSION,
        "sample": key["sample"],
        "candidate": _name(key, "candidate"),
        "baseline": _name(key, "baseline"),
        "build": (key.get("builds") or {}).get(key["candidate"]),
        "raters": len(raters),
        "criteria": criteria,
    }


def _name(key: dict[str, Any], side: str) -> str:
    """The tier whose answers were rated; the side itself in a key that does not say."""
    build = (key.get("builds") or {}).get(key[side]) or {}
    return str((build.get("quantisation") or {}).get("name") or key[side])


def _criterion(key: dict[str, Any], units: dict[str, list[int]]) -> dict[str, Any]:
    agreement = alpha(units.values(), "ordinal")
    mean: dict[str, dict[str, float]] = {key["candidate"]: {}, key["baseline"]: {}}
    for entry in key["lines"]:
        if units.get(entry["line"]):
            for who in entry["of"]:
                mean[who][entry["item"]] = fmean(units[entry["line"]])
    candidate, baseline = mean[key["candidate"]], mean[key["baseline"]]
    both = sorted(candidate.keys() & baseline.keys())
    differences = [candidate[i] - baseline[i] for i in both]
    if len(both) < MIN_ITEMS:
        problem = f"{len(both)} items have ratings of both releases; {MIN_ITEMS} are needed"
    elif agreement is None:
        problem = "agreement is not defined: no two raters rated the same answers, or all ratings are one value"
    elif agreement < MIN_ALPHA:
        problem = f"raters do not agree: alpha is {agreement:.2f}, below {MIN_ALPHA}"
    else:
        problem = None
    return {
        "alpha": agreement,
        "items": len(both),
        "candidate_mean": fmean(candidate[i] for i in both) if both else None,
        "baseline_mean": fmean(baseline[i] for i in both) if both else None,
        "difference": fmean(differences) if both else None,
        "interval": _interval(differences) if len(both) >= MIN_ITEMS else None,
        "confidence": CONFIDENCE,
        "problem": problem,
    }


def import_ratings(folder: Path, files: Sequence[Path], report: Path = REPORT) -> dict[str, Any]:
    """Judges raters' files of the sample in ``folder`` and writes ``reports/review.json``.

    Raises:
        SeatrialError: see :func:`read_key`, :func:`read_ratings`.
    """
    key = read_key(folder)
    lines = {x["line"] for x in key["lines"]}
    outcome = judge(key, [read_ratings(f, lines) for f in files])
    write_json(report, outcome)
    return outcome
