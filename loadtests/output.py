"""What a run leaves on disk: ``records.parquet`` and ``run.json``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl

from loadtests.records import SCHEMA, RunInfo, complete

RECORDS = "records.parquet"
RUN = "run.json"


def write_run(out: Path, rows: list[dict[str, Any]], info: RunInfo) -> None:
    """Writes both files below ``out``; ``run.json`` last, so that its presence means a complete pair."""
    write_records(out, pl.DataFrame(rows, schema=SCHEMA), info)


def write_records(out: Path, records: pl.DataFrame, info: RunInfo) -> None:
    """As :func:`write_run`, for records that are a table already."""
    out.mkdir(parents=True, exist_ok=True)
    records.write_parquet(out / RECORDS)
    (out / RUN).write_text(info.model_dump_json(indent=2) + "\n", encoding="utf-8")


def read_run(directory: Path) -> tuple[pl.DataFrame, RunInfo]:
    """Both files of a run.

    Raises:
        FileNotFoundError: one of them is missing.
        ValueError: ``run.json`` or the columns are not of this schema.
    """
    info = RunInfo.model_validate_json((directory / RUN).read_bytes())
    records = complete(pl.read_parquet(directory / RECORDS))
    if records.schema != pl.Schema(SCHEMA):
        raise ValueError(f"{directory / RECORDS} has columns {records.schema}, expected those of loadtests.records")
    return records, info
