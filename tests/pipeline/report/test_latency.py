from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.records import SCHEMA
from pipeline.report.inputs import TierData
from pipeline.report.latency import LATEST, series_of, tail_ecdf


def tier_with(rows: list[dict[str, object]]) -> TierData:
    frame = pl.DataFrame(rows, schema=SCHEMA)
    run = {"stages": [{"name": "s", "start_s": 100.0}]}
    return TierData("t", None, None, None, None, run, None, frame, None, {})


def request(due: float, ttft: float | None, gaps: list[float], phase: str = "measured") -> dict[str, object]:
    row: dict[str, object] = dict.fromkeys(SCHEMA)
    times = [] if ttft is None else [due + ttft]
    for gap in gaps:
        times.append(times[-1] + gap)
    row.update(
        stage="s",
        phase=phase,
        due_s=due,
        sent_s=due,
        first_token_s=times[0] if times else None,
        end_s=times[-1] if times else due + 1,
        token_times_s=times,
        status="ok" if times else "error",
    )
    return row


def test_series_recovers_a_known_schedule() -> None:
    rows = [request(100 + i * 0.5, 0.2, [0.05] * 10) for i in range(60)]
    s = series_of(tier_with(rows), "s")
    assert s is not None
    assert s.due_s[0] == 0
    np.testing.assert_allclose(s.ttft_ms, 200)
    np.testing.assert_allclose(s.itl_ms, 50)
    known = s.ttft_p95_ms[~np.isnan(s.ttft_p95_ms)]
    np.testing.assert_allclose(known, 200)
    # the first 20 requests have been due 9.5 s into the stage, not before
    assert np.isnan(s.ttft_p95_ms[s.t_s < 8]).all()
    middle = s.output_tokens_per_s[(s.t_s > 5) & (s.t_s < 25)]
    np.testing.assert_allclose(middle, 22, rtol=0.15)


def test_warmup_is_left_out_and_a_failure_is_infinite() -> None:
    rows = [request(100 + i, 5.0, [1.0], "warmup") for i in range(3)]
    rows += [request(103 + i * 0.5, 0.1 if i != 7 else None, [0.02] * 5 if i != 7 else []) for i in range(40)]
    s = series_of(tier_with(rows), "s")
    assert s is not None
    assert len(s.ttft_ms) == 40
    assert s.failed == 1
    assert np.isinf(s.ttft_ms[7])
    assert s.ttft_ms[~np.isinf(s.ttft_ms)].max() == pytest.approx(100)


def test_two_failures_of_the_latest_twenty_make_the_sliding_p95_infinite() -> None:
    rows = [
        request(100 + i * 0.1, None if i in {10, 11} else 0.1, [] if i in {10, 11} else [0.02]) for i in range(LATEST)
    ]
    s = series_of(tier_with(rows), "s")
    assert s is not None
    assert math.isinf(s.ttft_p95_ms[-1])


def test_a_stage_without_records_has_no_series(tmp_path: Path) -> None:
    assert series_of(tier_with([request(1, 0.1, [])]), "other") is None


@given(st.lists(st.floats(0, 1e6) | st.just(math.inf), min_size=1, max_size=700))
def test_ecdf_is_monotone_bounded_and_true(values: list[float]) -> None:
    array = np.array(values)
    points = tail_ecdf(array, most=50)
    assert len(points) <= 50 or len(values) <= 50
    for (v, p), (w, q) in itertools.pairwise(points):
        assert v <= w
        assert p < q
    for v, p in points:
        assert np.mean(array < v) < p <= np.mean(array <= v) + 1e-12
    if not np.isinf(array).any():
        assert points[-1] == (float(array.max()), 1.0)
    elif points:
        assert points[-1][1] < 1
