from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom

from pipeline.load.intervals import quantile_interval


@pytest.mark.parametrize(("n", "q"), [(30, 0.5), (100, 0.5), (100, 0.95), (500, 0.99), (20, 0.95)])
def test_ends_are_the_order_statistics_of_the_textbook(n: int, q: float) -> None:
    """Hahn and Meeker's ranks, from the binomial itself: P(B <= r - 1) <= 2.5 %, P(B <= s - 1) >= 97.5 %."""
    low = [r for r in range(1, n + 1) if binom.cdf(r - 1, n, q) <= 0.025]
    high = [s for s in range(1, n + 1) if binom.cdf(s - 1, n, q) >= 0.975]
    expected = (float(low[-1]) if low else None, float(high[0]) if high else None)
    assert quantile_interval([float(i) for i in range(1, n + 1)], q, n) == expected


def test_covers_what_it_claims() -> None:
    rng = np.random.default_rng(3)
    held = 0
    for _ in range(400):
        low, high = quantile_interval(sorted(rng.exponential(size=120)), 0.9, 120)
        held += (low or -math.inf) <= -math.log(0.1) <= (high or math.inf)
    assert held / 400 >= 0.95


def test_samples_that_are_worth_less_give_a_wider_interval() -> None:
    ordered = [float(i) for i in range(1, 401)]
    assert quantile_interval(ordered, 0.5, 400) == (180.0, 221.0)
    low, high = quantile_interval(ordered, 0.5, 100)
    assert low is not None
    assert high is not None
    assert low < 165
    assert high > 236


def test_an_end_beyond_the_sample_is_open_and_failures_are_samples() -> None:
    assert quantile_interval([1.0] * 20, 0.95, 20)[1] is None
    assert quantile_interval([1.0] * 60 + [math.inf] * 40, 0.6, 100)[1] == math.inf


def test_more_than_there_are_is_refused() -> None:
    with pytest.raises(ValueError, match="3 samples worth 4 independent"):
        quantile_interval([1.0, 2.0, 3.0], 0.5, 4)
