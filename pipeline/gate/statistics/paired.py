"""Two runs on the same items: the difference of their scores with an interval, and what such an interval can see."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import optimize, special, stats

from pipeline.gate.statistics.clusters import ClusteredMean, clustered_mean, design_effect


@dataclass(frozen=True)
class Paired:
    """A paired difference of means, candidate minus reference, with one-sided bounds."""

    delta: float
    low: float
    high: float
    n: int
    lost: int
    gained: int
    mcnemar_p: float
    clustered: ClusteredMean
    score: Score

    @property
    def clusters(self) -> int:
        return self.clustered.clusters

    def p_worse(self, margin: float) -> float:
        """p-value of the test that the true loss exceeds ``margin``."""
        return self.score.p_below(-margin)


@dataclass(frozen=True)
class Score:
    """Tango's score statistic for a paired difference (1998, "Equivalence test and confidence interval for the
    difference in proportions for the paired-sample design", Statistics in Medicine 17), on effective pairs.

    It takes the variance where the difference is what is tested, not where it was seen: losses are rare, and a run
    that happens to lose few would otherwise be sure of it too (the t-interval lets 10 % of builds at the margin pass
    where it says 5). ``lost`` and ``gained``: mean score lost and gained per pair. ``pairs``: how many independent
    pairs these are worth (``clusters.design_effect``). The variance follows from the share tested, so the statistic is
    normal and needs no Student's t.
    """

    lost: float
    gained: float
    pairs: float

    def statistic(self, difference: float) -> float:
        """Falls as ``difference`` rises; 0 at the one that was seen."""
        b, c, x = self.gained, self.lost, difference
        linear = -b - c + (2 - b + c) * x
        restricted = (math.sqrt(max(0.0, linear**2 + 8 * c * x * (1 - x))) - linear) / 4  # share lost, if x were true
        variance = 2 * restricted + x * (1 - x)
        away = b - c - x
        if away == 0 or variance <= 0:
            return math.copysign(math.inf, away) if away else 0.0
        return away * math.sqrt(self.pairs / variance)

    def p_below(self, limit: float) -> float:
        """p-value of the test that the true difference is below ``limit``."""
        return float(special.ndtr(self.statistic(limit)))

    def bounds(self, confidence: float) -> tuple[float, float]:
        """One-sided bounds, each at ``confidence``."""
        z, seen, edge = float(special.ndtri(confidence)), self.gained - self.lost, 1 - 1e-9

        def end(target: float, outermost: float) -> float:
            if seen == outermost or (self.statistic(outermost) - target) * target <= 0:
                return math.copysign(1.0, outermost)
            return float(optimize.brentq(lambda x: self.statistic(x) - target, outermost, seen))

        return end(z, -edge), end(-z, edge)


def paired_delta(
    candidate: Sequence[float],
    reference: Sequence[float],
    strata: Sequence[str],
    clusters: Sequence[str],
    confidence: float,
) -> Paired:
    """Mean of ``candidate - reference`` with one-sided bounds at ``confidence``.

    The bounds are those of :class:`Score`. Where nothing was lost that is no evidence that nothing can be: the lower
    bound is no nearer than the share that could hide behind none seen, ``1 - (1 - confidence)^(1/pairs)``, exactly;
    the upper one likewise where nothing was gained.

    Raises:
        ValueError: no items, or sequences of different length.
    """
    if not candidate or len({len(candidate), len(reference), len(strata), len(clusters)}) != 1:
        raise ValueError(
            f"lengths {len(candidate)}, {len(reference)}, {len(strata)}, {len(clusters)}: equal and not 0 expected"
        )
    d = np.asarray(candidate, dtype=np.float64) - np.asarray(reference, dtype=np.float64)
    n = len(d)
    mean = clustered_mean(d, strata, clusters)
    mass_lost, mass_gained = float(np.maximum(-d, 0).mean()), float(np.maximum(d, 0).mean())
    score = Score(mass_lost, mass_gained, n / design_effect(d, strata, clusters))
    low, high = score.bounds(confidence)
    hidden = 1 - (1 - confidence) ** (1 / score.pairs)
    low = low if mass_lost else min(low, mean.mean - hidden)
    high = high if mass_gained else max(high, mean.mean + hidden)
    lost, gained = int((d < 0).sum()), int((d > 0).sum())
    return Paired(mean.mean, low, high, n, lost, gained, mcnemar(lost, gained), mean, score)


def mcnemar(lost: int, gained: int) -> float:
    """Exact two-sided p-value that as many items are lost as gained (McNemar 1947; the binomial test on the items
    that differ). It takes items for independent: where they share sources it is for display.
    """
    return float(stats.binomtest(lost, lost + gained, 0.5).pvalue) if lost + gained else 1.0


@dataclass(frozen=True)
class Flips:
    """Items whose outcome differs between two runs, by id; the net effect may be nothing while many flip."""

    lost: tuple[str, ...]
    gained: tuple[str, ...]
    n: int

    @property
    def share(self) -> float:
        """Share of items that differ (Dutta et al. 2024, "Accuracy is Not All You Need": flips)."""
        return (len(self.lost) + len(self.gained)) / self.n if self.n else 0.0


def flips(candidate: Mapping[str, float], reference: Mapping[str, float]) -> Flips:
    """Which items score lower and which higher than in the reference.

    Raises:
        ValueError: the two were not asked the same items.
    """
    if candidate.keys() != reference.keys():
        odd = sorted(candidate.keys() ^ reference.keys())
        raise ValueError(f"{len(odd)} items were asked of one only, for instance {odd[0]}")
    lost = tuple(k for k in candidate if candidate[k] < reference[k])
    return Flips(lost, tuple(k for k in candidate if candidate[k] > reference[k]), len(candidate))


def detectable_delta(n: int, disagreement: float, confidence: float, power: float = 0.8) -> float:
    """Smallest true loss that ``n`` pairs tell from none, at this share of differing pairs (Connor 1987, normal
    approximation): (z_confidence + z_power) sqrt(disagreement / n).
    """
    z = float(stats.norm.ppf(confidence) + stats.norm.ppf(power))
    return z * math.sqrt(disagreement / n)
