"""Distribution-free intervals for quantiles, at the size that correlated samples are worth."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.special import betainc


def quantile_interval(
    ordered: Sequence[float], q: float, effective: float, confidence: float = 0.95
) -> tuple[float | None, float | None]:
    """Two order statistics between which the quantile ``q`` lies with ``confidence`` (Hahn and Meeker 1991, section
    5.2); None: the sample has no order statistic far enough out, so that end is open.

    The share of the distribution below the j-th of n sorted samples is beta distributed; with ``effective`` fewer
    independent samples than n, it is that of the same share of them. Failures (+inf) are samples like any other.

    Raises:
        ValueError: no samples, or effectively more than there are.
    """
    n = len(ordered)
    if not n or not 0 < effective <= n + 1e-9:
        raise ValueError(
            f"{n} samples worth {effective:g} independent ones; expected more than none and no more than n"
        )
    alpha = (1 - confidence) / 2
    upto = np.arange(1, n + 1) * (effective / n)  # of the effective samples, how many lie at or below the j-th
    below = upto - effective / n
    above = np.flatnonzero(betainc(upto, effective - upto + 1, q) <= alpha)
    under = np.flatnonzero(betainc(below + 1, effective - below, q) >= 1 - alpha)
    low = float(ordered[int(under[-1])]) if len(under) else None
    high = float(ordered[int(above[0])]) if len(above) else None
    return low, high
