"""Lengths, divergences and sizes of effects against scipy and slow twins."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from pipeline.gate.statistics.clusters import clustered_mean
from pipeline.gate.statistics.divergence import choice_divergence
from pipeline.gate.statistics.effects import hodges_lehmann, standardised_mean_change, superiority
from pipeline.gate.statistics.lengths import judge_band, length_ratio

RNG = np.random.default_rng(11)


def test_independent_values_have_the_plain_standard_error_and_copies_twice_it() -> None:
    x = RNG.normal(size=40)
    ids = [str(i) for i in range(40)]
    one = clustered_mean(x, ["s"] * 40, ids)
    assert (one.mean, one.error, one.freedom, one.clusters) == pytest.approx((x.mean(), stats.sem(x), 39, 40))
    copies = clustered_mean(np.repeat(x, 4), ["s"] * 160, [i for i in ids for _ in range(4)])
    assert copies.error == pytest.approx(one.error)  # four copies of each are worth no more than one
    halves = clustered_mean(x, ["a"] * 20 + ["b"] * 20, ids)
    assert halves.error == pytest.approx(math.hypot(stats.sem(x[:20]), stats.sem(x[20:])) / 2)


def test_the_ratio_of_lengths_is_that_of_the_delta_method() -> None:
    b = RNG.gamma(4, 10, 120)
    a = b * RNG.gamma(50, 0.9 / 50, 120)
    r = length_ratio(a.tolist(), b.tolist(), ["s"] * 120, [str(i) for i in range(120)], 0.95)
    ratio, mean_a, mean_b = a.mean() / b.mean(), a.mean(), b.mean()
    cov = np.cov(a, b)
    log_error = math.sqrt((cov[0, 0] / mean_a**2 + cov[1, 1] / mean_b**2 - 2 * cov[0, 1] / (mean_a * mean_b)) / 120)
    t = stats.t.ppf(0.95, 119)
    assert r.change == pytest.approx(ratio - 1)
    assert (1 + r.low, 1 + r.high) == pytest.approx((ratio * math.exp(-t * log_error), ratio * math.exp(t * log_error)))
    with pytest.raises(ValueError, match="the reference wrote nothing"):
        length_ratio([1.0, 2.0], [0.0, 0.0], ["s"] * 2, ["a", "b"], 0.95)
    with pytest.raises(ValueError, match="at least two"):
        length_ratio([1.0], [1.0], ["s"], ["a"], 0.95)
    assert length_ratio([0.0, 0.0], [1.0, 2.0], ["s"] * 2, ["a", "b"], 0.95).change == -1


@pytest.mark.parametrize(
    ("low", "high", "outcome"),
    [(-0.1, 0.1, "pass"), (0.21, 0.3, "fail"), (-0.5, -0.3, "fail"), (0.1, 0.3, "undecided")],
)
def test_a_band_has_two_sides(low: float, high: float, outcome: str) -> None:
    assert judge_band(low, high, 0.2) == outcome


@given(st.lists(st.tuples(st.floats(-50, 0), st.floats(-50, 0)), min_size=2, max_size=6), st.floats(-5, 5))
@settings(deadline=None, max_examples=60)
def test_a_divergence_is_that_of_scipys_entropy(pairs: list[tuple[float, float]], shift: float) -> None:
    a, b = ([p[i] for p in pairs] for i in (0, 1))
    p, q = (np.exp(np.asarray(x) - max(x)) for x in (a, b))
    found = choice_divergence(a, b)
    assert found == pytest.approx(stats.entropy(p, q), rel=1e-6, abs=1e-9)
    assert choice_divergence([x + shift for x in a], b) == pytest.approx(found, rel=1e-6, abs=1e-9)
    assert choice_divergence(a, a) == pytest.approx(0, abs=1e-12)


def test_a_choice_without_a_likelihood_has_no_divergence() -> None:
    for a, b in (([0.0], [0.0]), ([0.0, 1.0], [0.0]), ([0.0, math.nan], [0.0, 0.0])):
        with pytest.raises(ValueError, match="log-likelihoods: expected"):
            choice_divergence(a, b)


def test_the_shift_inverts_the_rank_test() -> None:
    a, b = RNG.lognormal(4, 0.5, 40), RNG.lognormal(4, 0.5, 50) + 12
    s = hodges_lehmann(a.tolist(), b.tolist())
    assert s.shift == pytest.approx(np.median([y - x for x in a for y in b]))
    for end, inside in ((s.low, 1e-6), (s.high, -1e-6)):
        at, beyond = (
            stats.mannwhitneyu(b - end - e, a, use_continuity=False, method="asymptotic").pvalue
            for e in (inside, -inside)
        )
        assert beyond <= 0.052
        assert at >= 0.048
    with pytest.raises(ValueError, match="1 of them not finite"):
        hodges_lehmann([1.0, math.inf], [1.0])


@given(
    a=st.lists(st.floats(0, 9).map(round), min_size=1, max_size=30),
    b=st.lists(st.sampled_from([0.0, 1.0, 5.0, math.inf]), min_size=1, max_size=30),
)  # fmt: skip
@settings(deadline=None, max_examples=60)
def test_superiority_counts_the_pairs(a: list[float], b: list[float]) -> None:
    twin = sum((y > x) + (y == x) / 2 for x in a for y in b) / (len(a) * len(b))
    assert superiority(a, b) == pytest.approx(twin)
    assert superiority(b, a) == pytest.approx(1 - twin)


def test_a_mean_change_in_standard_deviations() -> None:
    d = RNG.normal(0.5, 1, (4000, 8))
    found = [standardised_mean_change([0.0] * 8, row.tolist()) for row in d]
    assert np.mean(found) == pytest.approx(0.5, abs=0.03)  # uncorrected: 0.55
    assert standardised_mean_change([1.0] * 3, [1.0] * 3) == 0
    assert standardised_mean_change([1.0] * 3, [2.0] * 3) == math.inf
    with pytest.raises(ValueError, match="expected pairs, at least 3"):
        standardised_mean_change([1.0], [1.0])
