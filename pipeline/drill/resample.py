"""What the gate would do, drawn again from pairs of rounds that were measured: comparisons that there is no time for.

The pairs are those of A/A comparisons (``aa.jsonl``), all blocking figures of a pair together. A comparison is drawn
with replacement, each pair with its sides as they were or the other way round, which between identical builds is as
likely; a slowdown is added to the logarithms of its part's figures. It is then looked at and judged as ``seatrial ab``
judges. What it cannot show is a state of the machine that no pair was measured in: the interval holds the chance of
which pairs were (the bootstrap over them: Efron and Tibshirani 1993, chapter 6) and of the draws, nothing more.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.ab.decide import pairs_in, plan_looks, verdict_of
from pipeline.ab.rounds import base_first
from pipeline.drill.comparisons import Comparison, Part, Planted, of_one_policy
from pipeline.drill.resampled import Resampled, Share
from pipeline.errors import SeatrialError
from pipeline.gate.statistics.compare import Rounds, compare
from pipeline.params import AbParams

PERCENTS = (3.0, 5.0, 7.0, 10.0, 15.0)
PARTS: tuple[Part, ...] = ("prefill", "decode")  # and the stages of the profile that each slows down
LEAST_PAIRS = 20  # fewer show too little of what the machine does
DRAWS, POOLS, DRAWS_OF_A_POOL = 1000, 40, 50
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class _Pool:
    """``worse``: [pairs, figures], the logarithm of how many times worse."""

    figures: list[str]
    worse: Floats
    pair_s: float


def resample(comparisons: Sequence[Comparison], digest: str, params: AbParams, seed: int = 20261129) -> Resampled:
    """
    Args:
        comparisons: A/A, as they were recorded; those under the policy of the last one count.
        digest: of their record.

    Raises:
        SeatrialError: they hold fewer than ``LEAST_PAIRS`` pairs.
    """
    pool, counted = _pool(comparisons)
    rng = np.random.default_rng(seed)
    cases = [None, *(Planted(part=part, percent=p) for part in PARTS for p in PERCENTS)]
    return Resampled(
        aa_sha256=digest,
        comparisons=counted,
        pairs=len(pool.worse),
        pair_s=round(pool.pair_s, 2),
        draws=DRAWS,
        shares=[_share(planted, pool, params, rng) for planted in cases],
    )


def _pool(comparisons: Sequence[Comparison]) -> tuple[_Pool, int]:
    mine = [c for c in (of_one_policy(comparisons) if comparisons else []) if c.worse and all(c.worse.values())]
    pairs = sum(len(next(iter(c.worse.values()))) for c in mine)
    if pairs < LEAST_PAIRS:
        raise SeatrialError(
            f"the A/A record holds {pairs} pairs of rounds under its last policy, expected at least {LEAST_PAIRS}: "
            "`seatrial drill --aa N` measures more"
        )
    figures = list(mine[-1].worse)
    worse = np.concatenate([np.array([c.worse[f] for f in figures]).T for c in mine])
    return _Pool(figures, worse, 60 * sum(c.minutes for c in mine) / (sum(c.rounds for c in mine) / 2)), len(mine)


def _share(planted: Planted | None, pool: _Pool, params: AbParams, rng: np.random.Generator) -> Share:
    more = _added(planted, pool.figures)
    verdicts: Counter[str] = Counter()
    minutes = 0.0
    for _ in range(DRAWS):
        verdict, pairs = _drawn(pool, pool.worse, more, params, rng)
        verdicts[verdict] += 1
        minutes += pairs * pool.pair_s / 60 / DRAWS
    held = []
    for _ in range(POOLS):
        again = pool.worse[rng.integers(0, len(pool.worse), len(pool.worse))]
        of_pool = [_drawn(pool, again, more, params, rng)[0] for _ in range(DRAWS_OF_A_POOL)]
        held.append(of_pool.count("hold") / DRAWS_OF_A_POOL)
    low, high = np.quantile(held, (0.025, 0.975))
    return Share(
        planted=planted,
        held=verdicts["hold"] / DRAWS,
        shipped=verdicts["ship"] / DRAWS,
        held_interval=(round(float(low), 3), round(float(high), 3)),
        mean_minutes=round(minutes, 2),
    )


def _added(planted: Planted | None, figures: Sequence[str]) -> Floats:
    if planted is None:
        return np.zeros(len(figures))
    of_it = [f.startswith(f"{planted.part}/") for f in figures]
    return np.where(of_it, math.log1p(planted.percent / 100), 0.0)


def _drawn(pool: _Pool, worse: Floats, more: Floats, params: AbParams, rng: np.random.Generator) -> tuple[str, int]:
    """The verdict of one comparison, and after how many pairs."""
    plan = plan_looks(pairs_in(params.budget_minutes * 60, pool.pair_s), params)
    most = plan.at[-1]
    rows = worse[rng.integers(0, len(worse), most)] * rng.choice((-1.0, 1.0), (most, 1)) + more
    times = np.exp(rows)
    order = [base_first(i) for i in range(most)]
    for k, n in enumerate(plan.at, 1):
        figures = {
            name: Rounds([1.0] * n, times[:n, i].tolist(), params.margin_percent / 100, order[:n])
            for i, name in enumerate(pool.figures)
        }
        found = compare(figures, plan, plan.at[:k], final=k == len(plan.at))
        verdict, _ = verdict_of({_name(name): c for name, c in found.items()}, {})
        if verdict != "undecided":
            return verdict, n
    return "undecided", most


def _name(figure: str) -> tuple[str, str]:
    stage, _, name = figure.partition("/")
    return stage, name
