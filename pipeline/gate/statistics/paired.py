"""Two runs on the same items: the difference of their scores with an interval, and what such an interval can see."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats


@dataclass(frozen=True)
class Paired:
    """A paired difference of means, candidate minus reference."""

    delta: float
    low: float
    high: float
    n: int
    clusters: int
    lost: int
    gained: int
    mcnemar_p: float
    error: float  # standard error of delta
    freedom: int

    def p_worse(self, margin: float) -> float:
        """p-value of the test that the true loss exceeds ``margin``."""
        beyond = self.delta + margin
        if self.error == 0:
            return 0.0 if beyond < 0 else 1.0
        return float(stats.t.cdf(beyond / self.error, self.freedom))


def paired_delta(
    candidate: Sequence[float],
    reference: Sequence[float],
    strata: Sequence[str],
    clusters: Sequence[str],
    confidence: float,
) -> Paired:
    """Mean of ``candidate - reference`` with one-sided bounds at ``confidence``.

    The variance is that of a stratified cluster total (Cochran 1977, section 9A.2; Miller 2024, "Adding Error Bars to
    Evals", for its use on paired items): within each stratum the cluster sums vary about their mean. Where nearly
    nothing differs that variance is no evidence of equality: the half-width is never below the share of lost items
    that could hide behind none seen in as many clusters, ``1 - (1 - confidence)^(1/clusters)`` scaled to the items
    of a mean cluster, or a single item.

    Raises:
        ValueError: no items, or sequences of different length.
    """
    if not candidate or len({len(candidate), len(reference), len(strata), len(clusters)}) != 1:
        raise ValueError(
            f"lengths {len(candidate)}, {len(reference)}, {len(strata)}, {len(clusters)}: equal and not 0 expected"
        )
    d = np.asarray(candidate, dtype=np.float64) - np.asarray(reference, dtype=np.float64)
    n = len(d)
    sums: dict[str, dict[str, float]] = {}
    for value, stratum, cluster in zip(d.tolist(), strata, clusters, strict=True):
        sums.setdefault(stratum, {}).setdefault(cluster, 0.0)
        sums[stratum][cluster] += value
    variance, freedom, m = 0.0, 0, 0
    alone: list[float] = []
    for by_cluster in sums.values():
        totals = np.asarray(list(by_cluster.values()))
        m += len(totals)
        if len(totals) == 1:
            alone.append(float(totals[0]))
            continue
        variance += len(totals) / (len(totals) - 1) * float(((totals - totals.mean()) ** 2).sum())
        freedom += len(totals) - 1
    if alone:  # strata of one cluster: about their common mean, as if one stratum
        centre = float(np.mean(alone))
        variance += len(alone) / max(1, len(alone) - 1) * sum((a - centre) ** 2 for a in alone)
        freedom += max(0, len(alone) - 1)
    delta = float(d.mean())
    error, freedom = math.sqrt(variance) / n, max(1, freedom)
    half = float(stats.t.ppf(confidence, freedom)) * error
    floor = max(1 - (1 - confidence) ** (1 / m), 1 / n)
    half = max(half, floor)
    lost, gained = int((d < 0).sum()), int((d > 0).sum())
    p = float(stats.binomtest(lost, lost + gained, 0.5).pvalue) if lost + gained else 1.0
    return Paired(delta, delta - half, delta + half, n, m, lost, gained, p, error, freedom)


def detectable_delta(n: int, disagreement: float, confidence: float, power: float = 0.8) -> float:
    """Smallest true loss that ``n`` pairs tell from none, at this share of differing pairs (Connor 1987, normal
    approximation): (z_confidence + z_power) sqrt(disagreement / n).
    """
    z = float(stats.norm.ppf(confidence) + stats.norm.ppf(power))
    return z * math.sqrt(disagreement / n)
