from __future__ import annotations

import math

import pytest

from pipeline.load.figures import FIGURES, definitions
from pipeline.load.samples import samples
from tests.pipeline.load.test_summary import failed, figures, frame, row

COUNTS = {"requests", "ok", "error", "refused", "timeout", "censored", "abandoned"}


def test_every_figure_is_defined_once_and_every_definition_is_a_figure() -> None:
    found = figures([row(i, due=float(i)) for i in range(30)])
    assert set(found) - COUNTS - {"intervals", "reasons"} == set(FIGURES)
    for f in definitions().values():
        assert f["name"]
        assert f["unit"]
        assert f["source"]
        assert f["formula"].endswith(".")


def test_percentiles_carry_the_interval_that_their_samples_are_worth() -> None:
    found = figures([row(i, due=float(i), ttft=0.001 * (1 + i * 37 % 100)) for i in range(100)])
    known = found["intervals"]["ttft_ms.p50"]
    assert known["n"] == 100
    assert known["interval"][0] < found["ttft_ms"]["p50"] < known["interval"][1]
    assert found["intervals"]["itl_ms.p95"]["n"] == 200
    # In blocks of ten alike, neighbours tell less, and the interval says so.
    alike = figures([row(i, due=float(i), ttft=0.001 * (1 + i // 10 * 37 % 100)) for i in range(100)])
    assert alike["intervals"]["ttft_ms.p50"]["n_effective"] < 0.5 * known["n_effective"]


def test_shares_of_all_requests_with_intervals() -> None:
    rows = [row(i, due=float(i)) for i in range(7)]
    rows += [failed(7), failed(8, "timeout"), failed(9, "refused"), failed(10, "censored"), failed(11, "abandoned")]
    found = figures(rows)
    assert found["error_share"] == pytest.approx(3 / 12)
    assert found["refused_share"] == found["abandoned_share"] == pytest.approx(1 / 12)
    low, high = found["intervals"]["error_share"]["interval"]
    assert (low, high) == pytest.approx((0.0549, 0.5719), abs=1e-4)  # Clopper and Pearson's, 3 of 12


def test_tpot_is_per_answer_and_itl_is_per_gap() -> None:
    """A stall of 1 s in an answer of 101 tokens: the mean hides it, the pooled gaps do not."""
    rows = [row(i, due=float(i), gaps=(0.01,) * 99 + (1.0,)) for i in range(25)]
    found = figures(rows)
    assert found["tpot_ms"]["p95"] == pytest.approx((99 * 10 + 1000) / 100)
    assert found["itl_ms"]["p50"] == pytest.approx(10)
    assert found["itl_ms"]["p99"] == pytest.approx(10)
    assert max(samples(frame(rows))["itl"].values) == pytest.approx(1000)


def test_a_user_who_leaves_keeps_what_came() -> None:
    left = row(0, due=0.0, status="abandoned", reason="left")
    never = failed(1, "abandoned")
    found = samples(frame([left, never]))
    assert found["ttft"].values == pytest.approx([100, math.inf])
    assert [math.isinf(v) for v in found["itl"].values] == [False, False, True]
    assert found["e2e"].values == found["tpot"].values == []
    assert figures([left, never], goodput={"ttft_ms": 500, "tpot_ms": 100})["goodput_share"] == 0.5


def test_queue_time_is_the_servers_or_absent() -> None:
    found = figures([row(i, due=float(i)) for i in range(30)])
    assert found["queue_ms"]["p50"] is None
    assert found["reasons"]["queue_ms.p50"] == "the server does not report it"
