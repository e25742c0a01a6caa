"""What the figures were computed from: one row a request, in parquet."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from engine.bench.engines.engine import Run
from engine.bench.files import write_atomic

REQUESTS = "requests.parquet"


def write(out: Path, runs: dict[str, dict[str, list[Run | None]]]) -> None:
    """``runs``: by workload, by engine, a round each.

    Columns: workload, engine, round, request, token_s (seconds since the requests were handed over), tokens (ids; null
    where the engine does not give them).
    """
    rows = [
        (workload, engine, number, i, times, None if run.tokens is None else run.tokens[i])
        for workload, engines in runs.items()
        for engine, rounds in engines.items()
        for number, run in enumerate(rounds)
        if run is not None
        for i, times in enumerate(run.token_s)
    ]
    schema: dict[str, pl.DataType | type[pl.DataType]] = {
        "workload": pl.String,
        "engine": pl.String,
        "round": pl.Int32,
        "request": pl.Int32,
        "token_s": pl.List(pl.Float64),
        "tokens": pl.List(pl.Int64),
    }
    table = pl.DataFrame(rows, schema=schema, orient="row")
    write_atomic(out / REQUESTS, table.write_parquet)
