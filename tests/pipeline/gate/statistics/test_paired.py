"""The paired interval against scipy, exact tails and simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, special, stats

from pipeline.gate.statistics.clusters import design_effect
from pipeline.gate.statistics.paired import Score, detectable_delta, flips, paired_delta


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


def _twin(lost: int, gained: int, n: int, difference: float) -> float:
    """Tango's statistic from the likelihood itself: the share lost that fits best if ``difference`` were true."""

    def against(share: float) -> float:
        both = n - lost - gained
        return -float(
            special.xlogy(lost, share)
            + special.xlogy(gained, share + difference)
            + special.xlogy(both, 1 - 2 * share - difference)
        )

    low, high = max(0.0, -difference), (1 - difference) / 2
    best = optimize.minimize_scalar(against, bounds=(low, high), method="bounded", options={"xatol": 1e-12}).x
    return float((gained - lost - n * difference) / math.sqrt(n * (2 * best + difference * (1 - difference))))


@pytest.mark.parametrize(("lost", "gained"), [(9, 4), (1, 0), (0, 5), (12, 12)])
@pytest.mark.parametrize("difference", [-0.2, -0.06, 0.03])
def test_the_statistic_is_that_of_the_restricted_likelihood(lost: int, gained: int, difference: float) -> None:
    n = 100
    score = Score(lost / n, gained / n, n)
    assert score.statistic(difference) == pytest.approx(_twin(lost, gained, n, difference), rel=1e-3, abs=1e-3)


@given(
    lost=st.floats(0, 0.5), gained=st.floats(0, 0.5), pairs=st.floats(2, 2000), confidence=st.floats(0.6, 0.999),
)  # fmt: skip
@settings(deadline=None, max_examples=80)
def test_bounds_and_p_values_of_a_difference_agree(lost: float, gained: float, pairs: float, confidence: float) -> None:
    score = Score(lost, gained, pairs)
    low, high = score.bounds(confidence)
    assert -1 <= low <= gained - lost <= high <= 1
    if low > -1:
        assert score.p_below(low) == pytest.approx(confidence, abs=1e-5)
    if high < 1:
        assert score.p_below(high) == pytest.approx(1 - confidence, abs=1e-5)


def test_many_independent_pairs_have_the_plain_paired_interval() -> None:
    rng = np.random.default_rng(5)
    n = 40_000
    a, b = rng.integers(0, 2, n).astype(float), rng.integers(0, 2, n).astype(float)
    p = paired_delta(a.tolist(), b.tolist(), ["s"] * n, [str(i) for i in range(n)], 0.95)
    expected = stats.ttest_rel(a, b).confidence_interval(0.90)
    assert (p.low, p.high) == pytest.approx((expected.low, expected.high), abs=2e-5)
    lost, gained = int(((a - b) < 0).sum()), int(((a - b) > 0).sum())
    turned = lost + gained
    ways = [1]  # of i among those that turned, each from the one before: exact, and quick
    for i in range(min(lost, gained)):
        ways.append(ways[-1] * (turned - i) // (i + 1))
    assert p.mcnemar_p == pytest.approx(min(1.0, 2 * (sum(ways) / 2**turned)))


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


def test_the_p_value_of_a_loss_goes_with_its_bound() -> None:
    rng = np.random.default_rng(9)
    a, b = rng.integers(0, 2, 200).astype(float), (rng.random(200) < 0.8).astype(float)
    p = paired_delta(a.tolist(), b.tolist(), ["s"] * 200, [str(i) for i in range(200)], 0.95)
    assert p.p_worse(-p.high) == pytest.approx(0.05)
    assert p.p_worse(-p.low) == pytest.approx(0.95)
    equal = paired_delta([1.0] * 50, [1.0] * 50, ["s"] * 50, [str(i) for i in range(50)], 0.95)
    assert equal.p_worse(0.03) > 0.8  # 50 pairs without a loss do not rule out 3 %
    lost = paired_delta([0.0] * 50, [1.0] * 50, ["s"] * 50, [str(i) for i in range(50)], 0.95)
    assert lost.p_worse(0.03) < 1e-6


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


def test_flips_name_the_items() -> None:
    f = flips({"a": 0.0, "b": 1.0, "c": 0.5, "d": 1.0}, {"a": 1.0, "b": 1.0, "c": 0.0, "d": 1.0})
    assert (f.lost, f.gained, f.share) == (("a",), ("c",), 0.5)
    with pytest.raises(ValueError, match="1 items were asked of one only, for instance b"):
        flips({"a": 0.0, "b": 1.0}, {"a": 1.0})


def test_the_design_effect_of_clusters() -> None:
    """Clusters of four: nothing told counts each as one value, independence as four, and copies as one again."""
    rng, n = np.random.default_rng(2), 4000
    ids = [str(i // 4) for i in range(n)]
    strata = ["s"] * n
    assert design_effect(np.zeros(n), strata, ids) == 4
    assert design_effect(np.zeros(n), strata, [str(i) for i in range(n)]) == 1
    alone = np.where(rng.random(n) < 0.1, -1.0, 0.0)
    assert design_effect(alone, strata, ids) == pytest.approx(1, abs=0.1)
    copies = np.repeat(alone[::4], 4)
    assert design_effect(copies, strata, ids) == pytest.approx(4, abs=0.02)
    one = np.zeros(n)
    one[5] = -1.0  # a single flip: half is still taken for granted
    assert design_effect(one, strata, ids) == pytest.approx((1 + 4) / 2, abs=0.01)


def test_names_of_clusters_are_kept_apart_by_stratum() -> None:
    values = np.array([1.0, 0.0, 0.0, 1.0])
    assert design_effect(values, ["a", "b", "a", "b"], ["x", "x", "y", "y"]) == 1
