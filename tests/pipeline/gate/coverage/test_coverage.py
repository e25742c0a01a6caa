"""Bounds on what the intervals cover and the looks spend, with fixed seeds; the whole table: python -m ...coverage."""

from __future__ import annotations

import math

import pytest

from pipeline.gate.statistics.looks import SPENDING, Spending
from tests.pipeline.gate.coverage.intervals import Case, cases
from tests.pipeline.gate.coverage.rates import Rule, rates, rules
from tests.pipeline.gate.coverage.spending import ALPHA, spent_by

LEAST, MOST = 0.94, 0.965


@pytest.mark.parametrize("case", cases(), ids=lambda c: f"{c.method}: {c.data}")
def test_an_interval_covers_what_it_says(case: Case) -> None:
    row = case.row()
    assert row.covered >= LEAST, row
    if not case.conservative:
        assert row.covered <= MOST, row


@pytest.mark.parametrize("looks", range(1, 6))
@pytest.mark.parametrize("spending", list(SPENDING))
def test_the_looks_spend_the_error_and_no_more(looks: int, spending: Spending) -> None:
    found = spent_by(looks, spending)
    sampling = math.sqrt(ALPHA * (1 - ALPHA) / found.draws)
    assert abs(found.share - ALPHA) <= 0.003 + 2 * sampling, found
    if looks > 1:
        assert found.each_look_at_full / found.draws > ALPHA + 0.015


@pytest.mark.parametrize("rule", rules(), ids=lambda r: r.name)
def test_a_rule_lets_no_more_bad_builds_through_than_it_says(rule: Rule) -> None:
    """Four hundred runs, so two and a half standard errors are allowed on top; what a rule is for, it does mostly."""
    draws = 400
    found, alpha = rates(rule, draws), 1 - rule.confidence
    assert found.false_pass <= alpha + 2.5 * math.sqrt(alpha * (1 - alpha) / draws), found
    assert found.false_fail <= alpha / 2, found
    assert found.passes_good >= 0.7, found
    assert found.fails_bad >= 0.7, found
