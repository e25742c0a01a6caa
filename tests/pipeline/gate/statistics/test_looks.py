"""Boundaries against published ones, against scipy's multivariate normal, and by simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from pipeline.gate.statistics.looks import LookPlan, Spending, boundaries, spent

# Jennison and Turnbull 2000, and the program of Reboussin, DeMets, Kim and Lan 2000: 5 equal looks, 2.5 % one-sided
PUBLISHED: dict[Spending, list[float]] = {
    "obrien_fleming": [4.8769, 3.3569, 2.6803, 2.2898, 2.0310],
    "pocock": [2.4380, 2.4268, 2.4101, 2.3966, 2.3859],
}


def _planned(looks: int, alpha: float, spending: Spending) -> tuple[float, ...]:
    fractions = tuple((k + 1) / looks for k in range(looks))
    return boundaries(fractions, tuple(spent(f, alpha, spending) for f in fractions))


@pytest.mark.parametrize("spending", list(PUBLISHED))
def test_the_boundaries_are_the_published_ones(spending: Spending) -> None:
    assert _planned(5, 0.025, spending) == pytest.approx(PUBLISHED[spending], abs=6e-4)


@pytest.mark.parametrize("looks", [1, 2, 3, 4])
@pytest.mark.parametrize("spending", list(PUBLISHED))
def test_the_recursion_agrees_with_the_multivariate_normal(looks: int, spending: Spending) -> None:
    """Exact twin: the z of look j and k correlate by sqrt(t_j / t_k)."""
    found = _planned(looks, 0.05, spending)
    for k in range(1, looks + 1):
        t = np.arange(1, k + 1)
        correlation = np.sqrt(np.minimum.outer(t, t) / np.maximum.outer(t, t))
        inside = stats.multivariate_normal(cov=correlation, seed=1).cdf(np.asarray(found[:k]))
        assert 1 - inside == pytest.approx(spent(k / looks, 0.05, spending), abs=2e-4)


@given(
    counts=st.lists(st.integers(2, 60), min_size=1, max_size=5, unique=True).map(sorted),
    alpha=st.floats(0.005, 0.1), spending=st.sampled_from(list(PUBLISHED)),
)  # fmt: skip
@settings(deadline=None, max_examples=25)
def test_every_look_has_less_than_the_whole_and_the_last_has_most(
    counts: list[int], alpha: float, spending: Spending
) -> None:
    plan = LookPlan(tuple(counts), alpha, spending)
    levels = [plan.level(counts[: k + 1]) for k in range(len(counts))]
    assert all(0 <= v <= alpha + 1e-9 for v in levels)
    assert levels[-1] > 0
    if len(counts) == 1:
        assert levels[0] == pytest.approx(alpha)
    assert sum(levels) >= alpha - 1e-9  # crossings overlap: together the looks have no less than is spent


def test_a_budget_that_ends_early_spends_what_is_left() -> None:
    plan = LookPlan((4, 8, 12), 0.05, "obrien_fleming")
    early, last = plan.level([4, 8]), plan.level([4, 8], final=True)
    assert early < last < 0.05
    assert plan.level([4, 8], alpha=0.01) < early
    assert plan.level([4, 8, 11]) == plan.level([4, 8, 11], final=True)


def test_a_look_more_than_planned_is_refused() -> None:
    with pytest.raises(ValueError, match="look 3 of 2 planned: their number is fixed in advance"):
        LookPlan((4, 8)).level([4, 8, 12])
    with pytest.raises(ValueError, match="expected growing numbers"):
        LookPlan((8, 4))
    with pytest.raises(ValueError, match="must grow from look to look"):
        LookPlan((4, 8)).level([4, 4])
    with pytest.raises(ValueError, match=r"alpha 0\.6"):
        LookPlan((4,), 0.6)
    with pytest.raises(ValueError, match="must not shrink"):
        boundaries((1.0, 2.0), (0.02, 0.01))
    assert boundaries((1.0, 2.0), (0.0, 0.05))[0] == math.inf
