"""Every run that was judged, and every release, with their trends: ``.seatrial/runs/index.html``.

It lies outside the graph (a stage that reads what it wrote before would be a cycle in it): each scorecard leaves a copy
of itself and a line of figures there under the moment of its verdict, and writes the index anew.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup
from pydantic import BaseModel, ConfigDict, ValidationError

from pipeline.errors import SeatrialError
from pipeline.files import atomic_write, write_json
from pipeline.provenance import utc_now
from pipeline.release.record import RELEASES, Release, current_release, releases
from pipeline.report import numbers as say
from pipeline.report.gates import spark
from pipeline.report.inputs import RunData
from pipeline.report.page import environment, stylesheet
from pipeline.report.plots import worst
from pipeline.report.summary import Summary, header_of
from pipeline.report.tiers import TierFigures

RUNS = Path(".seatrial/runs")
# figure: name, unit as numbers.with_unit reads it, key in the glossary
FIGURES = {
    "accuracy": ("Accuracy", "share"),
    "output_tokens_per_s": ("Output", "tokens/s"),
    "worst_ttft_p95_ms": ("Worst stage's P95 TTFT", "ms"),
    "worst_itl_p95_ms": ("Worst stage's P95 ITL", "ms"),
    "weights_bytes": ("Weights", "bytes"),
}


class Entry(BaseModel):
    """One judged run. ``series``: runs with the same one may be drawn as a trend (tier, machine, profile)."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    schema_version: int = 1
    id: str
    as_of: str
    verdict: str
    reason: str
    candidate: str
    baseline: str
    policy: str
    engine: str
    series: str
    figures: dict[str, float | None]


@dataclass(frozen=True)
class Trend:
    series: str
    runs: int
    rows: list[tuple[str, Markup | None, str, str]]  # figure, line, first, last


def _id(as_of: str) -> str:
    return re.sub(r"[^0-9A-Za-z]", "", as_of)


def keep(run: RunData, summary: Summary, figures: dict[str, TierFigures], html: str) -> Entry | None:
    """Adds this run, or replaces what was kept of the same verdict; None where nothing was judged."""
    as_of = str((run.verdict or {}).get("as_of") or "")
    if not _id(as_of) or run.candidate not in figures:
        return None
    mine = figures[run.candidate]
    header = header_of(run.tiers.get(run.candidate), "load") or header_of(run.tiers.get(run.candidate), "eval")
    machine = header.machine.machine_class if header else "machine unknown"
    profile = str(run.params.load.profile)
    entry = Entry(
        id=_id(as_of),
        as_of=as_of,
        verdict=summary.verdict,
        reason=summary.reason,
        candidate=run.candidate,
        baseline=summary.baseline,
        policy=summary.policy,
        engine=header.engine.name if header else "unknown",
        series=f"{run.candidate}, profile {profile}, {machine}",
        figures={
            "accuracy": mine.accuracy.value,
            "output_tokens_per_s": mine.output_tokens_per_s.value,
            "worst_ttft_p95_ms": worst(mine, "ttft_ms", "p95"),
            "worst_itl_p95_ms": worst(mine, "itl_ms", "p95"),
            "weights_bytes": mine.weights_bytes.value,
        },
    )
    write_json(run.root / RUNS / f"{entry.id}.json", entry.model_dump())
    # The records that the page links to are those of the newest run by the time somebody opens the copy.
    still = re.sub(r'<a href="(?!#)[^"]*"(?: aria-label="[^"]*")?>(.*?)</a>', r"\1", html)
    atomic_write(run.root / RUNS / f"{entry.id}.html", still)
    return entry


def read(root: Path) -> tuple[list[Entry], list[str]]:
    """(runs, oldest first; names of files that are none)."""
    found, bad = [], []
    for path in sorted((root / RUNS).glob("*.json")):
        try:
            found.append(Entry.model_validate_json(path.read_bytes()))
        except (ValidationError, OSError):
            bad.append(path.name)
    return sorted(found, key=lambda e: (e.as_of, e.id)), bad


def trends(entries: list[Entry]) -> list[Trend]:
    """A trend for each tier, profile and machine that has two runs; figures of others are never joined by a line."""
    out = []
    for series in dict.fromkeys(e.series for e in reversed(entries)):
        mine = [e for e in entries if e.series == series]
        if len(mine) < 2:
            continue
        rows = []
        for key, (name, unit) in FIGURES.items():
            values = [e.figures.get(key) for e in mine]
            line = spark([float("nan") if v is None else v for v in values], f"{name}, {series}", unit)
            rows.append((name, line, say.with_unit(values[0], unit), say.with_unit(values[-1], unit)))
        out.append(Trend(series, len(mine), rows))
    return out


def _releases(root: Path) -> tuple[list[Release], str, str]:
    """(newest first, the name of the one in service, why there are none)."""
    try:
        known, current = releases(root / RELEASES), current_release(root / RELEASES)
    except SeatrialError as e:
        return [], "", str(e).replace(f"{root}/", "")
    return known[::-1], current.name if current else "", "" if known else "nothing has been released yet"


def write_index(root: Path = Path()) -> Path:
    """Writes the index below ``root``; returns its path as seen from there."""
    entries, bad = read(root)
    known, current, none = _releases(root)
    context: dict[str, Any] = {
        "title": "Runs and releases · Seatrial",
        "css": stylesheet(),
        "runs": entries[::-1],
        "bad": bad,
        "trends": trends(entries),
        "releases": known,
        "current": current,
        "no_release": none,
        "figures": FIGURES,
        "now": utc_now(),
        "accuracy_of": lambda r: sum(r.scores.values()) / len(r.scores) if r.scores else None,
    }
    path = RUNS / "index.html"
    atomic_write(root / path, environment().get_template("index.html.j2").render(context))
    return path
