"""The diagnosis of the candidate. What the verdict says is what the page says; the walk over the engine's own logs (see
:mod:`pipeline.diagnosis`) stands beside it as figures. It names a cause only where there is no verdict that could.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from pipeline.diagnosis.causes import Finding
from pipeline.diagnosis.inputs import Run, read_run_folder
from pipeline.diagnosis.walk import named, walk
from pipeline.errors import SeatrialError
from pipeline.gate.explained import OVER
from pipeline.report.inputs import Json, RunData


@dataclass(frozen=True)
class Walked:
    """``against``: whom it was held against, empty where nobody; ``reason``: why there are no findings."""

    run: str
    against: str
    findings: list[Finding]
    reason: str

    @property
    def first(self) -> str:
        """The cause that is named, in words; empty where none is."""
        found = named(self.findings)
        return f"{found[0].words} ({found[0].figure}); try: {found[0].knob}" if found else ""

    @property
    def worse(self) -> list[str]:
        return [f.symptom for f in self.findings if f.state == "worse"]


@dataclass(frozen=True)
class Verdicts:
    """The rows of the verdict's diagnosis, and the one sentence that they come to."""

    rows: list[Json]
    lead: str


def diagnosed(run: RunData) -> Verdicts | None:
    """What the gate named; None where there is no verdict, or one without a diagnosis."""
    found = (run.verdict or {}).get("diagnosis")
    rows = [r for r in found if isinstance(r, dict)] if isinstance(found, list) else []
    if not rows:
        return None
    named = next((r for r in rows if r.get("cause")), None)
    if named is not None:
        return Verdicts(rows, f"Named: {named['cause']} ({named.get('figure')}); try: {named.get('knob')}.")
    failing = [r for r in rows if str(r.get("finding")).startswith(OVER)]
    if failing:
        why = "; ".join(f"{r.get('symptom')}: {r.get('figure') or r.get('suspect')}" for r in failing)
        return Verdicts(rows, f"Not explained: {why}.")
    return Verdicts(rows, "No rule of these fails, so no cause is named.")


def walked(run: RunData) -> Walked:
    """The candidate against the reference; by itself where it is the reference or there is none."""
    mine, theirs = run.candidate, run.reference if run.reference != run.candidate else ""
    try:
        one = _read(run, mine)
        try:
            other = _read(run, theirs) if theirs else None
        except SeatrialError:
            other = None
        found = walk(one, other)
    except SeatrialError as e:
        return Walked(mine, theirs, [], str(e).replace(f"{run.root}/", ""))
    # What another tool wrote may lack a figure that the walk counts on; the page is written all the same.
    except (KeyError, TypeError, ValueError, AssertionError, pl.exceptions.PolarsError) as e:
        return Walked(mine, theirs, [], f"the records of {mine} could not be walked: {type(e).__name__}: {e}")
    return Walked(mine, theirs if other else "", found, "")


def _read(run: RunData, tier: str) -> Run:
    folder = run.root / run.folders.get(tier, Path("results") / tier)
    return replace(read_run_folder(str(folder)), name=tier)
