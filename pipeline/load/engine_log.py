"""The engine's own logs beside the records of a load test: ``steps.parquet`` and ``requests.parquet``.

The server writes segments into a folder (``--log-dir``) and the last of them when it ends, so they are brought together
after it has. Their moments are put on the run's clock, that of ``records.parquet``.
"""

from __future__ import annotations

import shutil
from datetime import datetime
from pathlib import Path

import polars as pl

from loadtests.output import read_run

KINDS = ("steps", "requests")
MOMENTS = ("start_s", "received_s", "first_token_s", "ended_s")


def fresh(folder: Path) -> Path:
    """An empty place for a server's logs."""
    shutil.rmtree(folder, ignore_errors=True)
    return folder.absolute()


def keep(folder: Path, out: Path) -> None:
    """Brings the segments in ``folder`` together in ``out``, which holds the run's records; nothing where a server
    wrote none.
    """
    _, run = read_run(out)
    zero = datetime.fromisoformat(run.started_at).timestamp()
    for kind in KINDS:
        parts = []
        for path in sorted(folder.glob(f"{kind}-*.parquet")):
            origin = datetime.fromisoformat(pl.read_parquet_metadata(path)["origin_at"]).timestamp()
            rows = pl.read_parquet(path)
            moments = [c for c in MOMENTS if c in rows.columns]
            parts.append(rows.with_columns([pl.col(c) + (origin - zero) for c in moments]))
        if parts:
            partial = out / f".{kind}.parquet.partial"
            pl.concat(parts).write_parquet(partial)
            partial.replace(out / f"{kind}.parquet")
    shutil.rmtree(folder, ignore_errors=True)
