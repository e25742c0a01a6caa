"""The paired interval against scipy, exact tails and simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from pipeline.gate.statistics.paired import detectable_delta, paired_delta


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


def test_the_p_value_of_a_loss_is_that_of_the_t_test() -> None:
    rng = np.random.default_rng(9)
    a, b = rng.integers(0, 2, 200).astype(float), rng.integers(0, 2, 200).astype(float)
    p = paired_delta(a.tolist(), b.tolist(), ["s"] * 200, [str(i) for i in range(200)], 0.95)
    expected = stats.ttest_1samp(a - b, -0.03, alternative="less").pvalue
    assert p.p_worse(0.03) == pytest.approx(expected)
    equal = paired_delta([1.0] * 50, [1.0] * 50, ["s"] * 50, [str(i) for i in range(50)], 0.95)
    assert equal.p_worse(0.03) == 1.0
    lost = paired_delta([0.0] * 50, [1.0] * 50, ["s"] * 50, [str(i) for i in range(50)], 0.95)
    assert lost.p_worse(0.03) == 0.0


def test_equal_builds_pass_and_the_detectable_loss_is_seen_in_four_of_five_runs() -> None:
    """300 independent items of which a tenth flips: what the margin of the shipped policy rests on."""
    rng, seen, runs, n = np.random.default_rng(10), 0, 400, 300
    margin = detectable_delta(n, 0.1, 0.95)
    for _ in range(runs):
        u = rng.random(n)
        d = np.where(u < 0.05, -1.0, np.where(u > 0.95, 1.0, 0.0))
        p = paired_delta(d.tolist(), [0.0] * n, ["s"] * n, [str(i) for i in range(n)], 0.95)
        seen += p.low >= -margin
    assert seen / runs == pytest.approx(0.8, abs=0.06)
