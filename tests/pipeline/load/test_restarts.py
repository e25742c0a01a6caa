"""Another process in the place of the first is seen by its start time, its counters, or by nobody listening."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl
import pytest

from pipeline.load.metrics import Scrape
from pipeline.load.restarts import Restart, restarts, told

ZERO = 1000.0
STAGES = {"short_burst": (0.0, 10.0), "mixed_random": (12.0, 30.0)}


def _look(t: float, started: float | None = 7.0, total: float = 0.0) -> Scrape:
    values = {} if started is None else {"process_start_time_seconds": started}
    return Scrape(ZERO + t, values | {"vllm:num_requests_running": 1.0}, {"vllm:generation_tokens_total": total})


def _away(t: float) -> Scrape:
    return Scrape(ZERO + t, None, refused=True)


def _silent(t: float) -> Scrape:
    """It answers, and has no metrics; or it is slow."""
    return Scrape(ZERO + t, None)


def _found(scrapes: Sequence[Scrape], records: pl.DataFrame | None = None) -> list[Restart]:
    return restarts(scrapes, ZERO, STAGES, records)


def test_a_new_start_time_names_the_stage_and_both_times() -> None:
    (found,) = _found([_look(-1), _look(12), _look(13, started=1012.5), _look(14, started=1012.5)])
    assert (found.stage, found.at_s, found.back) == ("mixed_random", 12.0, True)
    assert found.figure == "process_start_time_seconds 7.00 -> 1012.50"
    assert found.words.startswith("the server began anew in the middle of mixed_random, 12.0 s into the run (")


def test_counters_that_go_down_say_so_without_a_start_time() -> None:
    looks = [_look(t, None, total) for t, total in ((1, 50), (2, 90), (3, 4), (4, 60))]
    (found,) = _found(looks)
    assert found.figure == "vllm:generation_tokens_total 90 -> 4"
    assert found.at_s == 2.0


def test_both_signs_of_one_restart_are_one_with_what_stood_between() -> None:
    looks = [_look(1, total=9), *map(_away, (2, 3, 4)), _look(5, started=1004.0, total=1)]
    (found,) = _found(looks)
    assert found.figure.count(";") == 2
    assert "nobody listened at 3 looks in a row" in found.figure


@pytest.mark.parametrize(
    "looks",
    [
        [_look(t, total=t) for t in range(9)],
        [_look(1), _silent(2), _silent(3), _silent(4), _silent(5), _look(6)],  # slow is not away
        [_look(1), _away(2), _away(3), _look(4)],  # two: a full backlog
        [*map(_away, range(5)), _look(6)],  # not yet up when the looks began
        [_silent(t) for t in range(9)],
        [],
    ],
)
def test_a_steady_server_is_not_accused(looks: list[Scrape]) -> None:
    assert _found(looks) == []


def test_a_server_without_metrics_is_seen_to_be_away_and_to_come_back_or_not() -> None:
    (back,) = _found([_silent(1), *map(_away, (2, 3, 4)), _silent(5)])
    assert (back.back, back.figure) == (True, "nobody listened at 3 looks in a row")
    (gone,) = _found([_silent(1), *map(_away, (2, 3, 4))])
    assert not gone.back
    assert "went away and did not come back" in gone.words


def _records(rows: list[tuple[float, str, str | None]]) -> pl.DataFrame:
    schema: dict[str, Any] = {"sent_s": pl.Float64, "status": pl.String, "reason": pl.String}
    return pl.DataFrame(rows, schema=schema, orient="row")


REFUSED = "ConnectionRefusedError: [Errno 111] Connection refused"


def test_requests_that_nobody_took_in_a_row() -> None:
    rows = [(1.0, "ok", None), *((2.0 + i / 10, "error", REFUSED) for i in range(4)), (3.0, "ok", None)]
    (found,) = _found([], _records(rows))
    assert (found.at_s, found.stage, found.back) == (2.0, "short_burst", True)
    assert found.figure == "4 requests in a row found nobody listening"
    (gone,) = _found([], _records(rows[:-1]))
    assert not gone.back
    assert _found([], _records([rows[0], *rows[1:3], rows[-1]])) == []
    other = [(t, s, s and "WireError: the stream ended before the answer did") for t, s, _ in rows]
    assert _found([], _records(other)) == []


def test_requests_and_looks_that_saw_the_same_are_one() -> None:
    rows = [(1.0, "ok", None), *((2.0 + i / 10, "error", REFUSED) for i in range(4)), (3.0, "ok", None)]
    (found,) = _found([_look(1.5), _look(3.2, started=1002.9)], _records(rows))
    assert found.figure.endswith("; 4 requests in a row found nobody listening")
    assert len(_found([_look(20), _look(21, started=1020.0)], _records(rows))) == 2


def test_the_block_of_load_json_says_why_it_has_no_figures() -> None:
    none = _records([])
    block = told([_look(1), _look(9)], ZERO, STAGES, none)
    assert (block["family"], block["reason"], block["restarts"]) == ("vllm", None, [])
    assert block["stages"]["short_burst"]["running_mean"] == 1
    assert told([_silent(1)], ZERO, STAGES, none)["reason"] == "the server exports no /metrics"
    other = told([Scrape(ZERO, {"http_requests_total": 1.0})], ZERO, STAGES, none)
    assert other["reason"] == "the server's /metrics has no name of seatrial, vllm, sglang, llama.cpp"
    assert other["stages"] == {}
