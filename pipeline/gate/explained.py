"""Why a rule fails: the cause that the engine's own logs name for the symptom, with its figure and the knob to try.

The rows of the verdict's diagnosis say which stage of serving is at fault by the figures of the run alone. Where the
engine's step log and request log were kept with it, ``pipeline.diagnosis`` takes the symptom apart, and the row says
what it named; of a server without such logs, by the metrics that it exports. A row whose rules do not fail needs none.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.gate.inputs import RESULTS, TierRun

if TYPE_CHECKING:
    from pipeline.diagnosis.inputs import Run

Rows = list[dict[str, Any]]
OVER = "over a limit: "  # how the finding of a row begins whose rules fail
NO_LOGS = "the engine's logs were not kept with the run"


def explained(
    rows: list[dict[str, Any]], run: TierRun, reference: TierRun, root: Path = RESULTS
) -> list[dict[str, Any]]:
    """The rows; those that fail with ``cause``, ``figure`` and ``knob``, or with a ``figure`` that says why not."""
    if not any(_fails(r) for r in rows):
        return rows
    mine, theirs = _run(run, root), _run(reference, root)
    return [r | _named(r["step"], mine, theirs) if _fails(r) else r for r in rows]


def _fails(row: dict[str, Any]) -> bool:
    return str(row["finding"]).startswith(OVER)


def _named(step: int, mine: Run, theirs: Run) -> dict[str, Any]:
    """Limits on latency are absolute, so the largest part is what to look at; quality is held against the reference."""
    import polars as pl

    from pipeline.diagnosis.latency import itl, ttft
    from pipeline.diagnosis.quality import quality
    from pipeline.diagnosis.throughput import throughput

    logs = mine.steps is not None and mine.requests is not None
    if step in (1, 2) and not logs and "server_metrics" not in (mine.load or {}):
        return {"figure": NO_LOGS}
    try:
        looks = {1: lambda: ttft(mine, None), 2: lambda: itl(mine, None), 3: lambda: throughput(mine, None)}
        finding = looks.get(step, lambda: quality(mine, theirs))()
    except (LookupError, TypeError, ValueError, ArithmeticError, pl.exceptions.PolarsError) as e:
        return {"figure": f"the engine's logs cannot be taken apart: {type(e).__name__}: {e}"}
    if not finding.causes:
        return {"figure": f"not explained: {finding.figure}"}
    first = finding.causes[0]
    return {"cause": first.words, "figure": first.figure, "knob": first.knob}


def _run(tier: TierRun, root: Path) -> Run:
    """As the diagnosis takes it. A log that is absent or broken is none: the gate judges without it."""
    import polars as pl

    from pipeline.diagnosis.inputs import Run
    from pipeline.load.queueing import log_ids

    def log(kind: str) -> pl.DataFrame | None:
        try:
            return pl.read_parquet(root / tier.tier / "load" / f"{kind}.parquet")
        except (OSError, pl.exceptions.PolarsError):
            return None

    records = None if tier.records is None else log_ids(tier.records)
    return Run(tier.tier, tier.load, records, log("steps"), log("requests"), tier.server, tier.items)
