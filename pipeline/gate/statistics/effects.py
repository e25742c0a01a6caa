"""How large a difference is, for display. No rule decides by these: rules decide by the bounds of their own tests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Floats = NDArray[np.float64]
MOST_SHIFTS = 25_000_000  # pairwise differences held in memory at once: 200 MB


@dataclass(frozen=True)
class Shift:
    """Hodges-Lehmann shift, candidate minus base, with a two-sided interval; in the unit of the samples."""

    shift: float
    low: float
    high: float
    confidence: float


def hodges_lehmann(base: Sequence[float], candidate: Sequence[float], confidence: float = 0.95) -> Shift:
    """Median of all differences between a candidate's and a base's sample (Hodges and Lehmann 1963): by how much one
    distribution lies beside the other, whatever their tails do. The interval inverts the Mann-Whitney test in its
    normal approximation (Hollander, Wolfe and Chicken 2014, section 4.3): for independent samples, hence display.

    Raises:
        ValueError: an empty side, a sample that is not finite, or more pairs than fit into memory (draw fewer).
    """
    a, b = _finite(base), _finite(candidate)
    if len(a) * len(b) > MOST_SHIFTS:
        raise ValueError(f"{len(a)} by {len(b)} differences; at most {MOST_SHIFTS}: draw a part of the samples")
    d = np.sort(np.subtract.outer(b, a).ravel())
    m, n, z = len(a), len(b), float(stats.norm.ppf((1 + confidence) / 2))
    rank = math.floor(m * n / 2 - z * math.sqrt(m * n * (m + n + 1) / 12))
    low, high = (float(d[rank - 1]), float(d[-rank])) if rank >= 1 else (-math.inf, math.inf)
    return Shift(float(np.median(d)), low, high, confidence)


def superiority(base: Sequence[float], candidate: Sequence[float]) -> float:
    """Probability that a candidate's sample is above a base's, ties counted half: 0.5 where nothing differs
    (Vargha and Delaney 2000, their A; Cliff's delta is 2 A - 1). Infinite samples (failures) are allowed.

    Raises:
        ValueError: an empty side, or a sample that is not a number.
    """
    a, b = np.sort(np.asarray(base, dtype=np.float64)), np.asarray(candidate, dtype=np.float64)
    if not len(a) or not len(b) or np.isnan(a).any() or np.isnan(b).any():
        raise ValueError(f"{len(a)} and {len(b)} samples: expected at least one of each, and numbers")
    below, not_above = np.searchsorted(a, b, side="left"), np.searchsorted(a, b, side="right")
    return float((below + not_above).mean() / (2 * len(a)))


def standardised_mean_change(base: Sequence[float], candidate: Sequence[float]) -> float:
    """Mean difference of pairs in standard deviations of the differences, with Hedges' correction for small samples
    (Hedges 1981; Gibbons, Hedeker and Davis 1993 for pairs). NaN is never returned: no spread is 0 or infinite.

    Raises:
        ValueError: fewer than 3 pairs, or sequences of unequal length.
    """
    if len(base) != len(candidate) or len(base) < 3:
        raise ValueError(f"{len(base)} and {len(candidate)} values: expected pairs, at least 3 of them")
    d = _finite(candidate) - _finite(base)
    mean, spread, freedom = float(d.mean()), float(d.std(ddof=1)), len(d) - 1
    if spread == 0:
        return math.copysign(math.inf, mean) if mean else 0.0
    correction = math.exp(math.lgamma(freedom / 2) - math.lgamma((freedom - 1) / 2)) / math.sqrt(freedom / 2)
    return correction * mean / spread


def _finite(values: Sequence[float]) -> Floats:
    x = np.asarray(values, dtype=np.float64)
    if not len(x) or not np.isfinite(x).all():
        raise ValueError(f"{len(x)} samples, {int((~np.isfinite(x)).sum())} of them not finite: no shift of those")
    return x
