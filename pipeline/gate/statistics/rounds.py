"""Two builds measured in interleaved rounds on one machine: the ratio of a quantile, with its interval.

The round is the unit (a fresh boot, warm-up, a slice of traffic): requests within a round are correlated, rounds are
not. Each pair of neighbouring rounds gives one log ratio, in which what both have in common cancels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import special

Floats = NDArray[np.float64]
Method = Literal["t", "crossover_t", "bootstrap_t"]
BOOTSTRAP_FROM = 20  # pairs: over fewer a bootstrap covers too little
RESAMPLES = 1000


@dataclass(frozen=True)
class Ratio:
    """Candidate over base. ``low`` and ``high`` are one-sided bounds, each at ``confidence``; ``log_error`` is the
    standard error of the log ratio. NaN and infinite figures do not occur: a failed side is in the counts.
    """

    ratio: float
    low: float
    high: float
    confidence: float
    pairs: int
    log_error: float
    freedom: int
    method: Method

    def p_above(self, limit: float) -> float:
        """p-value of the test that the true ratio is above ``limit`` (small: it is)."""
        return self._p(limit, upper=True)

    def p_below(self, limit: float) -> float:
        """p-value of the test that the true ratio is below ``limit`` (small: it is)."""
        return self._p(limit, upper=False)

    def _p(self, limit: float, upper: bool) -> float:
        away = math.log(self.ratio / limit) * (1 if upper else -1)
        if self.log_error == 0:
            return 0.0 if away > 0 else 1.0
        return float(special.stdtr(self.freedom, -away / self.log_error))


def ratio_by_round(
    base: Sequence[float],
    candidate: Sequence[float],
    confidence: float,
    *,
    base_first: Sequence[bool] | None = None,
    method: Literal["t", "bootstrap_t"] = "t",
    seed: int = 20261129,
) -> Ratio:
    """Ratio of a figure (a quantile of latency, a throughput) from its values by round, in pairs of neighbours.

    ``method="t"``: Student's interval on the mean of the log ratios. With ``base_first`` (which of the two ran first
    in each pair, as in A B B A) the mean is taken over both orders and the variance within each, for one degree of
    freedom: a machine that drifts, or a second boot that finds a warm page cache, then moves neither the estimate nor
    the width (the two-period crossover: Hills and Armitage 1979; Senn 2002, section 3.6).
    ``method="bootstrap_t"``, from 20 pairs on: the studentised bootstrap (Efron and Tibshirani 1993, section 12.5),
    for rounds whose ratios are skewed; never narrower than Student's (by itself it covers 93.5 to 94.5 % of a nominal
    95 at 20 pairs). Fewer pairs are refused: there it covers too little.

    Raises:
        ValueError: fewer than 2 pairs (3 with both orders, 2 at least of one), sequences of unequal length, a value
            that is not positive and finite (a failed round: see ``compare.compare``), or too few for a bootstrap.
    """
    a, b = np.asarray(base, dtype=np.float64), np.asarray(candidate, dtype=np.float64)
    if len(a) != len(b) or len(a) < 2:
        raise ValueError(f"{len(a)} rounds of the base and {len(b)} of the candidate: expected as many, and at least 2")
    if not (np.isfinite(a) & np.isfinite(b) & (a > 0) & (b > 0)).all():
        raise ValueError("a round without a positive, finite figure has no ratio")
    if not 0.5 < confidence < 1:
        raise ValueError(f"confidence {confidence:g}: expected one-sided, above 0.5 and below 1")
    d = np.log(b) - np.log(a)
    if method == "bootstrap_t":
        return _bootstrap_t(d, confidence, seed)
    first = None if base_first is None else np.asarray(base_first, dtype=bool)
    if first is not None and len(first) != len(d):
        raise ValueError(f"{len(d)} pairs, but the order of {len(first)}")
    if first is not None and len(d) >= 4 and 0 < first.sum() < len(d):
        x, y = d[first], d[~first]
        mean, freedom = float(x.mean() + y.mean()) / 2, len(d) - 2
        pooled = float(((x - x.mean()) ** 2).sum() + ((y - y.mean()) ** 2).sum()) / freedom
        error = math.sqrt(pooled * (1 / len(x) + 1 / len(y))) / 2
        kind: Method = "crossover_t"
    else:
        mean, freedom, error = float(d.mean()), len(d) - 1, float(d.std(ddof=1)) / math.sqrt(len(d))
        kind = "t"
    half = float(special.stdtrit(freedom, confidence)) * error
    low, high = math.exp(mean - half), math.exp(mean + half)
    return Ratio(math.exp(mean), low, high, confidence, len(d), error, freedom, kind)


def _bootstrap_t(d: Floats, confidence: float, seed: int) -> Ratio:
    n = len(d)
    if n < BOOTSTRAP_FROM:
        raise ValueError(f"{n} pairs of rounds: a bootstrap needs {BOOTSTRAP_FROM}, the t-interval does not")
    mean, error = float(d.mean()), float(d.std(ddof=1)) / math.sqrt(n)
    drawn = d[np.random.default_rng(seed).integers(0, n, (RESAMPLES, n))]  # [resamples, n]
    spread = drawn.std(axis=1, ddof=1)
    usable = spread > 0
    t = (drawn.mean(axis=1)[usable] - mean) / (spread[usable] / math.sqrt(n))
    if error == 0 or not len(t):
        low = high = mean
    else:
        student = float(special.stdtrit(n - 1, confidence))
        low = mean - error * max(student, float(np.quantile(t, confidence)))
        high = mean + error * max(student, -float(np.quantile(t, 1 - confidence)))
    return Ratio(math.exp(mean), math.exp(low), math.exp(high), confidence, n, error, n - 1, "bootstrap_t")
