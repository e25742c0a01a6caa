"""The mean of values that come in clusters (items from one source), within strata (scenarios), with its error."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ClusteredMean:
    """``error``: standard error of the mean, with so many degrees of freedom."""

    mean: float
    error: float
    freedom: int
    clusters: int


def clustered_mean(values: Floats, strata: Sequence[str], clusters: Sequence[str]) -> ClusteredMean:
    """Mean of values in clusters within strata.

    Within each stratum the cluster sums vary about their mean (Cochran 1977, section 9A.2; Miller 2024, "Adding Error
    Bars to Evals", for its use on evaluation items). Strata of one cluster are taken together as one stratum: about
    their common mean, which errs towards a wider interval.
    """
    sums: dict[str, dict[str, float]] = {}
    for value, stratum, cluster in zip(values.tolist(), strata, clusters, strict=True):
        sums.setdefault(stratum, {}).setdefault(cluster, 0.0)
        sums[stratum][cluster] += value
    groups = [list(by_cluster.values()) for by_cluster in sums.values()]
    alone = [g[0] for g in groups if len(g) == 1]
    variance, freedom = 0.0, 0
    for totals in (np.asarray(g) for g in [*(g for g in groups if len(g) > 1), *([alone] if alone else [])]):
        k = len(totals)
        variance += k / max(1, k - 1) * float(((totals - totals.mean()) ** 2).sum())
        freedom += k - 1
    n, m = len(values), sum(map(len, groups))
    return ClusteredMean(float(values.mean()), math.sqrt(variance) / n, max(1, freedom), m)


def design_effect(values: Floats, strata: Sequence[str], clusters: Sequence[str]) -> float:
    """Variance of the mean of rarely different values in clusters, over that of as many independent ones (Kish 1965,
    section 5.4): 1 + icc (Sum m^2 / n - 1) for clusters of m values.

    The intraclass correlation is that of the pairs within clusters, between 0 and 1. It is told by the clusters in
    which anything differs; as if by one more of them, it is taken for 1. So where nothing differs a cluster counts as
    one value, where few do the estimate is not yet believed, and where many do the addition is of no weight.
    """
    codes = np.unique([f"{s}\0{c}" for s, c in zip(strata, clusters, strict=True)], return_inverse=True)[1]
    sizes = np.bincount(codes).astype(np.float64)
    n = len(values)
    worst = float((sizes**2).sum()) / n
    about = values - values.mean()
    spread, within = float((about**2).sum()), float((np.bincount(codes, about) ** 2).sum())
    telling = len(np.unique(codes[values != 0]))
    if worst <= 1 or spread <= 0:
        return worst
    icc = min(1.0, max(0.0, (within / spread - 1) / (worst - 1)))
    return (telling * (1 + icc * (worst - 1)) + worst) / (telling + 1)
