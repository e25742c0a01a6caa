"""What the figures were computed from: one row a request and one row a step, in parquet."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from engine.bench.drive import RunRecord, Step
from engine.bench.files import write_atomic

REQUESTS, STEPS = "requests.parquet", "steps.parquet"


def write(out: Path, records: dict[str, dict[str, list[RunRecord]]]) -> None:
    """``records``: by load, then by policy.

    ``requests.parquet``: load, policy, round, request, due_s, token_s (a list); ``steps.parquet``: load, policy, round
    and the fields of a step. Times are seconds since the start of the run.
    """
    runs = [
        ((load, name, number), r)
        for load, policies in records.items()
        for name, rounds in policies.items()
        for number, r in enumerate(rounds)
    ]
    key = {"load": pl.String, "policy": pl.String, "round": pl.Int32}
    requests = pl.DataFrame(
        [
            (*run, i, due, times)
            for run, r in runs
            for i, (due, times) in enumerate(zip(r.due_s, r.token_s, strict=True))
        ],
        schema={**key, "request": pl.Int32, "due_s": pl.Float64, "token_s": pl.List(pl.Float64)},
        orient="row",
    )
    kinds = {f: pl.Float64 if f.endswith("_s") else pl.Int64 for f in Step._fields}
    steps = pl.DataFrame(
        [(*run, *step) for run, r in runs for step in r.steps],
        schema={**key, **kinds},
        orient="row",
    )
    write_atomic(out / REQUESTS, requests.write_parquet)
    write_atomic(out / STEPS, steps.write_parquet)
