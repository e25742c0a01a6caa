"""The logs on their own: the ring of steps, and segments in parquet."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from engine.protocol import StepRow
from engine.server import logs
from engine.server.logs import Clock, LogDir, StepRing, rfc3339
from engine.server.records import ChoiceRecord, RequestRecord, RequestRow


def step(number: int) -> StepRow:
    values = {f: number + i for i, f in enumerate(StepRow._fields)}
    return StepRow(**{**values, "step": number, "start_s": number / 7, "duration_s": 0.25})  # type: ignore[arg-type]


def opened(path: Path, **settings: Any) -> tuple[LogDir, Counter[str]]:
    lost = Counter[str]()
    settings = {"max_bytes": 2**30, "segment_rows": 10, **settings}
    kinds: dict[str, type[tuple[Any, ...]]] = {"steps": StepRow, "requests": RequestRow}
    made = LogDir(path, kinds, lost=lambda kind, n: lost.update({kind: n}), **settings)
    made.set_origin(datetime(2026, 11, 29, 12, tzinfo=UTC))
    return made, lost


async def until(what: Callable[[], bool]) -> None:
    async with asyncio.timeout(240):
        while not what():
            await asyncio.sleep(0.01)


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_POLL_S", 0.01)


def test_the_ring_keeps_the_last_rows_as_they_were() -> None:
    ring = StepRing(capacity=5)
    assert ring.since(0) == []
    for i in range(1, 9):
        ring.add(step(i))
    assert ring.since(0) == [step(i)._asdict() for i in range(4, 9)]
    assert ring.since(6) == [step(i)._asdict() for i in (7, 8)]
    assert type(ring.since(7)[0]["running"]) is int


@pytest.mark.usefixtures("_quick")
async def test_segments_by_rows_by_age_and_at_the_end(tmp_path: Path) -> None:
    made, lost = opened(tmp_path / "new" / "logs", segment_age_s=3600)
    task = asyncio.create_task(made.run())
    for i in range(12):
        made.add("steps", step(i))
    first = made.path / "steps-00000.parquet"
    await until(first.exists)
    made.add("steps", step(12))
    await asyncio.sleep(0.1)
    assert [p.name for p in made.path.iterdir()] == [first.name]  # one row is neither many nor old
    task.cancel()
    await made.close()
    assert sorted(p.name for p in made.path.iterdir()) == ["steps-00000.parquet", "steps-00001.parquet"]
    found = pl.read_parquet(made.path / "steps-*.parquet")
    assert found.rows() == [step(i) for i in range(13)]
    assert found.schema["start_s"] == pl.Float64
    assert found.schema["running"] == pl.Int64
    about = pl.read_parquet_metadata(first)
    assert (about["schema_version"], about["origin_at"]) == ("1", "2026-11-29T12:00:00.000000Z")

    again, _ = opened(made.path, segment_age_s=0.05)
    task = asyncio.create_task(again.run())
    again.add("steps", step(13))
    await until((made.path / "steps-00002.parquet").exists)  # by age, beside those of the run before
    task.cancel()
    await again.close()
    assert not lost


async def test_the_oldest_segments_go_when_there_is_too_much(tmp_path: Path) -> None:
    (tmp_path / "other.parquet").write_bytes(b"x" * 10_000)  # not ours
    for i in range(4):
        made, _ = opened(tmp_path, max_bytes=1)
        made.add("steps", step(i))
        await made.close()
    names = sorted(p.name for p in tmp_path.iterdir())
    assert names == ["other.parquet", "steps-00003.parquet"]


@pytest.mark.usefixtures("_quick")
async def test_a_disk_that_fails_is_said_once_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made, lost = opened(tmp_path / "gone", segment_rows=1)
    shutil.rmtree(made.path)
    task = asyncio.create_task(made.run())
    with caplog.at_level(logging.ERROR):
        for i in range(3):
            made.add("steps", step(i))
            await until(lambda i=i: lost["steps"] == i + 1)  # type: ignore[misc]
        assert len(caplog.records) == 1
        assert "rows of the log are lost" in caplog.text
        made.path.mkdir()
        made.add("steps", step(3))
        await until((made.path / "steps-00000.parquet").exists)
        await until(lambda: made._buffers["steps"].number == 1)  # done with it
        shutil.rmtree(made.path)
        made.add("steps", step(4))
        await until(lambda: lost["steps"] == 4)
        assert len(caplog.records) == 2
    task.cancel()
    await made.close()


async def test_rows_that_no_disk_takes_do_not_pile_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "MAX_BUFFERED_ROWS", 3)
    made, lost = opened(tmp_path)
    for i in range(5):
        made.add("steps", step(i))
    assert lost["steps"] == 2
    await made.close()
    assert pl.read_parquet(tmp_path / "steps-00000.parquet").height == 3


def test_a_record_waits_for_the_last_word_of_the_core() -> None:
    done: list[RequestRecord] = []
    record = RequestRecord("/v1/completions", done.append)
    record.begin("r", {"r-0": ChoiceRecord(0, 7), "r-1": ChoiceRecord(1, 7)}, 2, -3)
    record.owed = {"r-0", "r-1"}
    choice = record.choices["r-0"]
    gaps = [choice.token(record.received_s + t) for t in (1.0, 1.5, 3.5)]
    assert gaps == [None, 0.5, 2.0]
    record.status = 200
    record.last_word("r-1", {"queued_s": 0.5, "prefill_s": None, "num_preemptions": 2})
    record.answered()
    assert not done
    record.last_word("r-0", None)
    assert done == [record]
    origin = datetime(2026, 1, 1, tzinfo=UTC)
    one, two = record.rows(Clock(record.received_s - 10, origin))
    assert (one.received_s, one.first_token_s, one.received_at) == (10.0, 11.0, origin + timedelta(seconds=10))
    assert (one.ttft_s, one.gap_max_s, one.gap_mean_s, one.output_tokens) == (1.0, 2.0, 1.25, 3)
    assert (two.choice, two.queued_s, two.prefill_s, two.num_preemptions) == (1, 0.5, None, 2)
    assert (two.prompt_tokens, two.ttft_s, two.output_tokens, two.n, two.priority) == (7, None, 0, 2, -3)


def test_a_refused_request_has_one_row() -> None:
    record = RequestRecord("/v1/completions", lambda _: None)
    record.begin("r", {f"r-{i}": ChoiceRecord(i, 5 + i // 2) for i in range(4)}, 2, 0)
    record.status, record.refusal = 429, "queue_full"
    (row,) = record.rows(Clock.since(record.received_s))
    assert (row.choice, row.prompt_tokens, row.http_status, row.refusal) == (None, 11, 429, "queue_full")
    assert row.finish_reason is None


def test_moments_are_rfc_3339() -> None:
    assert rfc3339(datetime(2026, 11, 29, 1, 2, 3, tzinfo=UTC)) == "2026-11-29T01:02:03.000000Z"


def test_a_full_disk_is_said_at_the_start_and_leaves_no_probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(frame: pl.DataFrame, path: Path) -> None:
        path.touch()
        raise pl.exceptions.ComputeError("No space left on device")

    monkeypatch.setattr(pl.DataFrame, "write_parquet", full)
    with pytest.raises(OSError, match="No space left on device"):
        LogDir(tmp_path, {}, max_bytes=1, lost=lambda kind, rows: None)
    assert not list(tmp_path.iterdir())
