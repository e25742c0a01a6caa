"""How long each request waited in the engine: the client's records joined with the engine's own request log.

Only the server knows when a request took its first step. The bundled engine writes it into its request log under the id
that its answer carries, so the join needs no clock: ``records.server_id`` is ``chatcmpl-ID`` where the log has ``ID``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl

from loadtests.output import RECORDS, read_run
from pipeline.files import write_json
from pipeline.load.summary import queue_figures

NO_LOG = "not measurable here: the server keeps no request log that its answers could be joined with"
NO_MATCH = "not measurable here: the engine's request log has none of these answers"
_PREFIX = "^[a-z]+-"  # of the answer's id, before the id of the log


def log_ids(records: pl.DataFrame) -> pl.DataFrame:
    """The records with ``server_id`` as the engine's log has it."""
    return records.with_columns(pl.col("server_id").str.replace(_PREFIX, ""))


def with_queue_times(records: pl.DataFrame, requests: pl.DataFrame) -> pl.DataFrame:
    """The records, in their order, with ``queued_s`` from the log's row of each answer; null where it has none.

    Args:
        requests: ``requests.parquet``: one row a choice, the client asks for one.
    """
    told = requests.filter(pl.col("queued_s").is_not_null()).group_by("id").agg(pl.col("queued_s").max())
    told = told.rename({"id": "_log_id", "queued_s": "_queued_s"})
    joined = records.with_columns(pl.col("server_id").str.replace(_PREFIX, "").alias("_log_id")).join(
        told, on="_log_id", how="left", maintain_order="left"
    )
    return joined.with_columns(pl.col("_queued_s").alias("queued_s")).select(records.columns)


def add_queue_times(out: Path) -> dict[str, Any]:
    """Fills ``queued_s`` in ``records.parquet`` and ``queue_ms`` in ``load.json`` of a finished run and returns it.

    Where the engine left no request log nothing is changed but the reason.
    """
    records, _ = read_run(out)
    log, why = out / "requests.parquet", NO_LOG
    if log.is_file():
        records, why = with_queue_times(records, pl.read_parquet(log)), NO_MATCH
        partial = out / f".{RECORDS}.partial"
        records.write_parquet(partial)
        partial.replace(out / RECORDS)
    load: dict[str, Any] = json.loads((out / "load.json").read_text(encoding="utf-8"))
    for names, figures in (*(([n], f) for n, f in load["stages"].items()), (list(load["stages"]), load["overall"])):
        for known in (figures["intervals"], figures["reasons"]):
            for key in [k for k in known if k.startswith("queue_ms.")]:
                del known[key]
        found = queue_figures(records.filter(pl.col("stage").is_in(names)), why)
        figures["queue_ms"] = found["queue_ms"]
        figures["intervals"] |= found["intervals"]
        figures["reasons"] |= found["reasons"]
    write_json(out / "load.json", load)
    return load
