"""The ratio by round and its verdict, against scipy, an exact twin and simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from pipeline.gate.statistics.compare import Rounds, compare
from pipeline.gate.statistics.looks import LookPlan
from pipeline.gate.statistics.rounds import ratio_by_round

PLAN = LookPlan((4, 8, 12))


def _pairs(n: int, ratio: float, spread: float = 0.02, seed: int = 1) -> tuple[list[float], list[float]]:
    rng = np.random.default_rng(seed)
    machine = np.exp(rng.normal(0, 0.2, n))  # what both rounds of a pair have in common
    base = 100 * machine * np.exp(rng.normal(0, spread, n))
    candidate = 100 * ratio * machine * np.exp(rng.normal(0, spread, n))
    return base.tolist(), candidate.tolist()


def test_it_is_the_paired_t_interval_of_the_logs() -> None:
    base, candidate = _pairs(9, 1.1)
    r = ratio_by_round(base, candidate, 0.95)
    twin = stats.ttest_rel(np.log(candidate), np.log(base))
    interval = twin.confidence_interval(0.90)
    assert (r.low, r.high) == pytest.approx((math.exp(interval.low), math.exp(interval.high)))
    assert r.p_above(1.0) == pytest.approx(twin.pvalue / 2)
    assert r.p_above(1.0) + r.p_below(1.0) == pytest.approx(1)
    # a bound at the confidence that belongs to a p-value touches the limit
    assert ratio_by_round(base, candidate, 1 - r.p_above(1.05)).low == pytest.approx(1.05)


def test_with_both_orders_it_is_the_two_sample_t_of_the_crossover_and_drift_costs_nothing() -> None:
    base, candidate = _pairs(12, 1.03)
    first = [i % 2 == 0 for i in range(12)]
    drifted = [c * (1.1 if f else 1 / 1.1) for c, f in zip(candidate, first, strict=True)]  # the second is 10 % slower
    r = ratio_by_round(base, drifted, 0.95, base_first=first)
    d = np.log(drifted) - np.log(base)
    twin = stats.ttest_ind(d[::2], -d[1::2])  # Hills and Armitage: half the difference of the two orders
    low, high = twin.confidence_interval(0.90)
    assert (r.low, r.high) == pytest.approx((math.exp(low / 2), math.exp(high / 2)))
    steady = ratio_by_round(base, candidate, 0.95, base_first=first)
    assert (r.ratio, r.log_error) == pytest.approx((steady.ratio, steady.log_error))
    assert ratio_by_round(base, drifted, 0.95).log_error > 2 * r.log_error


def test_a_bootstrap_waits_for_twenty_pairs_and_then_agrees() -> None:
    base, candidate = _pairs(30, 1.05)
    t, boot = (ratio_by_round(base, candidate, 0.95, method=m) for m in ("t", "bootstrap_t"))
    assert (boot.low, boot.high) == pytest.approx((t.low, t.high), rel=0.004)
    with pytest.raises(ValueError, match="19 pairs of rounds: a bootstrap needs 20"):
        ratio_by_round(base[:19], candidate[:19], 0.95, method="bootstrap_t")


@pytest.mark.parametrize(
    ("base", "candidate", "words"),
    [([1.0], [1.0], "at least 2"), ([1.0, 2.0], [1.0], "expected as many"), ([1.0, 0.0], [1.0, 1.0], "positive"),
     ([1.0, 1.0], [1.0, math.inf], "finite")],
)  # fmt: skip
def test_what_has_no_ratio_is_refused(base: list[float], candidate: list[float], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ratio_by_round(base, candidate, 0.95)


@pytest.mark.parametrize(("ratio", "outcome"), [(1.0, "pass"), (1.1, "fail"), (0.8, "pass"), (1.03, "undecided")])
def test_a_look_decides_what_is_clear(ratio: float, outcome: str) -> None:
    base, candidate = _pairs(8, ratio, 0.01)
    c = compare({"ttft_p95": Rounds(base, candidate, 0.03)}, PLAN, [4, 8])["ttft_p95"]
    assert c.outcome == outcome, c
    assert (c.pairs_needed is not None) == (outcome == "undecided")
    assert c.resolves is not None
    assert 0 < c.resolves < 0.05
    assert c.p_equivalent is not None
    assert (c.p_equivalent < c.level) == (ratio == 1.0)


def test_the_pairs_said_to_be_needed_are_just_enough() -> None:
    base, candidate = _pairs(8, 1.02, 0.03, seed=3)
    c = compare({"x": Rounds(base, candidate, 0.05)}, LookPlan((8,)), [8])["x"]
    assert c.outcome == "undecided"
    assert c.ratio is not None
    assert c.pairs_needed is not None
    spread, room = c.ratio.log_error * math.sqrt(8), abs(math.log(c.ratio.ratio / 1.05))
    half = [stats.t.isf(0.05, n - 1) * spread / math.sqrt(n) for n in (c.pairs_needed - 1, c.pairs_needed)]
    assert half[1] <= room < half[0]


def test_a_throughput_is_worse_when_it_falls() -> None:
    base, candidate = _pairs(8, 1 / 1.1, 0.01)
    figure = Rounds(base, candidate, 0.03, base_first=[True, False] * 4, higher_is_better=True)
    assert compare({"tokens": figure}, PLAN, [4, 8])["tokens"].outcome == "fail"
    assert (
        compare({"tokens": Rounds(candidate, base, 0.03, None, True, True)}, PLAN, [4, 8])["tokens"].outcome == "pass"
    )


def test_failures_are_no_fast_rounds() -> None:
    base, candidate = _pairs(4, 1.0, 0.001)
    broken = [*candidate[:3], math.inf]
    one = compare({"x": Rounds(base, broken, 0.03)}, PLAN, [4])["x"]
    assert (one.outcome, one.ratio) == ("fail", None)
    assert "in 1 of 4 rounds the candidate has no figure" in one.why
    both = compare({"x": Rounds([math.inf, *base[1:]], broken, 0.03)}, PLAN, [4])["x"]
    assert both.outcome == "undecided"
    assert "the base itself" in both.why
    with pytest.raises(ValueError, match="x: 4 and 4 rounds, but the look is at 8 pairs"):
        compare({"x": Rounds(base, candidate, 0.03)}, PLAN, [4, 8])
    with pytest.raises(ValueError, match="without a margin"):
        compare({"x": Rounds(base, candidate, 0.0)}, PLAN, [4])


def test_a_hold_that_one_of_many_figures_shows_by_chance_does_not_stand() -> None:
    """p between alpha and alpha / 8: alone it holds, among eight others that are well it does not."""
    base, candidate = _pairs(12, 1.05, 0.02, seed=5)
    plan = LookPlan((12,))
    alone = compare({"x": Rounds(base, candidate, 0.03)}, plan, [12])["x"]
    assert alone.outcome == "fail"
    assert alone.p_worse is not None
    assert 0.05 / 8 < alone.p_worse < 0.05
    others = {str(i): Rounds(*_pairs(12, 1.0, 0.01, seed=i), 0.03) for i in range(10, 17)}
    many = compare({"x": Rounds(base, candidate, 0.03), **others}, plan, [12])
    assert many["x"].outcome == "undecided"
    advisory = {k: Rounds(v.base, v.candidate, v.margin, blocking=False) for k, v in others.items()}
    assert compare({"x": Rounds(base, candidate, 0.03), **advisory}, plan, [12])["x"].outcome == "fail"


@given(ratio=st.floats(0.5, 2), spread=st.floats(0, 0.2), n=st.integers(2, 12), seed=st.integers(0, 99))
@settings(deadline=None, max_examples=60)
def test_bounds_and_outcome_agree_whatever_the_rounds(ratio: float, spread: float, n: int, seed: int) -> None:
    base, candidate = _pairs(n, ratio, spread, seed)
    c = compare({"x": Rounds(base, candidate, 0.03)}, LookPlan((n,)), [n])["x"]
    assert c.ratio is not None
    assert c.ratio.low <= c.ratio.ratio * (1 + 1e-12)
    assert c.ratio.ratio <= c.ratio.high * (1 + 1e-12)
    assume(all(abs(end / 1.03 - 1) > 1e-9 for end in (c.ratio.low, c.ratio.high)))  # on the margin but for rounding
    assert (c.outcome == "pass") == (c.ratio.high <= 1.03)
    assert (c.outcome == "fail") == (c.ratio.low > 1.03)
