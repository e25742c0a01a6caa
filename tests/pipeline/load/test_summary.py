from __future__ import annotations

import json
import math
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.records import SCHEMA
from pipeline.load.samples import Latencies, measured, stage_latencies
from pipeline.load.summary import quantile, series, summarise


def row(
    i: int, *, due: float, ttft: float = 0.1, gaps: tuple[float, ...] = (0.02, 0.03), **kwargs: Any
) -> dict[str, Any]:
    times = [due + ttft]
    for g in gaps:
        times.append(times[-1] + g)
    base = {
        "request_id": f"r{i}", "stage": "s", "phase": "measured", "seed": 1, "due_s": due, "sent_s": due,
        "first_byte_s": due + ttft, "first_token_s": times[0], "end_s": times[-1], "token_times_s": times,
        "status": "ok", "reason": None, "http_status": 200, "finish_reason": "length", "prompt_tokens": 10,
        "output_tokens": len(times), "cached_tokens": 4, "max_tokens": len(times), "concurrency": 1,
    }  # fmt: skip
    return base | kwargs


def failed(i: int, status: str = "error", **kwargs: Any) -> dict[str, Any]:
    gone = {"first_token_s": None, "token_times_s": [], "prompt_tokens": None, "output_tokens": None}
    return row(i, due=float(i), **{**gone, "cached_tokens": None, "status": status, "reason": "x", **kwargs})


def frame(rows: list[dict[str, Any]]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=SCHEMA)


def figures(rows: list[dict[str, Any]], **kwargs: Any) -> dict[str, Any]:
    asked = {"fixed_output": True, "goodput": None} | kwargs
    return summarise(frame(rows), {"s": (0.0, 100.0)}, **asked)


def test_latencies_are_from_due_and_every_gap_is_pooled() -> None:
    found = stage_latencies(frame([row(0, due=1.0, sent_s=1.5), row(1, due=2.0, gaps=(0.5,))]), "s")
    assert found.ttft_ms == pytest.approx([100, 100])
    assert found.itl_ms == pytest.approx([20, 30, 500])
    assert found.e2e_ms == pytest.approx([150, 600])


def test_failures_are_infinite_in_every_latency() -> None:
    rows = [row(0, due=0.0), failed(1), failed(2, "refused"), row(3, due=3.0, status="censored", reason="x")]
    found = stage_latencies(frame(rows), "s")
    assert [math.isinf(v) for v in found.ttft_ms] == [False, True, True, True]
    assert sum(map(math.isinf, found.e2e_ms)) == 3
    assert sum(map(math.isinf, found.itl_ms)) == 3
    assert len(found.itl_ms) == 2 + 1 + 1 + 3  # the gaps seen before the cut stay


def test_warm_up_and_other_stages_are_left_out() -> None:
    rows = [row(0, due=0.0, phase="warmup", ttft=9.0), row(1, due=1.0), row(2, due=1.0, stage="t")]
    assert measured(frame(rows), "s")["request_id"].to_list() == ["r1"]
    assert stage_latencies(frame(rows), "s").ttft_ms == pytest.approx([100])


def test_a_percentile_of_too_few_samples_is_refused() -> None:
    assert quantile([1.0] * 5, 0.95) == (None, "5 samples; a P95 needs at least 20")
    assert quantile([1.0] * 20, 0.95) == (1.0, None)
    assert quantile([1.0] * 99, 0.99)[0] is None


def test_a_percentile_on_a_failure_is_absent_with_the_reason() -> None:
    value, why = quantile([1.0] * 18 + [math.inf] * 2, 0.95)
    assert value is None
    assert why == "2 of 20 failed, so the P95 is infinite"
    assert quantile([1.0] * 19 + [math.inf], 0.95) == (1.0, None)


def test_all_failed_gives_no_latency_and_certainly_not_zero() -> None:
    found = figures([failed(i) for i in range(30)])
    assert (found["requests"], found["ok"], found["error"]) == (30, 0, 30)
    for metric in ("ttft_ms", "itl_ms", "tpot_ms", "e2e_ms"):
        assert found[metric] == {"p50": None, "p95": None, "p99": None}
        assert found["reasons"][f"{metric}.p50"] == "all 30 failed"
    assert found["output_tokens_mean"] is None
    assert found["prefix_hit_share"] is None


def test_no_requests_at_all() -> None:
    found = figures([])
    assert found["requests"] == 0
    assert found["ttft_ms"]["p50"] is None
    assert found["reasons"]["ttft_ms.p50"].startswith("0 samples")


def test_one_failure_in_a_hundred_moves_the_tail() -> None:
    good = [row(i, due=float(i), ttft=0.001 * (i + 1)) for i in range(98)]
    clean = figures([*good, row(98, due=98.0, ttft=0.099), row(99, due=99.0, ttft=0.100)])
    assert clean["ttft_ms"]["p99"] == pytest.approx(99)
    assert clean["ttft_ms"]["p95"] == pytest.approx(95)
    broken = figures([*good, failed(98), failed(99, "timeout")])
    assert broken["ttft_ms"]["p95"] == pytest.approx(95)
    assert broken["ttft_ms"]["p99"] is None
    assert (broken["error"], broken["timeout"]) == (1, 1)


def test_rates_count_what_arrived_inside_the_window() -> None:
    rows = [
        row(0, due=-1.0, ttft=0.5, gaps=(1.0, 1.0), phase="warmup"),  # tokens at -0.5, 0.5, 1.5
        row(1, due=9.0, ttft=0.5, gaps=(1.0,)),  # tokens at 9.5, 10.5
    ]
    found = summarise(frame(rows), {"s": (0.0, 10.0)}, fixed_output=True, goodput=None)
    assert found["output_tokens_per_s"] == pytest.approx(0.3)
    assert found["prompt_tokens_per_s"] == pytest.approx(1.0)  # the second one's ten
    assert found["requests_per_s"] == pytest.approx(0.1)  # the first ended inside


def test_shares_and_means() -> None:
    rows = [row(i, due=float(i), finish_reason="stop" if i % 4 else "length", max_tokens=8) for i in range(40)]
    found = figures(rows, fixed_output=False)
    assert found["cut_off_share"] == 0.25
    assert (found["output_tokens_mean"], found["asked_tokens_mean"]) == (3.0, 8.0)
    assert found["prefix_hit_share"] == pytest.approx(0.4)
    assert "goodput_share" in found["reasons"]
    fixed = figures(rows)
    assert fixed["cut_off_share"] is None
    assert "not applicable" in fixed["reasons"]["cut_off_share"]


def test_a_server_that_reports_no_cache_is_not_a_cold_one() -> None:
    found = figures([row(i, due=float(i), cached_tokens=None) for i in range(30)])
    assert found["prefix_hit_share"] is None
    assert "no cached_tokens" in found["reasons"]["prefix_hit_share"]


def test_goodput_has_all_requests_in_the_denominator() -> None:
    rows = [row(0, due=0.0), row(1, due=1.0, ttft=3.0), row(2, due=2.0, gaps=(0.9, 0.9)), failed(3)]
    assert figures(rows, goodput={"ttft_ms": 1000, "tpot_ms": 100})["goodput_share"] == 0.25


def test_figures_are_json() -> None:
    json.dumps(figures([row(0, due=0.0), failed(1)]), allow_nan=False)


@given(
    st.lists(
        st.tuples(st.floats(0, 30), st.floats(0.001, 5), st.lists(st.floats(0, 1), max_size=5), st.booleans()),
        min_size=1,
        max_size=60,
    ),
    st.sampled_from([None, 1.0, 2.5]),
)
def test_series_adds_up(requests: list[tuple[float, float, list[float], bool]], window_s: float | None) -> None:
    rows = [
        row(i, due=due, ttft=ttft, gaps=tuple(gaps), status="ok" if ok else "error")
        for i, (due, ttft, gaps, ok) in enumerate(requests)
    ]
    found = series(frame(rows), "s", window_s)
    steps = found["t_s"].diff().drop_nulls()
    size = window_s or (float(steps[0]) if steps.len() else 1.0)
    assert found["requests"].sum() == len(rows)
    assert found["failed"].sum() == sum(not r[3] for r in requests)
    if window_s or steps.len():
        assert float((found["output_tokens_per_s"] * size).sum()) == pytest.approx(sum(1 + len(r[2]) for r in requests))
        busy = sum(r["end_s"] - r["sent_s"] for r in rows)
        assert float((found["running"] * size).sum()) == pytest.approx(busy, rel=1e-6, abs=1e-6)


def test_series_shows_a_stall_where_it_was() -> None:
    rows = [row(i, due=i * 0.1, ttft=2.0 if 100 <= i < 130 else 0.1) for i in range(300)]
    found = series(frame(rows), "s", 3.0)
    high = found.filter(pl.col("ttft_p95_ms") > 1500)["t_s"].to_list()
    assert high == pytest.approx([10.5, 13.5])
    assert found.columns[:2] == ["t_s", "phase"]


def test_series_does_not_name_a_p95_of_five() -> None:
    found = series(frame([row(i, due=float(i), gaps=()) for i in range(5)]), "s", 1.0)
    assert found["ttft_p95_ms"].null_count() == found.height
    assert found["ttft_max_ms"].null_count() == 0


def test_series_of_an_unknown_stage_is_empty_with_its_columns() -> None:
    found = series(frame([row(0, due=0.0)]), "nope")
    assert found.height == 0
    assert {"t_s", "ttft_p95_ms", "itl_p95_ms", "output_tokens_per_s", "running"} <= set(found.columns)


def test_latencies_of_nothing() -> None:
    assert stage_latencies(frame([]), "s") == Latencies([], [], [], [])
