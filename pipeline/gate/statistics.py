"""Shares, tails and effective sample sizes behind the rules. Every bound is one-sided at the stated confidence.

A rule is a non-inferiority test: it passes if the bad end of its interval is inside the limit, fails if the good end
is outside, and is undecided otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
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


def share_p_value(k: float, n: float, allowed: float) -> float:
    """Probability of ``k`` or more of ``n`` where the true share is ``allowed``: below ``1 - confidence`` just where
    :func:`judge_share` fails.
    """
    return 1.0 if k <= 0 or n <= 0 else float(stats.beta.cdf(allowed, k, n - k + 1))


def holm(p_values: Mapping[str, float], alphas: Mapping[str, float]) -> set[str]:
    """Which of several tests reject when all were looked at (Holm 1979): the smallest p against alpha/m, the next
    against alpha/(m-1), up to the first that does not.
    """
    rejected: set[str] = set()
    for rank, name in enumerate(sorted(p_values, key=lambda k: p_values[k])):
        if p_values[name] * (len(p_values) - rank) > alphas[name]:
            break
        rejected.add(name)
    return rejected


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


@dataclass(frozen=True)
class Tail:
    """A limit on a quantile, judged. ``low``, ``high``: bounds on the share over ``level``, which is the limit itself
    or a part of it (``limit / factor``); ``interval``: the limits between which the answer would be undecided.
    """

    outcome: Outcome
    factor: int
    level: float
    over: int
    n: int
    n_effective: float
    low: float
    high: float
    interval: tuple[float, float]
    p_value: float
    times_needed: float | None  # so many times this sample would pass if the shares stayed; None: none would


FACTORS = (1, 2, 4)


def judge_tail(
    samples: Sequence[float],
    limit: float,
    q: float,
    confidence: float,
    effective: Callable[[float], float],
    headroom: int = 1,
) -> Tail:
    """Whether the quantile ``q`` is at most ``limit``. Infinite samples are failures; ``effective(level)`` says how
    many independent samples these are worth at a level.

    A sample too small to pass even with none over the limit (59 effective ones at a P95 and 95 %) may be judged
    further down, where ``headroom`` allows it: at limit/2 with twice the share allowed, then at limit/4 with four
    times the share. That rests on one assumption on the tail, that the share over a level falls at least in
    proportion as the level rises, P(X > h u) <= P(X > u) / h: true of exponential and log-normal tails and of Pareto
    tails with a finite mean. It is wrong where the slow requests are a kind of their own, at and beyond the limit:
    those a short run may miss. The factor follows from the effective size alone, not from what lies over which
    level. So a short run that is far below its limit passes, and one that is near it stays undecided. A fail is
    always at the limit itself.

    Raises:
        ValueError: no samples, or one that is not a number.
    """
    values = np.asarray(samples, dtype=np.float64)
    if not len(values) or np.isnan(values).any():
        raise ValueError(f"{len(values)} samples, of which {int(np.isnan(values).sum())} are not a number")
    n, allowed = len(values), 1 - q
    at_limit = effective(limit)
    over_limit = int((values > limit).sum())
    p_value = share_p_value(over_limit * at_limit / n, at_limit, allowed)
    factor, level, size = 1, limit, at_limit
    for h in (f for f in FACTORS if f <= headroom and f * allowed < 0.5):
        factor, level, size = h, limit / h, effective(limit / h)
        if judge_share(0, size, h * allowed, confidence) == "pass":
            break
    over = int((values > level).sum())
    k = over * size / n
    outcome: Outcome = "pass" if judge_share(k, size, factor * allowed, confidence) == "pass" else "undecided"
    if p_value < 1 - confidence:
        outcome = "fail"
    if outcome == "fail":
        factor, level, over, size, k = 1, limit, over_limit, at_limit, over_limit * at_limit / n
    low, high = share_interval(k, size, confidence)
    ordered = np.sort(values)
    ends = (
        _lower_limit(ordered, at_limit, allowed, confidence),
        factor * _upper_limit(ordered, size, factor * allowed, confidence),
    )
    times = needed_for_pass(k, size, factor * allowed, confidence)
    return Tail(
        outcome, factor, level, over, n, size, low, high, ends, p_value, None if times is None else times / size
    )  # fmt: skip


def _upper_limit(ordered: Floats, effective: float, allowed: float, confidence: float) -> float:
    """Smallest limit that would pass: the sample above which only as many lie as may. +inf: none would.

    With ``effective == n`` both ends are those of the distribution-free interval from order statistics (Hahn and
    Meeker 1991, section 5.2).
    """
    n = len(ordered)
    most = _first(n, lambda k: judge_share(k * effective / n, effective, allowed, confidence) != "pass") - 1
    return float(ordered[n - 1 - most]) if most >= 0 else math.inf


def _lower_limit(ordered: Floats, effective: float, allowed: float, confidence: float) -> float:
    """Largest sample below which every limit would fail. -inf: none would."""
    n = len(ordered)
    least = _first(n, lambda k: judge_share(k * effective / n, effective, allowed, confidence) == "fail")
    return float(ordered[n - least]) if least <= n else -math.inf


def _first(n: int, holds: Callable[[int], bool]) -> int:
    """Smallest of 0..n for which ``holds``, which once true stays true; n + 1 if it never is."""
    low, high = 0, n + 1
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low
