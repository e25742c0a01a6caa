"""How often each detector sees what is not there, and whether it sees what is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binom

from pipeline.load.analysis.serial import best_windows, correlation
from pipeline.load.analysis.signals import Signal
from pipeline.load.analysis.spikes import detectable_height, spikes
from pipeline.load.analysis.step import step
from pipeline.load.analysis.trend import trend
from tests.pipeline.load.analysis.planted import correlated, stationary

SPAN_S = 120.0
ALPHA = 0.05
RUNS = 80


def changed(s: Signal, factor: np.ndarray) -> Signal:
    return replace(s, v_ms=s.v_ms * factor)


@pytest.mark.parametrize(("n", "phi"), [(300, 0.0), (600, 0.6), (1500, 0.9)])
def test_false_alarms_stay_within_what_is_claimed(n: int, phi: float) -> None:
    """Stationary latencies with correlated neighbours: no detector speaks in more than one case of twenty, as far as
    so many runs can tell (the largest count that a true 5 % would give in 99 of 100 such tests).
    """
    rng = np.random.default_rng(17)
    alarms = {"trend": 0, "step": 0, "spikes": 0}
    for _ in range(RUNS):
        s = stationary(n, phi, SPAN_S, rng)
        w = best_windows(s, 0.5)
        assert w is not None
        alarms["trend"] += trend(w, SPAN_S).p_value <= ALPHA
        alarms["step"] += step(w).p_value <= ALPHA
        p = spikes(s)
        alarms["spikes"] += p is not None and p.p_value <= ALPHA
    most = int(binom.ppf(0.99, RUNS, ALPHA))
    assert {k: v for k, v in alarms.items() if v > most} == {}


def test_samples_taken_at_even_intervals_are_no_period() -> None:
    rng = np.random.default_rng(5)
    alarms = 0
    for _ in range(40):
        s = Signal("ttft", np.arange(480) * 0.25, 200 * np.exp(0.4 * correlated(480, 0.5, rng)), SPAN_S)
        p = spikes(s)
        alarms += p is not None and p.p_value <= ALPHA
    assert alarms <= binom.ppf(0.99, 40, ALPHA)


def test_a_drift_of_five_percent_is_found_with_its_size() -> None:
    """As in a release stage: half an hour, 5 requests a second."""
    rng, hits = np.random.default_rng(2), 0
    for _ in range(20):
        s = stationary(9000, 0.5, 1800.0, rng, spread=0.12)
        w = best_windows(changed(s, 1 + 0.05 * s.t_s / s.span_s), 0.5)
        assert w is not None
        t = trend(w, s.span_s)
        hits += t.p_value <= ALPHA and t.interval[0] <= 5 <= t.interval[1]
        assert t.percent == pytest.approx(5, abs=3.5)
    assert hits >= 17


def test_what_would_have_been_seen_is_seen_four_times_in_five() -> None:
    rng, hits = np.random.default_rng(4), 0
    for _ in range(60):
        s = stationary(600, 0.3, SPAN_S, rng)
        w = best_windows(s, 0.5)
        assert w is not None
        size = trend(w, SPAN_S).detectable_percent / 100
        planted = best_windows(changed(s, (1 + size) ** (s.t_s / SPAN_S)), 0.5)
        assert planted is not None
        hits += trend(planted, SPAN_S).p_value <= ALPHA
    assert hits >= 60 * 0.65  # 80 % but for the luck of 60 runs


def test_a_step_is_found_where_it_was() -> None:
    rng = np.random.default_rng(8)
    for _ in range(10):
        s = stationary(600, 0.3, SPAN_S, rng)
        w = best_windows(changed(s, np.where(s.t_s > 80, 1.5, 1.0)), 0.5)
        assert w is not None
        found = step(w)
        assert found.p_value <= ALPHA
        assert found.at_s == pytest.approx(80, abs=7)
        assert found.percent == pytest.approx(50, abs=20)


@pytest.mark.parametrize(("period_s", "height_ms"), [(4.0, 600.0), (9.0, 1500.0)])
def test_spikes_are_found_with_period_and_height(period_s: float, height_ms: float) -> None:
    rng = np.random.default_rng(9)
    for _ in range(5):
        s = stationary(900, 0.5, SPAN_S, rng)
        hit = s.t_s % period_s < 0.4
        found = spikes(replace(s, v_ms=s.v_ms + np.where(hit, height_ms, 0)))
        assert found is not None
        assert found.p_value <= ALPHA
        assert found.period_s == pytest.approx(period_s, rel=0.03)
        assert found.height_ms == pytest.approx(height_ms, rel=0.4)


def test_a_height_that_is_called_detectable_is_detected() -> None:
    s = stationary(900, 0.5, SPAN_S, np.random.default_rng(1))
    factor = detectable_height(s)
    assert factor is not None
    assert factor <= 5
    hit = s.t_s % 10 < 0.5
    found = spikes(replace(s, v_ms=s.v_ms + np.where(hit, (factor - 1) * s.median_ms(), 0)))
    assert found is not None
    assert found.p_value <= ALPHA
    assert found.period_s == pytest.approx(10, rel=0.05)


def test_failures_do_not_hide_or_make_a_trend() -> None:
    rng = np.random.default_rng(3)
    s = stationary(600, 0.0, SPAN_S, rng)
    some = replace(s, v_ms=np.where(rng.random(600) < 0.05, np.inf, s.v_ms))
    w = best_windows(some, 0.5)
    assert w is not None
    assert np.isfinite(trend(w, SPAN_S).percent)
    assert step(w).p_value > 0.01


def test_few_samples_are_refused() -> None:
    assert best_windows(stationary(60, 0.0, SPAN_S, np.random.default_rng(0)), 0.5) is None
    assert spikes(stationary(20, 0.0, SPAN_S, np.random.default_rng(0))) is None


def test_windows_are_merged_until_neighbours_differ() -> None:
    rng = np.random.default_rng(6)
    slow = best_windows(stationary(2000, 0.99, SPAN_S, rng), 0.5)
    quick = best_windows(stationary(2000, 0.0, SPAN_S, rng), 0.5)
    assert slow is not None
    assert quick is not None
    assert len(slow.v) < len(quick.v) == 40
    assert correlation(np.arange(40) % 2 * 1.0) == 0.0
