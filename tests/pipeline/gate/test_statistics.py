"""The bounds against published figures, exact twins and simulation."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from pipeline.gate.statistics import (
    cluster_design_effect,
    detectable_delta,
    judge_share,
    needed_for_pass,
    paired_delta,
    quantile_interval,
    serial_design_effect,
    share_interval,
)


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


def test_the_quantile_interval_is_that_of_the_order_statistics() -> None:
    values = [float(v) for v in range(1, 101)]
    low, high = quantile_interval(values, 0.5, 0.95) or (0.0, 0.0)
    assert stats.binom.cdf(low - 1, 100, 0.5) <= 0.05 < stats.binom.cdf(low, 100, 0.5)
    assert stats.binom.cdf(high - 1, 100, 0.5) >= 0.95 > stats.binom.cdf(high - 2, 100, 0.5)
    assert quantile_interval(values, 0.99, 0.95) is None
    assert quantile_interval([], 0.5, 0.95) is None


def test_the_paired_interval_covers_the_truth_under_clustering() -> None:
    """Clusters of four that mostly flip together, in three strata of different loss: each end misses about 5 %."""
    rng, missed, runs = np.random.default_rng(4), [0, 0], 500
    losses = (0.02, 0.06, 0.12)
    strata = [s for s in "abc" for _ in range(80)]
    clusters = [f"{s}{i // 4}" for s in "abc" for i in range(80)]
    truth = -float(np.mean(losses)) + 0.02
    for _ in range(runs):
        d: list[float] = []
        for loss in losses:
            for _cluster in range(20):
                together = rng.random() < 0.7
                draws = np.repeat(rng.random(), 4) if together else rng.random(4)
                d += np.where(draws < loss, -1.0, np.where(draws > 0.98, 1.0, 0.0)).tolist()
        p = paired_delta(d, [0.0] * 240, strata, clusters, 0.95)
        missed[0] += p.low > truth
        missed[1] += p.high < truth
    assert max(missed) / runs <= 0.09  # 5 % and three standard errors of 500 runs


def test_without_strata_and_clusters_it_is_the_paired_t_interval() -> None:
    rng = np.random.default_rng(5)
    a, b = rng.integers(0, 2, 200).astype(float), rng.integers(0, 2, 200).astype(float)
    p = paired_delta(a.tolist(), b.tolist(), ["s"] * 200, [str(i) for i in range(200)], 0.95)
    expected = stats.ttest_rel(a, b).confidence_interval(0.90)
    assert (p.low, p.high) == pytest.approx((expected.low, expected.high))
    lost, gained = int(((a - b) < 0).sum()), int(((a - b) > 0).sum())
    tail = sum(math.comb(lost + gained, i) for i in range(min(lost, gained) + 1)) / 2 ** (lost + gained)
    assert p.mcnemar_p == pytest.approx(min(1.0, 2 * tail))


def test_no_difference_seen_is_not_no_difference() -> None:
    p = paired_delta([1.0] * 100, [1.0] * 100, ["s"] * 100, [str(i) for i in range(100)], 0.95)
    assert p.delta == 0
    assert p.high == pytest.approx(1 - 0.05 ** (1 / 100))
    with pytest.raises(ValueError, match="lengths 0, 0, 0, 0"):
        paired_delta([], [], [], [], 0.95)


@pytest.mark.parametrize(("n", "points"), [(240, 5.7), (600, 3.6), (7800, 1.0)])
def test_the_detectable_loss_is_the_designs(n: int, points: float) -> None:
    """DESIGN's figures are two-sided at 95 %, that is one-sided at 97.5 %, with 80 % power."""
    assert detectable_delta(n, 0.1, 0.975) * 100 == pytest.approx(points, abs=0.06)


def test_a_verdict_on_a_share_never_passes_and_fails_at_once() -> None:
    for k, n, allowed in product(range(0, 30, 3), (30, 100), (0.01, 0.05, 0.2)):
        low, high = share_interval(k, n, 0.95)
        assert low <= k / n <= high
        assert judge_share(k, n, allowed, 0.95) in {"pass", "fail", "undecided"}
        assert not (high <= allowed and low > allowed)
