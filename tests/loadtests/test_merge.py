"""Rows of clients whose clocks differ, put together: against the same rows of one client with one clock."""

from __future__ import annotations

import random
from typing import Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from loadtests.clocks import Offset, Reading, RoundTrip
from loadtests.merge import TIMES, Part, merge, worst
from loadtests.records import SCHEMA, ClientHealth, RunInfo, WorkerInfo

AHEAD_S = (3.75, -120.5)  # of two workers' clocks
ZERO_S = 4096.0  # of the run, on the master's clock
STAGES = [("s0", 0.0, 60.0), ("s1", 64.0, 60.0)]
BEGINS_S = [ZERO_S + start_s for _, start_s, _ in STAGES]
AT = "2026-11-30T10:00:00.000Z"


def health(**kwargs: Any) -> ClientHealth:
    base = {"lag_p99_ms": 1.0, "lag_limit_ms": 5.0, "cpu_share": 0.1, "void": False, "void_reason": None}
    return ClientHealth.model_validate(base | kwargs)


def one_client() -> pl.DataFrame:
    """Two stages of requests by one client, in seconds since its start; some unsent, some without a token."""
    rng, rows = random.Random(7), []
    for stage, start_s, length_s in STAGES:
        for n in range(40):
            due_s = start_s + n * length_s / 40
            row = dict.fromkeys(SCHEMA) | {
                "request_id": f"{stage}-{n}",
                "stage": stage,
                "phase": "measured",
                "due_s": due_s,
            }
            row |= {
                "worker": n % 2,
                "seed": 1,
                "token_times_s": [],
                "max_tokens": 4,
                "status": "ok",
                "leave_after_s": 9.0,
            }
            if n % 7:
                sent_s = due_s + rng.random() / 1000
                row |= {"sent_s": sent_s, "first_byte_s": sent_s + 0.25, "end_s": sent_s + 0.5}
                if n % 5:
                    row |= {
                        "first_token_s": sent_s + 0.25,
                        "token_times_s": [sent_s + 0.25, sent_s + 0.375, sent_s + 0.5],
                    }
            rows.append(row)
    return pl.DataFrame(rows, schema=SCHEMA)


def info(zero_s: float, client: ClientHealth | None = None) -> RunInfo:
    stages = [
        {
            "name": name,
            "start_s": start_s,
            "end_s": start_s + length_s,
            "drained_s": start_s + length_s + 1,
            "requests": 20,
        }
        for name, start_s, length_s in STAGES
    ]
    return RunInfo(
        profile="t", workload_digest="d", base_url="u", model="m", started_at="2001-01-01T00:00:00.000Z",
        duration_s=125.0, clock_zero_s=zero_s, stages=stages, client=client or health(),
    )  # fmt: skip


def part(whole: pl.DataFrame, worker: int, offset: Offset, began_s: float) -> Part:
    """The worker's share of ``whole``. ``began_s``: when its first stage really began, on the master's clock."""
    mine = whole.filter(pl.col("worker") == worker)
    late_s = began_s - ZERO_S
    mine = mine.with_columns(
        *(pl.col(name) - late_s for name in TIMES), pl.col("token_times_s").list.eval(pl.element() - late_s)
    )
    return Part(worker, f"h{worker} process {worker}", offset, info(began_s + AHEAD_S[worker]), [mine[:3], mine[3:]])


def test_exact_offsets_give_exactly_the_records_of_one_client() -> None:
    whole = one_client()
    exact = [Offset(readings=[Reading(ZERO_S, ZERO_S + ahead_s, 0.0)]) for ahead_s in AHEAD_S]
    found = merge([part(whole, k, exact[k], ZERO_S) for k in (1, 0)], BEGINS_S, AT)
    assert found is not None
    records, run = found
    assert_frame_equal(records.sort("request_id"), whole.sort("request_id"), check_exact=False, rel_tol=0, abs_tol=1e-9)
    assert records["due_s"].is_sorted()
    assert (run.started_at, run.clock_zero_s, run.duration_s) == (AT, ZERO_S, 125.0)
    assert [(s["start_s"], s["end_s"], s["drained_s"], s["requests"]) for s in run.stages] == [
        (0.0, 60.0, 61.0, 40), (64.0, 124.0, 125.0, 40)
    ]  # fmt: skip
    assert [(w.worker, w.requests, w.clock_offset_s, w.clock_error_s) for w in run.workers] == [
        (1, 40, -120.5, 0.0), (0, 40, 3.75, 0.0)
    ]  # fmt: skip
    assert not run.client.void


def test_on_the_masters_own_clock_nothing_is_touched() -> None:
    whole = one_client()
    parts = [Part(k, "h", Offset(same=True), info(ZERO_S), [whole.filter(worker=k)]) for k in (0, 1)]
    found = merge(parts, BEGINS_S, AT)
    assert found is not None
    assert_frame_equal(found[0].sort("request_id"), whole.sort("request_id"), check_exact=True)


@pytest.mark.parametrize("seed", range(5))
def test_measured_offsets_are_off_by_no_more_than_is_said(seed: int) -> None:
    """Uneven ways, drift that turns: every time of every row lies within the stated error of the truth."""
    rng, whole = random.Random(seed), one_client()

    def ahead_s(worker: int, at_s: float) -> float:  # by up to 20 ppm, the other way in the second stage
        since_s = at_s - ZERO_S
        return AHEAD_S[worker] + 2e-5 * (since_s if since_s < 64 else 128 - since_s) * (1 + worker)

    def measured(worker: int) -> Offset:
        offset = Offset()
        for at_s in (ZERO_S - 1, ZERO_S + 30, ZERO_S + 63, ZERO_S + 94, ZERO_S + 126):
            for _ in range(8):
                there_s, back_s = rng.expovariate(1000), rng.expovariate(1000)
                received_s = at_s + there_s + ahead_s(worker, at_s + there_s)
                offset.add(RoundTrip(at_s, received_s, received_s, at_s + there_s + back_s))
            offset.settle()
        return offset

    parts = []
    for worker in (0, 1):
        offset = measured(worker)
        mine = whole.filter(worker=worker)
        own_zero_s = ZERO_S + ahead_s(worker, ZERO_S)

        def own(at_s: float, worker: int = worker, own_zero_s: float = own_zero_s) -> float:
            return at_s + ZERO_S + ahead_s(worker, at_s + ZERO_S) - own_zero_s

        for name in TIMES:
            mine = mine.with_columns(pl.col(name).map_elements(own, return_dtype=pl.Float64))
        tokens = pl.Series(
            "token_times_s", [[own(t) for t in x] for x in mine["token_times_s"]], SCHEMA["token_times_s"]
        )
        parts.append(Part(worker, "h", offset, info(own_zero_s), [mine.with_columns(tokens)]))
    found = merge(parts, BEGINS_S, AT)
    assert found is not None
    for w in found[1].workers:
        assert 0 < w.clock_error_s < 0.005
        mine, truth = (x.filter(worker=w.worker).sort("request_id") for x in (found[0], whole))
        for name in TIMES:
            assert ((mine[name] - truth[name]).abs() <= w.clock_error_s).all()
            assert mine[name].is_null().to_list() == truth[name].is_null().to_list()
        for got, true in zip(mine["token_times_s"], truth["token_times_s"], strict=True):
            assert ((got - true).abs() <= w.clock_error_s).all()


def worker_info(worker: int, client: ClientHealth | None, error_s: float = 0.0, lost: str | None = None) -> WorkerInfo:
    return WorkerInfo(
        worker=worker, name=f"h{worker}", requests=1, same_clock=False, clock_offset_s=3.7, clock_error_s=error_s,
        clock_moved_s=0.0, lost=lost, client=client,
    )  # fmt: skip


def test_the_health_of_a_run_is_the_worst_of_its_workers() -> None:
    good = health(lag_p99_ms=9.0, lag_limit_ms=90.0, loop_lag_p99_ms=4.0)
    late = health(lag_p99_ms=8.0, cpu_share=0.9, void=True, void_reason="late")
    found = worst([worker_info(0, good), worker_info(1, late)])
    assert (found.lag_p99_ms, found.lag_limit_ms, found.loop_lag_p99_ms, found.cpu_share) == (8.0, 5.0, 4.0, 0.9)
    assert (found.void, found.void_reason) == (True, "worker 1 (h1): late")
    assert not worst([worker_info(0, good)]).void


def test_a_clock_known_less_well_than_a_client_may_lag_voids_the_run_by_name() -> None:
    limit = health(lag_limit_ms=20.0)
    assert not worst([worker_info(0, limit), worker_info(1, limit, error_s=0.02)]).void
    found = worst([worker_info(0, limit), worker_info(1, limit, error_s=0.0205)])
    assert found.void
    assert "worker 1 (h1): its clock is known to 20.5 ms only, limit 20.0 ms" in (found.void_reason or "")


def test_without_any_request_the_least_limit_holds() -> None:
    idle = health(lag_p99_ms=None, lag_limit_ms=None)
    assert not worst([worker_info(0, idle, error_s=0.005)]).void
    assert worst([worker_info(0, idle, error_s=0.006)]).void


def test_a_lost_worker_is_named_and_leaves_nothing() -> None:
    whole = one_client()
    lost = Part(1, "h1", Offset(), None, [whole.filter(worker=1)], "it left")
    found = merge([Part(0, "h0", Offset(same=True), info(ZERO_S), [whole.filter(worker=0)]), lost], BEGINS_S, AT)
    assert found is not None
    assert set(found[0]["worker"]) == {0}
    assert found[1].client.void_reason == "worker 1 (h1) was lost: it left"
    assert merge([lost], BEGINS_S, AT) is None


def test_a_worker_that_does_not_say_when_it_began_is_refused() -> None:
    unknown = Part(0, "h0", Offset(same=True), info(ZERO_S).model_copy(update={"clock_zero_s": None}), [one_client()])
    with pytest.raises(ValueError, match=r"worker 0 \(h0\) did not say when its clock began"):
        merge([unknown], BEGINS_S, AT)
