from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from loadtests.output import RECORDS, read_run, write_run
from loadtests.records import ADDED, SCHEMA, ClientHealth, RunInfo

INFO = RunInfo(
    profile="p", workload_digest="d", base_url="http://h", model="m", started_at="2026-01-01T00:00:00Z", duration_s=1,
    stages=[],
    client=ClientHealth(lag_p99_ms=0, lag_limit_ms=5, cpu_share=0.1, void=False, void_reason=None),
)  # fmt: skip
ROW = {"request_id": "a-0", "stage": "a", "phase": "measured", "seed": 1, "due_s": 0.5, "token_times_s": [0.6, 0.7]}


def test_a_run_reads_as_it_was_written(tmp_path: Path) -> None:
    write_run(tmp_path, [ROW], INFO)
    records, info = read_run(tmp_path)
    assert info == INFO
    assert records.row(0, named=True) == {**dict.fromkeys(SCHEMA), **ROW}


def test_an_older_file_reads_with_nulls_for_what_it_lacks(tmp_path: Path) -> None:
    write_run(tmp_path, [ROW], INFO)
    pl.read_parquet(tmp_path / RECORDS).drop(ADDED).write_parquet(tmp_path / RECORDS)
    records, _ = read_run(tmp_path)
    assert records.schema == pl.Schema(SCHEMA)
    assert records.select(ADDED).null_count().row(0) == (1,) * len(ADDED)


def test_a_file_that_lacks_an_old_column_is_refused(tmp_path: Path) -> None:
    write_run(tmp_path, [ROW], INFO)
    pl.read_parquet(tmp_path / RECORDS).drop("due_s").write_parquet(tmp_path / RECORDS)
    with pytest.raises(ValueError, match=r"expected those of loadtests\.records"):
        read_run(tmp_path)
