"""Why the candidate is held: what was counted names it, then what the engines' own logs tell of each pair of rounds
(`seatrial diagnose`), of the stages whose latency holds it. A round is short, so what one pair shows may be its own
noise: a cause has to be found in half of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from pipeline.ab.counts import Counted
from pipeline.diagnosis.causes import Cause, Finding
from pipeline.diagnosis.inputs import read_run_folder
from pipeline.diagnosis.walk import walk_held
from pipeline.errors import SeatrialError


def cause_of(rounds: Path, pairs: Sequence[int], work: Sequence[Counted], stages: Mapping[str, str]) -> dict[str, Any]:
    """``causes``: of each count that is worse, then of each symptom in the order of the walk the cause that most pairs
    name, each cause once; ``why_none`` where that is empty.

    Logs that a side did not write, or wrote in another form, name nothing; they never change a verdict.

    Args:
        pairs: whose rounds to take apart, at least one.
        stages: whose ``ttft`` and ``itl`` hold the candidate.
    """
    walks, why = [], ""
    for pair in pairs:
        try:
            mine, theirs = (read_run_folder(str(rounds / f"{pair:02d}-{side}")) for side in ("candidate", "base"))
            walks.append(walk_held(mine, theirs, stages))
        except (SeatrialError, LookupError, TypeError, ValueError, ArithmeticError, pl.exceptions.PolarsError) as e:
            why = f"the rounds cannot be taken apart: {type(e).__name__}: {str(e).splitlines()[0] if str(e) else e!r}"
    if walks:
        worse = "; ".join(f"{f.symptom}: {f.figure}" for f in walks[-1] if f.state == "worse")
        why = f"not explained: {worse or 'no symptom in the last pair'}"
    counted = [(c.words, c.cause) for c in work if c.cause is not None]
    causes = list(_each_once([*counted, *_agreed(walks)]))
    return {"pairs": list(pairs), "causes": causes, "why_none": None if causes else why}


def _agreed(walks: Sequence[Sequence[Finding]]) -> Iterator[tuple[str, Cause]]:
    """Of each symptom the cause that most pairs name, with the figure of the last that does: where half of them name
    it, else where no other symptom has one that is named more often.
    """
    found = [(f.symptom, c) for findings in walks for f in findings if f.state == "worse" for c in f.causes[:1]]
    last = {(symptom, c.code): c for symptom, c in found}
    times = Counter((symptom, c.code) for symptom, c in found)
    least = min(len(walks) / 2, max(times.values(), default=0))
    for symptom in [f.symptom for f in max(walks, key=len, default=())]:  # the longest is the whole walk in its order
        of_it = [(n, code) for (s, code), n in times.items() if s == symptom and n >= least]
        if of_it:
            n, code = max(of_it)
            cause = last[symptom, code]
            yield symptom, replace(cause, figure=f"{cause.figure}; so in {n} of {len(walks)} pairs")


def _each_once(found: Sequence[tuple[str, Cause]]) -> Iterator[dict[str, Any]]:
    told: set[str] = set()
    for symptom, c in found:
        if c.code not in told:
            told.add(c.code)
            yield {"symptom": symptom, "cause": c.code, "words": c.words, "figure": c.figure, "try": c.knob}
