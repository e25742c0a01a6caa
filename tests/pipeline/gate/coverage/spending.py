"""How often a comparison at the margin ends in a wrong answer at any of its looks, for each number of looks."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats

from pipeline.gate.statistics.looks import SPENDING, LookPlan, Spending

DRAWS, MOST_PAIRS, ALPHA = 20_000, 20, 0.05


@dataclass(frozen=True)
class Spent:
    looks: int
    spending: Spending
    wrong: int  # draws in which one of the looks crossed its boundary
    each_look_at_full: int  # the same, had every look been judged at alpha
    draws: int

    @property
    def share(self) -> float:
        return self.wrong / self.draws


def spent_by(looks: int, spending: Spending, draws: int = DRAWS) -> Spent:
    """Log ratios whose truth is the margin itself; Student's t at each look, at the plan's nominal level."""
    plan = LookPlan(tuple(round((k + 1) * MOST_PAIRS / looks) for k in range(looks)), ALPHA, spending)
    d = np.random.default_rng([looks, len(spending)]).normal(size=(draws, MOST_PAIRS))
    wrong, naive = np.zeros(draws, dtype=bool), np.zeros(draws, dtype=bool)
    for k, n in enumerate(plan.at):
        t = d[:, :n].mean(axis=1) / (d[:, :n].std(axis=1, ddof=1) / math.sqrt(n))
        wrong |= t > stats.t.isf(plan.level(plan.at[: k + 1]), n - 1)
        naive |= t > stats.t.isf(ALPHA, n - 1)
    return Spent(looks, spending, int(wrong.sum()), int(naive.sum()), draws)


def all_spent() -> list[Spent]:
    return [spent_by(looks, spending) for spending in SPENDING for looks in range(1, 6)]


def table(rows: list[Spent]) -> str:
    head = "| spending | looks | wrong, of 5 % | had each look been judged at 5 % |\n| --- | --- | --- | --- |\n"
    return head + "\n".join(
        f"| {r.spending} | {r.looks} | {r.share:.2%} | {r.each_look_at_full / r.draws:.1%} |" for r in rows
    )
