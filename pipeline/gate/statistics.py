"""Intervals and sample sizes behind the rules. Every bound is one-sided at the stated confidence.

A rule is a non-inferiority test: it passes if the bad end of its interval is inside the limit, fails if the good end
is outside, and is undecided otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Outcome = Literal["pass", "fail", "undecided"]
Floats = NDArray[np.float64]
PROXY_QUANTILE = 0.9


def share_interval(k: float, n: float, confidence: float) -> tuple[float, float]:
    """Lower and upper bound on a share, ``k`` of ``n``, each at ``confidence`` (Clopper and Pearson 1934).

    ``k`` and ``n`` may be fractional: an effective sample is.
    """
    if n <= 0:
        return 0.0, 1.0
    low = 0.0 if k <= 0 else float(stats.beta.ppf(1 - confidence, k, n - k + 1))
    high = 1.0 if k >= n else float(stats.beta.ppf(confidence, k + 1, n - k))
    return low, high


def judge_share(k: float, n: float, allowed: float, confidence: float) -> Outcome:
    """Whether the share behind ``k`` of ``n`` is at most ``allowed``.

    With ``allowed = 1 - q`` this is the early-stopping rule for a limit on the quantile ``q`` (Reddi et al., "MLPerf
    Inference Benchmark", ISCA 2020, section IV): none over the limit passes a P95 at 95 % from 59 requests on, a P99
    from 299.
    """
    low, high = share_interval(k, n, confidence)
    if high <= allowed:
        return "pass"
    return "fail" if low > allowed else "undecided"


def needed_for_pass(k: float, n: float, allowed: float, confidence: float, most: int = 1_000_000) -> int | None:
    """Smallest sample that would pass if the share stayed as it is; None: no sample of up to ``most`` would."""
    share = k / n if n else 0.0
    if share >= allowed:
        return None
    low, high = max(1, math.ceil(n)), most
    if judge_share(share * high, high, allowed, confidence) != "pass":
        return None
    while low < high:
        middle = (low + high) // 2
        if judge_share(share * middle, middle, allowed, confidence) == "pass":
            high = middle
        else:
            low = middle + 1
    return high


def _indicators(samples: Floats, limit: float) -> list[Floats]:
    """1 where a sample is over a level, for two levels: the sample's own P90 and, where any is over it, the limit.

    Few or no samples over the limit say little of how they cluster (and the runs in which few are seen are just those
    that could pass wrongly), so the clustering at the lower level always counts too. Exceedances cluster less, not
    more, as the level rises in the processes met here (Leadbetter 1983, extremal index): this errs towards fewer
    effective samples.
    """
    levels = [np.quantile(samples, PROXY_QUANTILE, method="lower"), limit]
    return [over.astype(np.float64) for level in levels if 0 < (over := samples > level).sum() < len(samples)]


def serial_design_effect(samples: Sequence[float], limit: float) -> float:
    """How many times more samples in time order are needed than independent ones would be.

    1 + 2 sum of the autocorrelations of the indicator "over the level", up to the first within one standard error
    of nothing, 1/sqrt(n) (Geyer 1992, "Practical Markov Chain Monte Carlo", initial sequence estimators; Bartlett
    1946 for the error: summing on through the noise would double the answer for a few hundred samples). At least 1.
    """
    values = np.asarray(samples, dtype=np.float64)
    if len(values) < 3:
        return 1.0
    return max((_autocorrelation_time(x) for x in _indicators(values, limit)), default=1.0)


def _autocorrelation_time(indicator: Floats) -> float:
    n, x = len(indicator), indicator - indicator.mean()
    variance, total = float(x @ x), 0.0
    for lag in range(1, n // 2):
        rho = float(x[:-lag] @ x[lag:]) / variance
        if rho <= n**-0.5:
            break
        total += rho
    return 1.0 + 2.0 * total


def cluster_design_effect(samples: Sequence[float], clusters: Sequence[Hashable], limit: float) -> float:
    """Variance of the clustered share over that of a simple random sample (Kish 1965, section 5.4). At least 1."""
    values = np.asarray(samples, dtype=np.float64)
    n = len(values)
    if n < 3:
        return 1.0
    number: dict[Hashable, int] = {}
    index = np.asarray([number.setdefault(c, len(number)) for c in clusters])
    m = len(number)
    if m < 2:
        return float(n)
    worst = 1.0
    for x in _indicators(values, limit):
        p = float(x.mean())
        residual = np.bincount(index, weights=x - p, minlength=m)
        clustered = m / (m - 1) * float(residual @ residual) / n**2
        worst = max(worst, clustered / (p * (1 - p) / n))
    return worst


def quantile_interval(samples: Sequence[float], q: float, confidence: float) -> tuple[float, float] | None:
    """Distribution-free interval of a quantile from order statistics (Hahn and Meeker 1991, section 5.2), one-sided
    at each end; None where the sample is too small to have an upper end. Infinite samples (failures) are allowed.
    """
    ordered = sorted(samples)
    n = len(ordered)
    if n == 0:
        return None
    low = int(stats.binom.ppf(1 - confidence, n, q))
    high = int(stats.binom.ppf(confidence, n, q)) + 1
    if high > n:
        return None
    return ordered[max(low, 1) - 1], ordered[high - 1]


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
    half = float(stats.t.ppf(confidence, max(1, freedom))) * math.sqrt(variance) / n
    floor = max(1 - (1 - confidence) ** (1 / m), 1 / n)
    half = max(half, floor)
    lost, gained = int((d < 0).sum()), int((d > 0).sum())
    p = float(stats.binomtest(lost, lost + gained, 0.5).pvalue) if lost + gained else 1.0
    return Paired(delta, delta - half, delta + half, n, m, lost, gained, p)


def detectable_delta(n: int, disagreement: float, confidence: float, power: float = 0.8) -> float:
    """Smallest true loss that ``n`` pairs tell from none, at this share of differing pairs (Connor 1987, normal
    approximation): (z_confidence + z_power) sqrt(disagreement / n).
    """
    z = float(stats.norm.ppf(confidence) + stats.norm.ppf(power))
    return z * math.sqrt(disagreement / n)
