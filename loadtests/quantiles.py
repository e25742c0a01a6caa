"""Quantiles of raw samples. No buckets, no interpolation: with +inf for failures the rank alone is meaningful."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction


def min_samples(q: float) -> int:
    """Fewest samples for which quantile ``q`` is more than another name for the largest: 1 / (1 - q), rounded up."""
    return math.ceil(1 / (1 - Fraction(str(q))))


def nearest_rank(ordered: Sequence[float], q: float) -> float:
    """The ceil(q n)-th smallest of samples that are sorted already (Hyndman and Fan 1996, definition 1).

    Raises:
        ValueError: no samples.
    """
    if not len(ordered):
        raise ValueError("no samples, so no quantile")
    return ordered[max(math.ceil(Fraction(str(q)) * len(ordered)), 1) - 1]
