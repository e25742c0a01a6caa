"""Why the candidate is held: what the engines' own logs name for the last pair of rounds (`seatrial diagnose`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl

from pipeline.diagnosis.inputs import read_run_folder
from pipeline.diagnosis.walk import walk
from pipeline.errors import SeatrialError


def cause_of(rounds: Path, pair: int) -> dict[str, Any]:
    """``causes``: the first cause of each symptom that is worse, in the order of the walk; ``why_none`` where that is
    empty. ``pair``: whose rounds to take apart.

    Logs that a side did not write, or wrote in another form, name nothing; they never change a verdict.
    """
    try:
        mine, theirs = (read_run_folder(str(rounds / f"{pair:02d}-{side}")) for side in ("candidate", "base"))
        findings = walk(mine, theirs)
    except (SeatrialError, LookupError, TypeError, ValueError, ArithmeticError, pl.exceptions.PolarsError) as e:
        why = f"the rounds cannot be taken apart: {type(e).__name__}: {str(e).splitlines()[0] if str(e) else e!r}"
        return {"pair": pair, "causes": [], "why_none": why}
    causes = [
        {"symptom": f.symptom, "cause": c.code, "words": c.words, "figure": c.figure, "try": c.knob}
        for f in findings
        if f.state == "worse"
        for c in f.causes[:1]
    ]
    why = "; ".join(f"{f.symptom}: {f.figure}" for f in findings if f.state == "worse") or "no symptom in that pair"
    return {"pair": pair, "causes": causes, "why_none": None if causes else f"not explained: {why}"}
