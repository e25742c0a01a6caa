"""Length of answers against the reference's: a ratio of means with an interval, for a band."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from pipeline.gate.statistics.clusters import clustered_mean
from pipeline.gate.statistics.shares import Outcome


@dataclass(frozen=True)
class LengthRatio:
    """Mean length of the candidate's answers over the reference's, minus 1; bounds one-sided at the confidence."""

    change: float
    low: float
    high: float
    n: int
    clusters: int
    candidate_mean: float
    reference_mean: float


def length_ratio(
    candidate: Sequence[float], reference: Sequence[float], strata: Sequence[str], clusters: Sequence[str],
    confidence: float,
) -> LengthRatio:  # fmt: skip
    """Ratio of the two means over the same prompts, by linearisation: the ratio estimator's error is that of the mean
    of ``candidate - ratio * reference``, over the mean reference (Cochran 1977, section 6.3), clustered by source. The
    bounds are those of its logarithm: about the ratio itself the lower end errs twice as often as the upper.

    Raises:
        ValueError: fewer than two answers, sequences of unequal length, or a reference that wrote nothing.
    """
    a, b = np.asarray(candidate, dtype=np.float64), np.asarray(reference, dtype=np.float64)
    if len({len(a), len(b), len(strata), len(clusters)}) != 1 or len(a) < 2:
        raise ValueError(f"{len(a)} answers and {len(b)} of the reference: expected as many, and at least two")
    if b.sum() <= 0:
        raise ValueError("the reference wrote nothing, so no length is relative to it")
    ratio = float(a.sum() / b.sum())
    mean = clustered_mean(a - ratio * b, strata, clusters)
    half = float(special.stdtrit(mean.freedom, confidence)) * mean.error / float(b.mean())
    low, high = (ratio * math.exp(s * half / ratio) - 1 for s in (-1, 1)) if ratio > 0 else (-1.0, half - 1)
    return LengthRatio(ratio - 1, low, high, len(a), mean.clusters, float(a.mean()), float(b.mean()))


def judge_band(low: float, high: float, band: float) -> Outcome:
    """Equivalence: pass if the interval lies within ``-band .. band``, fail if outside it (two one-sided tests,
    Schuirmann 1987), undecided otherwise.
    """
    if -band <= low and high <= band:
        return "pass"
    return "fail" if high < -band or low > band else "undecided"
