"""What the figures were computed from: one row a request and one row a step, in parquet."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from engine.bench.drive import RunRecord, Step
from engine.bench.files import write_atomic

REQUESTS, STEPS = "requests.parquet", "steps.parquet"


def write(out: Path, records: dict[str, list[RunRecord]]) -> None:
    """``requests.parquet``: policy, round, request, due_s, token_s (a list); ``steps.parquet``: policy, round and the
    fields of a step. Times are seconds since the start of the run."""
    runs = [(name, number, r) for name, runs in records.items() for number, r in enumerate(runs)]
    requests = pl.DataFrame(
        [
            (name, number, i, due, times)
            for name, number, r in runs
            for i, (due, times) in enumerate(zip(r.due_s, r.token_s, strict=True))
        ],
        schema={
            "policy": pl.String,
            "round": pl.Int32,
            "request": pl.Int32,
            "due_s": pl.Float64,
            "token_s": pl.List(pl.Float64),
        },
        orient="row",
    )
    kinds = {f: pl.Float64 if f.endswith("_s") else pl.Int64 for f in Step._fields}
    steps = pl.DataFrame(
        [(name, number, *step) for name, number, r in runs for step in r.steps],
        schema={"policy": pl.String, "round": pl.Int32, **kinds},
        orient="row",
    )
    write_atomic(out / REQUESTS, requests.write_parquet)
    write_atomic(out / STEPS, steps.write_parquet)
