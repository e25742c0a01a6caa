"""The client's records joined with the engine's request log, on a made-up log whose waits are known."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from loadtests.output import read_run, write_run
from loadtests.records import ClientHealth, RunInfo
from pipeline.files import write_json
from pipeline.load.figures import FIGURES
from pipeline.load.printed import lines
from pipeline.load.queueing import NO_LOG, NO_MATCH, add_queue_times, with_queue_times
from tests.pipeline.load.test_summary import failed, frame, row

N = 120


def _answered(i: int, **changes: Any) -> dict[str, Any]:
    return row(i, due=float(i), server_id=f"chatcmpl-{i:032x}", **changes)


def _log(waits_s: list[float | None]) -> pl.DataFrame:
    ids = [f"{i:032x}" for i in range(len(waits_s))]
    return pl.DataFrame({"id": ids, "queued_s": waits_s}, schema={"id": pl.String, "queued_s": pl.Float64})


def _run(out: Path, rows: list[dict[str, Any]], log: pl.DataFrame | None) -> None:
    """A finished run of one stage, as the stage leaves it before the join."""
    health = ClientHealth(lag_p99_ms=1, lag_limit_ms=5, cpu_share=0.1, void=False, void_reason=None)
    at = datetime(2026, 1, 5, tzinfo=UTC).isoformat()
    info = RunInfo(
        profile="t", workload_digest="d", base_url="u", model="m", started_at=at, duration_s=N, stages=[], client=health
    )
    write_run(out, rows, info)
    from pipeline.load.summary import summarise

    figures = summarise(frame(rows), {"s": (0.0, float(N))}, fixed_output=True, goodput=None)
    definitions = {k: {"name": f.name, "unit": f.unit, "formula": f.formula} for k, f in FIGURES.items()}
    quiet: dict[str, Any] = {"findings": [], "truncation": {"found": False, "words": "none"}}
    value = {"stages": {"s": figures}, "overall": figures, "definitions": definitions} | quiet
    write_json(out / "load.json", value)
    if log is not None:
        log.write_parquet(out / "requests.parquet")


def test_each_record_gets_the_wait_of_its_own_answer_in_its_own_row() -> None:
    rows = [_answered(2), _answered(0), failed(7), _answered(1), _answered(9)]
    found = with_queue_times(frame(rows), _log([0.25, None, 0.75]))
    assert found.columns == frame(rows).columns
    assert found["request_id"].to_list() == ["r2", "r0", "r7", "r1", "r9"]
    assert found["queued_s"].to_list() == [0.75, 0.25, None, None, None]


def test_queue_time_becomes_a_figure_with_percentiles_and_intervals(tmp_path: Path) -> None:
    waits = [(i * 37 % N) / 1000 for i in range(N)]  # 0, 1, ... ms, shuffled
    _run(tmp_path, [_answered(i) for i in range(N)], _log(list(waits)))
    load = add_queue_times(tmp_path)
    assert load == json.loads((tmp_path / "load.json").read_text())
    for figures in (load["stages"]["s"], load["overall"]):
        assert figures["queue_ms"] == pytest.approx({"p50": 59, "p95": 113, "p99": 118})
        known = figures["intervals"]["queue_ms.p50"]
        assert known["n"] == N
        assert known["interval"][0] < 59 < known["interval"][1]
        assert not [k for k in figures["reasons"] if k.startswith("queue_ms")]
    assert read_run(tmp_path)[0]["queued_s"].to_list() == pytest.approx(waits)
    assert any(line.startswith("s: Queue time P50 59 ms") for line in lines(load))
    assert add_queue_times(tmp_path) == load  # doing it again changes nothing
    assert not list(tmp_path.glob(".*"))


def test_warm_up_does_not_count_and_one_that_gave_up_waiting_does(tmp_path: Path) -> None:
    rows = [_answered(0, phase="warmup"), *(_answered(i) for i in range(1, 20))]
    rows.append(_answered(20, status="timeout", reason="no end", first_token_s=None, token_times_s=[]))
    _run(tmp_path, rows, _log([9.0] + [0.01] * 19 + [30.0]))
    assert add_queue_times(tmp_path)["stages"]["s"]["queue_ms"]["p95"] == pytest.approx(10)
    assert read_run(tmp_path)[0]["queued_s"].max() == 30
    assert add_queue_times(tmp_path)["stages"]["s"]["intervals"]["queue_ms.p50"]["n"] == 20


@pytest.mark.parametrize(("log", "reason"), [(None, NO_LOG), (_log([]), NO_MATCH)])
def test_without_a_log_it_is_not_measurable_and_says_so(tmp_path: Path, log: pl.DataFrame | None, reason: str) -> None:
    _run(tmp_path, [_answered(i) for i in range(30)], log)
    before = (tmp_path / "records.parquet").read_bytes()
    figures = add_queue_times(tmp_path)["stages"]["s"]
    assert figures["queue_ms"] == {"p50": None, "p95": None, "p99": None}
    assert {figures["reasons"][f"queue_ms.{q}"] for q in ("p50", "p95", "p99")} == {reason}
    assert reason.startswith("not measurable here: ")
    if log is None:
        assert (tmp_path / "records.parquet").read_bytes() == before
