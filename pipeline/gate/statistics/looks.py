"""A fixed number of looks at growing data, sharing one error: alpha spending.

Whoever looks after every round and stops at the first answer that suits errs far more often than the interval says.
So the looks are planned, each spends a part of the error, and the parts add up to it, whatever happens in between.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.polynomial.legendre import leggauss
from scipy import optimize, special, stats

Spending = Literal["obrien_fleming", "pocock"]
NODES = 160  # of the Gauss-Legendre rule over the region in which a look goes on: boundaries are good to 1e-6
REACH = 9.0  # standard deviations: what lies further out weighs 1e-19


def _obrien_fleming(t: float, alpha: float) -> float:
    return 2 * float(stats.norm.sf(stats.norm.isf(alpha / 2) / math.sqrt(t)))


def _pocock(t: float, alpha: float) -> float:
    return alpha * math.log(1 + (math.e - 1) * t)


SPENDING: dict[Spending, Callable[[float, float], float]] = {"obrien_fleming": _obrien_fleming, "pocock": _pocock}


def spent(fraction: float, alpha: float, spending: Spending) -> float:
    """Error spent once ``fraction`` of the data is in (Lan and DeMets 1983, "Discrete sequential boundaries for
    clinical trials", Biometrika 70, their alpha_1 and alpha_2): nothing at 0, ``alpha`` at 1. The O'Brien-Fleming type
    keeps nearly all of it for the end, the Pocock type spends it evenly.

    Raises:
        ValueError: a fraction outside 0..1 or an alpha outside 0..0.5.
    """
    if not 0 <= fraction <= 1 or not 0 < alpha < 0.5:
        raise ValueError(f"fraction {fraction:g} and alpha {alpha:g}: expected 0 to 1, and above 0 and below 0.5")
    return 0.0 if fraction == 0 else SPENDING[spending](fraction, alpha)


@lru_cache(maxsize=512)
def boundaries(information: tuple[float, ...], cumulative: tuple[float, ...]) -> tuple[float, ...]:
    """One-sided boundaries of a z statistic: crossing one of the first k has probability ``cumulative[k]`` where
    nothing is there to be found.

    ``information[k]``: the data at look k, in any unit (rounds). Sums of independent rounds have independent
    increments, so the density of the sum, where no boundary was crossed yet, follows from that at the look before by
    one integral (Armitage, McPherson and Rowe 1969; Jennison and Turnbull 2000, section 19.2). A look that may spend
    nothing has the boundary +inf.

    Raises:
        ValueError: information that does not grow from look to look, or an error that shrinks.
    """
    if len(information) != len(cumulative) or not information:
        raise ValueError(f"{len(information)} looks and {len(cumulative)} errors: expected as many, and at least one")
    if information[0] <= 0 or any(b <= a for a, b in pairwise(information)):
        raise ValueError(f"the data at the looks, {information}, must grow from look to look")
    if cumulative[0] < 0 or any(b < a for a, b in pairwise(cumulative)):
        raise ValueError(f"the error spent, {cumulative}, must not shrink from look to look")
    abscissae, weights = leggauss(NODES)
    found: list[float] = []
    points, mass = np.zeros(1), np.ones(1)  # where the sum may be, and how likely, while no boundary was crossed
    before_t, before = 0.0, 0.0
    for t, alpha in zip(information, cumulative, strict=True):
        step, allowed = math.sqrt(t - before_t), alpha - before
        root = math.sqrt(t)

        def over(b: float, p: np.ndarray = points, m: np.ndarray = mass, s: float = step, a: float = allowed) -> float:
            return float(m @ special.ndtr((p - b) / s)) - a

        top = REACH * root
        bound = math.inf if over(top) >= 0 or allowed <= 0 else float(optimize.brentq(over, -top, top, xtol=1e-12))
        found.append(bound / root)
        low, high = -top, min(bound, top)
        nodes = (high - low) / 2 * abscissae + (high + low) / 2
        apart = (nodes[:, None] - points[None, :]) / step
        density = np.exp(-0.5 * apart**2) @ mass / (step * math.sqrt(2 * math.pi))
        points, mass = nodes, (high - low) / 2 * weights * density
        before_t, before = t, alpha
    return tuple(found)


@dataclass(frozen=True)
class LookPlan:
    """When a growing comparison is looked at, and how the looks share the error ``alpha`` (one-sided).

    ``at``: the number of pairs of rounds at each look, growing; the last is the most that will be run.
    """

    at: tuple[int, ...]
    alpha: float = 0.05
    spending: Spending = "pocock"

    def __post_init__(self) -> None:
        if not self.at or self.at[0] < 2 or any(b <= a for a, b in pairwise(self.at)):
            raise ValueError(f"looks at {self.at} pairs of rounds: expected growing numbers from 2 on")
        spent(1.0, self.alpha, self.spending)

    def level(self, counts: Sequence[int], *, final: bool = False, alpha: float | None = None) -> float:
        """Nominal one-sided error of the look that has ``counts[-1]`` pairs, after looks at the counts before it.

        The counts are those that were there, which may differ from the planned ones (a void round is dropped). At the
        last planned look, or one made the last by an exhausted budget (``final``: decided by the clock, never by the
        figures), all that is left of the error is spent. ``alpha``: a share of the plan's, where several comparisons
        share it. An interval at ``1 - level`` at each look covers at all of them with ``1 - alpha`` (repeated
        confidence intervals: Jennison and Turnbull 1989). For t statistics the nominal level of z is kept (Jennison
        and Turnbull 2000, section 3.8), which a simulation in the tests holds to ``alpha``.

        Raises:
            ValueError: more looks than planned: their number is fixed in advance.
        """
        if not counts or len(counts) > len(self.at):
            raise ValueError(f"look {len(counts)} of {len(self.at)} planned: their number is fixed in advance")
        alpha = self.alpha if alpha is None else alpha
        share = [min(1.0, n / self.at[-1]) for n in counts]
        if final or len(counts) == len(self.at):
            share[-1] = 1.0
        cumulative = tuple(spent(f, alpha, self.spending) for f in share)
        return float(stats.norm.sf(boundaries(tuple(map(float, counts)), cumulative)[-1]))
