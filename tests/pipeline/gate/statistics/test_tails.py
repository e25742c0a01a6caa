"""The bounds against published figures, exact twins and simulation."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from pipeline.gate.statistics.effective import cluster_design_effect, serial_design_effect
from pipeline.gate.statistics.several import holm
from pipeline.gate.statistics.shares import judge_share, needed_for_pass, share_interval, share_p_value
from pipeline.gate.statistics.tails import judge_tail


@pytest.mark.parametrize(
    ("q", "confidence", "over", "needed"),
    [(0.99, 0.99, 0, 459), (0.99, 0.99, 1, 662), (0.99, 0.95, 0, 299), (0.99, 0.95, 1, 473),
     (0.95, 0.99, 0, 90), (0.95, 0.99, 1, 130), (0.95, 0.95, 0, 59), (0.95, 0.95, 1, 93)],
)  # fmt: skip
def test_the_known_sample_sizes_of_a_tail_limit(q: float, confidence: float, over: int, needed: int) -> None:
    assert judge_share(over, needed, 1 - q, confidence) == "pass"
    assert judge_share(over, needed - 1, 1 - q, confidence) == "undecided"


@given(n=st.integers(1, 60), data=st.data())
@settings(deadline=None, max_examples=40)
def test_the_bounds_invert_the_exact_binomial_tail(n: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(0, n))
    low, high = share_interval(k, n, 0.95)
    if k < n:  # at the upper bound, seeing k or fewer has probability 5 %
        assert sum(math.comb(n, i) * high**i * (1 - high) ** (n - i) for i in range(k + 1)) == pytest.approx(
            0.05, abs=1e-6
        )
    if k > 0:
        assert sum(math.comb(n, i) * low**i * (1 - low) ** (n - i) for i in range(k, n + 1)) == pytest.approx(
            0.05, abs=1e-6
        )


def test_what_is_said_to_be_needed_is_just_enough() -> None:
    for k, n in ((0, 20), (2, 80), (5, 150)):
        needed = needed_for_pass(k, n, 0.05, 0.95)
        assert needed is not None
        assert judge_share(k / n * needed, needed, 0.05, 0.95) == "pass"
        assert judge_share(k / n * (needed - 1), needed - 1, 0.05, 0.95) != "pass"
    assert needed_for_pass(6, 100, 0.05, 0.95) is None


def test_a_bad_tail_passes_no_more_often_than_stated() -> None:
    """True share over the limit 6 %, allowed 5 %, correlated in time: at 95 % at most 5 % of runs may pass."""
    rng, passes, runs = np.random.default_rng(1), 0, 400
    for _ in range(runs):
        noise = np.zeros(200)
        for i in range(1, 200):
            noise[i] = 0.6 * noise[i - 1] + rng.normal(0, 0.8)
        limit = stats.norm.ppf(0.94)
        effective = 200 / serial_design_effect(noise.tolist(), limit)
        k = float((noise > limit).sum()) * effective / 200
        passes += judge_share(k, effective, 0.05, 0.95) == "pass"
    assert passes / runs <= 0.05


def test_independent_samples_keep_their_number_and_copies_do_not() -> None:
    rng = np.random.default_rng(2)
    values = rng.exponential(1, 400)
    assert serial_design_effect(values.tolist(), 2.3) < 1.5
    assert serial_design_effect(np.repeat(values[:100], 4).tolist(), 2.3) == pytest.approx(4, rel=0.5)
    assert serial_design_effect([1.0] * 50, 2.0) == 1.0
    clusters = [str(i // 4) for i in range(400)]
    assert cluster_design_effect(np.repeat(values[:100], 4).tolist(), clusters, 2.3) == pytest.approx(4, rel=0.1)
    assert cluster_design_effect(values.tolist(), clusters, 2.3) < 1.6


def test_calm_runs_below_the_limit_are_not_worn_down() -> None:
    """150 clean requests with mild correlation must still be worth the 59 that a P95 needs."""
    rng = np.random.default_rng(3)
    for _ in range(20):
        noise = rng.normal(0, 1, 151)
        smooth = np.exp(0.2 * (noise[:-1] + 0.4 * noise[1:]))
        assert 150 / serial_design_effect(smooth.tolist(), 1000.0) >= 59


def _independent(n: int) -> Callable[[float], float]:
    return lambda level: float(n)


@pytest.mark.parametrize(("n", "q"), [(130, 0.95), (300, 0.95), (100, 0.5), (473, 0.99)])
def test_the_interval_of_a_tail_is_that_of_the_order_statistics(n: int, q: float) -> None:
    """For independent samples: Hahn and Meeker's ranks, found here from the binomial tail itself."""
    values = [float(v) for v in range(1, n + 1)]
    low, high = judge_tail(values, 1e9, q, 0.95, _independent(n)).interval
    assert stats.binom.cdf(low - 1, n, q) <= 0.05 < stats.binom.cdf(low, n, q)
    assert stats.binom.cdf(high - 1, n, q) >= 0.95 > stats.binom.cdf(high - 2, n, q)


@given(
    values=st.lists(st.floats(1, 1000), min_size=1, max_size=200),
    limit=st.floats(1, 1500), q=st.sampled_from([0.5, 0.9, 0.95, 0.99]), headroom=st.sampled_from([1, 2, 4]),
    worth=st.floats(0.05, 1),
)  # fmt: skip
@settings(deadline=None, max_examples=150)
def test_the_interval_and_the_outcome_agree(
    values: list[float], limit: float, q: float, headroom: int, worth: float
) -> None:
    t = judge_tail(values, limit, q, 0.95, _independent(max(1, round(len(values) * worth))), headroom)
    assert t.interval[0] <= t.interval[1]
    assert (t.outcome == "pass") == (t.interval[1] <= limit)
    assert (t.outcome == "fail") == (limit < t.interval[0])
    assert (t.p_value < 0.05) == (t.outcome == "fail")


def test_a_short_run_far_below_its_limit_passes_and_one_near_it_does_not() -> None:
    calm = [100.0 + i for i in range(40)]
    assert judge_tail(calm, 1000, 0.95, 0.95, _independent(40)).outcome == "undecided"
    far = judge_tail(calm, 1000, 0.95, 0.95, _independent(40), 4)
    assert (far.outcome, far.factor, far.level) == ("pass", 2, 500.0)
    assert judge_tail(calm, 200, 0.95, 0.95, _independent(40), 4).outcome == "undecided"
    shortest = judge_tail(calm[:14], 1000, 0.95, 0.95, _independent(14), 4)
    assert (shortest.outcome, shortest.factor) == ("pass", 4)
    assert judge_tail(calm[:13], 1000, 0.95, 0.95, _independent(13), 4).outcome == "undecided"
    long = judge_tail(calm * 4, 1000, 0.95, 0.95, _independent(160), 4)
    assert (long.outcome, long.factor) == ("pass", 1)  # what can be judged at the limit is


@pytest.mark.parametrize(
    "quantile",
    [lambda u: np.exp(0.5 * stats.norm.ppf(u)), lambda u: stats.pareto.ppf(u, 1.2), lambda u: 0.1 + stats.expon.ppf(u)],
    ids=["log-normal", "Pareto 1.2", "exponential"],
)
@pytest.mark.parametrize("rho", [0.0, 0.6])
def test_headroom_lets_no_more_bad_runs_through_where_its_assumption_holds(
    quantile: Callable[[Any], Any], rho: float
) -> None:
    """True share over the limit just above 5 %, 40 requests: at 95 % at most 5 % of runs may pass (and 2.5 standard
    errors of 400 runs).
    """
    rng, passes, runs = np.random.default_rng(6), 0, 400
    limit = float(quantile(0.9499))
    for _ in range(runs):
        z = rng.normal(size=40)
        for i in range(1, 40):
            z[i] = rho * z[i - 1] + math.sqrt(1 - rho**2) * z[i]
        values = quantile(stats.norm.cdf(z)).tolist()
        t = judge_tail(values, limit, 0.95, 0.95, lambda u, v=values: 40 / serial_design_effect(v, u), 4)
        passes += t.outcome == "pass"
    assert passes / runs <= 0.077


def test_what_headroom_cannot_see_is_as_stated() -> None:
    """Slow requests of a kind of their own (6 % at 50 times the rest): a short run may miss them, at a known price."""
    rng, passes = np.random.default_rng(7), 0
    for _ in range(400):
        values = np.where(rng.random(40) < 0.94, 1.0, 50.0).tolist()
        passes += judge_tail(values, 49, 0.95, 0.95, _independent(40), 2).outcome == "pass"
    assert passes / 400 == pytest.approx(0.94**40, abs=0.05)


def test_a_sample_that_is_not_a_number_is_not_a_fast_one() -> None:
    with pytest.raises(ValueError, match="2 samples, of which 1 are not a number"):
        judge_tail([1.0, math.nan], 5, 0.95, 0.95, _independent(2))
    failed = judge_tail([math.inf] * 100, 5, 0.95, 0.95, _independent(100))
    assert (failed.outcome, failed.interval) == ("fail", (math.inf, math.inf))


@given(n=st.integers(1, 80), k=st.integers(0, 80), allowed=st.floats(0.01, 0.5))
@settings(deadline=None, max_examples=60)
def test_the_p_value_is_the_exact_binomial_tail(n: int, k: int, allowed: float) -> None:
    k = min(k, n)
    tail = sum(math.comb(n, i) * allowed**i * (1 - allowed) ** (n - i) for i in range(k, n + 1))
    assert share_p_value(k, n, allowed) == pytest.approx(tail, abs=1e-9)
    assert (share_p_value(k, n, allowed) < 0.05) == (judge_share(k, n, allowed, 0.95) == "fail")


def test_holm_keeps_the_chance_of_any_false_hold() -> None:
    assert holm({"a": 0.01, "b": 0.04, "c": 0.03}, dict.fromkeys("abc", 0.05)) == {"a"}
    assert holm({"a": 0.01, "b": 0.02, "c": 0.03}, dict.fromkeys("abc", 0.05)) == {"a", "b", "c"}
    assert holm({}, {}) == set()
    rng, any_rejected, uncorrected = np.random.default_rng(8), 0, 0
    for _ in range(1000):
        p = {str(i): float(v) for i, v in enumerate(rng.random(9))}
        any_rejected += bool(holm(p, dict.fromkeys(p, 0.05)))
        uncorrected += min(p.values()) < 0.05
    assert any_rejected / 1000 < 0.07 < uncorrected / 1000


def test_a_verdict_on_a_share_never_passes_and_fails_at_once() -> None:
    for k, n, allowed in product(range(0, 30, 3), (30, 100), (0.01, 0.05, 0.2)):
        low, high = share_interval(k, n, 0.95)
        assert low <= k / n <= high
        assert judge_share(k, n, allowed, 0.95) in {"pass", "fail", "undecided"}
        assert not (high <= allowed and low > allowed)
