"""What the gate would do, drawn again from pairs of rounds that were measured: comparisons that there is no time for.

The pairs are those of A/A comparisons (``aa.jsonl``), all blocking figures of a pair together, drawn with replacement.
Where a pair stands at a place whose other side is first, its sides change names, which between identical builds is as
likely. A slowdown is added to the logarithms of its part's figures; the comparison is then looked at and judged as
``seatrial ab`` does it. The interval is the bootstrap over comparisons (Efron and Tibshirani 1993, chapter 6): pairs of
one share a state of the machine, and of states that no comparison met it says nothing.
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
DRAWS, POOLS, DRAWS_OF_A_POOL = 1000, 50, 200
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class _Pool:
    """``worse``: [pairs, figures], the logarithm of how many times worse; ``base_first``: [pairs]."""

    figures: list[str]
    worse: Floats
    base_first: NDArray[np.bool_]
    pair_s: float


def resample(comparisons: Sequence[Comparison], digest: str, seed: int = 20261129) -> Resampled:
    """
    Args:
        comparisons: A/A, as they were recorded; those under the policy of the last one count, and are judged by it.
        digest: of their record.

    Raises:
        SeatrialError: they hold fewer than ``LEAST_PAIRS`` pairs.
    """
    mine = [c for c in (of_one_policy(comparisons) if comparisons else []) if all(c.worse.values())]
    if (pairs := sum(len(c.base_first) for c in mine)) < LEAST_PAIRS:
        raise SeatrialError(
            f"the A/A record holds {pairs} pairs of rounds under its last policy, expected at least {LEAST_PAIRS}: "
            "`seatrial drill --aa N` measures more"
        )
    rng = np.random.default_rng(seed)
    cases = [None, *(Planted(part=part, percent=p) for part in PARTS for p in PERCENTS)]
    return Resampled(
        aa_sha256=digest,
        settings=mine[-1].settings,
        comparisons=len(mine),
        pairs=pairs,
        pair_s=round(_pool(mine).pair_s, 2),
        draws=DRAWS,
        shares=[_share(planted, mine, rng) for planted in cases],
    )


def _pool(comparisons: Sequence[Comparison]) -> _Pool:
    figures = list(comparisons[-1].worse)
    return _Pool(
        figures,
        np.concatenate([np.array([c.worse[f] for f in figures]).T for c in comparisons]),
        np.concatenate([c.base_first for c in comparisons]),
        60 * sum(c.minutes for c in comparisons) / (sum(c.rounds for c in comparisons) / 2),
    )


def _share(planted: Planted | None, comparisons: Sequence[Comparison], rng: np.random.Generator) -> Share:
    params, pool = comparisons[-1].settings, _pool(comparisons)
    more = _added(planted, pool.figures)
    verdicts: Counter[str] = Counter()
    minutes = 0.0
    for _ in range(DRAWS):
        verdict, pairs = _drawn(pool, more, params, rng)
        verdicts[verdict] += 1
        minutes += pairs * pool.pair_s / 60 / DRAWS
    held = []
    for _ in range(POOLS):
        others = _pool([comparisons[i] for i in rng.integers(0, len(comparisons), len(comparisons))])
        held.append(
            sum(_drawn(others, more, params, rng)[0] == "hold" for _ in range(DRAWS_OF_A_POOL)) / DRAWS_OF_A_POOL
        )
    low, high = (round(float(x), 3) for x in np.quantile(held, (0.025, 0.975)))
    return Share(
        planted=planted,
        held=verdicts["hold"] / DRAWS,
        shipped=verdicts["ship"] / DRAWS,
        held_interval=None if low == high else (low, high),
        mean_minutes=round(minutes, 2),
    )


def _added(planted: Planted | None, figures: Sequence[str]) -> Floats:
    if planted is None:
        return np.zeros(len(figures))
    of_it = [f.startswith(f"{planted.part}/") for f in figures]
    return np.where(of_it, math.log1p(planted.percent / 100), 0.0)


def _drawn(pool: _Pool, more: Floats, params: AbParams, rng: np.random.Generator) -> tuple[str, int]:
    """The verdict of one comparison, and after how many pairs."""
    plan = plan_looks(pairs_in(params.budget_minutes * 60, pool.pair_s), params)
    rows = rng.integers(0, len(pool.worse), plan.at[-1])
    order = [base_first(i) for i in range(plan.at[-1])]
    as_they_were = pool.base_first[rows] == np.array(order)
    times = np.exp(pool.worse[rows] * np.where(as_they_were, 1, -1)[:, None] + more)
    for k, n in enumerate(plan.at, 1):
        figures = {
            name: Rounds([1.0] * n, times[:n, i].tolist(), params.margin_percent / 100, order[:n])
            for i, name in enumerate(pool.figures)
        }
        found = compare(figures, plan, plan.at[:k], final=k == len(plan.at))
        verdict, _ = verdict_of({_name(name): c for name, c in found.items()}, {})
        if verdict != "undecided":
            return verdict, n
    return "undecided", plan.at[-1]


def _name(figure: str) -> tuple[str, str]:
    stage, _, name = figure.partition("/")
    return stage, name
