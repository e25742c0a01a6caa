"""The diagnosis: a fixed order, the figures of the stage that fails, and no suspect where no rule fails."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.pipeline.gate.factory import Row, items, records, write_items, write_load
from tests.pipeline.gate.helpers import damage, items_of_int8, judged, load_of_int8, slow

SAMPLES = "results/int8/load/samples.parquet"


def _row(step: int) -> dict[str, Any]:
    found: dict[str, Any] = judged()["diagnosis"][step - 1]
    return found


def _samples(root: Path, **columns: Any) -> None:
    path = root / SAMPLES
    pl.read_parquet(path).with_columns(**columns).write_parquet(path)


def _in_stage_one(value: int, otherwise: int) -> pl.Expr:
    """The first stage of the made-up run lasts from 0 to 30 s."""
    return pl.when(pl.col("t_s") < 30).then(value).otherwise(otherwise).cast(pl.Int64)


def test_nothing_wrong_is_said_with_figures(run: Path) -> None:
    rows = judged()["diagnosis"]
    assert [r["step"] for r in rows] == [1, 2, 3, 4]
    assert [r["symptom"] for r in rows] == ["P99 time to first token", "inter-token latency", "throughput", "quality"]
    assert [r["suspect"] for r in rows] == ["none"] * 4
    assert [r["finding"] for r in rows[:2]] == ["within limits"] * 2
    assert "KV blocks in use peaked at 10%, 0 preemptions" in rows[0]["evidence"]
    assert "times that of bf16" in rows[1]["evidence"]
    assert "output and" in rows[2]["evidence"]
    assert "accuracy 50.0% against 50.0% of bf16" in rows[3]["evidence"]


def test_a_full_pool_is_told_from_a_queue_and_from_slow_prefill(run: Path) -> None:
    load_of_int8(change=slow(30, "ttft"))(run)
    assert _row(1)["suspect"].startswith("prefill itself")
    _samples(run, requests_waiting=pl.lit(5, pl.Int64))
    assert _row(1)["suspect"].startswith("prefill scheduling")
    _samples(run, kv_blocks_used=pl.lit(399, pl.Int64))
    row = _row(1)
    assert row["suspect"].startswith("memory")
    assert "peaked at 100%" in row["evidence"]
    _samples(run, kv_blocks_used=pl.lit(40, pl.Int64), preemptions_total=pl.int_range(pl.len(), dtype=pl.Int64))
    assert _row(1)["suspect"].startswith("memory")
    damage(SAMPLES)(run)
    assert _row(1)["suspect"].startswith("unknown")


def test_the_wait_that_the_engine_logged_tells_a_queue_from_slow_prefill(run: Path) -> None:
    """Samples a second apart may miss a queue that the engine's own log has measured."""

    def waits(share: float) -> Callable[[Row], None]:
        def change(row: Row) -> None:
            slow(30, "ttft")(row)
            row["queued_s"] = share * (row["token_times_s"][0] - row["due_s"])

        return change

    load_of_int8(change=waits(0.8))(run)
    row = _row(1)
    assert row["suspect"].startswith("prefill scheduling")
    assert "waiting in the queue is 80% of it" in row["evidence"]
    load_of_int8(change=waits(0.05))(run)
    _samples(run, requests_waiting=pl.lit(5, pl.Int64))
    assert _row(1)["suspect"].startswith("prefill itself")
    load_of_int8(change=waits(0.8))(run)
    damage(SAMPLES)(run)
    assert _row(1)["suspect"].startswith("prefill scheduling")


def test_the_pressure_is_that_of_the_stage_that_fails(run: Path) -> None:
    """Short bursts queue, but it is the long contexts that are late: there the pool is calm and nothing waits."""

    def late(row: Row) -> None:
        if row["stage"] == "long_context":
            slow(30, "ttft")(row)

    load_of_int8(change=late)(run)
    _samples(run, requests_waiting=_in_stage_one(9, 0), kv_blocks_used=_in_stage_one(399, 40))
    row = _row(1)
    assert row["evidence"].startswith("worst in long_context")
    assert row["suspect"].startswith("prefill itself")


def test_doubt_is_not_called_within_limits(run: Path) -> None:
    load_of_int8(count=30)(run)
    row = _row(1)
    assert row["finding"].startswith("not decided: P9"), row
    assert row["suspect"].startswith("none proven")
    items_of_int8(flips=(26, 10))(run)
    row = _row(4)
    assert row["finding"] == "not decided: accuracy against bf16"
    assert row["suspect"].startswith("none proven")


def _stalls(row: Row) -> None:
    """Two of the nine gaps of every answer are long; the median is as it was."""
    times = row["token_times_s"]
    row["token_times_s"] = [t + (3.0 if i >= 4 else 0) + (3.0 if i >= 8 else 0) for i, t in enumerate(times)]
    row["end_s"] = row["token_times_s"][-1]


def _half_fail(row: Row) -> None:
    if row["seed"] % 2:
        row |= {"status": "error", "reason": "reset", "first_token_s": None, "token_times_s": [], "end_s": None}


@pytest.mark.parametrize(
    ("change", "reference_too", "suspect"),
    [
        (slow(40, "itl"), False, "quantised kernels"),
        (slow(40, "itl"), True, "decode bandwidth"),
        (_stalls, True, "stalls between tokens"),
        (_half_fail, False, "failing requests: 50% of those in"),
    ],
)
def test_slow_tokens_are_told_apart(
    run: Path, change: Callable[[Row], None], reference_too: bool, suspect: str
) -> None:
    write_load(run, "int8", records(1, change=change))
    if reference_too:
        write_load(run, "bf16", records(0, change=change))
    row = _row(2)
    assert row["finding"].startswith("over a limit: P95 inter-token latency"), row
    assert row["suspect"].startswith(suspect), row


def test_a_late_first_token_that_never_came_is_a_failure_not_slow_prefill(run: Path) -> None:
    load_of_int8(change=_half_fail)(run)
    row = _row(1)
    assert row["suspect"].startswith("failing requests: 50% of those in")
    assert "no P95 (too few requests, or too many of them failed)" in row["evidence"]


def test_a_full_batch_bounds_throughput(run: Path) -> None:
    _samples(run, requests_waiting=pl.lit(4, pl.Int64))
    row = _row(3)
    assert (row["finding"], row["suspect"][:11]) == ("bounded by the batch", "concurrency")


def test_a_loss_in_long_documents_is_told_from_a_loss_everywhere(run: Path) -> None:
    def forgets(row: Row) -> None:
        if row["scenario"] == "documents" and row["origin"] == "written":
            row["correct"], row["score"] = False, 0.0

    write_items(run, "int8", items("int8", spoil=forgets))
    row = _row(4)
    assert row["suspect"].startswith("context handling")
    assert "worst scenario documents -47.5 points" in row["evidence"]
    items_of_int8(flips=(60, 0))(run)
    assert _row(4)["suspect"].startswith("the tier: int8")
