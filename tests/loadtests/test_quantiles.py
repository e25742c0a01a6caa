from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.quantiles import min_samples, nearest_rank


@pytest.mark.parametrize(("q", "n"), [(0.5, 2), (0.9, 10), (0.95, 20), (0.99, 100), (0.999, 1000)])
def test_fewest_samples_that_tell_a_quantile_from_the_maximum(q: float, n: int) -> None:
    assert min_samples(q) == n
    assert nearest_rank(range(n), q) < n - 1
    assert nearest_rank(range(n - 1), q) == n - 2


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=300), st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_agrees_with_numpy(samples: list[float], q: float) -> None:
    expected = np.quantile(samples, float(q), method="inverted_cdf")
    # numpy rounds q * n in binary: one rank lower or higher where the product is a whole number
    near = {sorted(samples)[min(max(math.ceil(q * len(samples)) - 1 + d, 0), len(samples) - 1)] for d in (-1, 0, 1)}
    assert expected in near
    assert nearest_rank(sorted(samples), q) in near


def test_exact_ranks() -> None:
    assert nearest_rank([*range(1, 101)], 0.95) == 95
    assert nearest_rank([*range(1, 101)], 0.99) == 99
    assert nearest_rank([1.0, math.inf], 0.5) == 1.0
    assert nearest_rank([1.0, math.inf], 0.51) == math.inf
    with pytest.raises(ValueError, match="no samples"):
        nearest_rank([], 0.5)
