"""The diagnosis of the candidate, walked anew from the engine's own logs (see :mod:`pipeline.diagnosis`)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from pipeline.diagnosis.causes import Finding
from pipeline.diagnosis.inputs import Run, read_run_folder
from pipeline.diagnosis.walk import named, walk
from pipeline.errors import SeatrialError
from pipeline.report.inputs import RunData


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
