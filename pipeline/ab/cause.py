"""Why the candidate is held: what was counted names it, then what the engines' own logs tell of the last pair of rounds
(`seatrial diagnose`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from pipeline.ab.counts import Counted
from pipeline.diagnosis.causes import Cause, Finding
from pipeline.diagnosis.inputs import read_run_folder
from pipeline.diagnosis.walk import walk
from pipeline.errors import SeatrialError


def cause_of(rounds: Path, pair: int, work: Sequence[Counted] = ()) -> dict[str, Any]:
    """``causes``: of each count that is worse, then the first of each symptom that is, in the order of the walk, each
    cause once; ``why_none`` where that is empty. ``pair``: whose rounds to take apart.

    Logs that a side did not write, or wrote in another form, name nothing; they never change a verdict.
    """
    counted = [(c.words, c.cause) for c in work if c.cause is not None]
    try:
        mine, theirs = (read_run_folder(str(rounds / f"{pair:02d}-{side}")) for side in ("candidate", "base"))
        findings = walk(mine, theirs)
    except (SeatrialError, LookupError, TypeError, ValueError, ArithmeticError, pl.exceptions.PolarsError) as e:
        findings = []
        why = f"the rounds cannot be taken apart: {type(e).__name__}: {str(e).splitlines()[0] if str(e) else e!r}"
    else:
        why = "; ".join(f"{f.symptom}: {f.figure}" for f in findings if f.state == "worse") or "no symptom in that pair"
        why = f"not explained: {why}"
    causes = list(_each_once([*counted, *_of(findings)]))
    return {"pair": pair, "causes": causes, "why_none": None if causes else why}


def _of(findings: Sequence[Finding]) -> list[tuple[str, Cause]]:
    return [(f.symptom, c) for f in findings if f.state == "worse" for c in f.causes[:1]]


def _each_once(found: Sequence[tuple[str, Cause]]) -> Iterator[dict[str, Any]]:
    told: set[str] = set()
    for symptom, c in found:
        if c.code not in told:
            told.add(c.code)
            yield {"symptom": symptom, "cause": c.code, "words": c.words, "figure": c.figure, "try": c.knob}
