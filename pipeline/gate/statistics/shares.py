"""Shares: how often something happens, with exact bounds, and a limit on it judged.

A rule is a non-inferiority test: it passes if the bad end of its interval is inside the limit, fails if the good end
is outside, and is undecided otherwise. Every bound is one-sided at the stated confidence.
"""

from __future__ import annotations

import math
from typing import Literal

from scipy import special

Outcome = Literal["pass", "fail", "undecided"]


def share_interval(k: float, n: float, confidence: float) -> tuple[float, float]:
    """Lower and upper bound on a share, ``k`` of ``n``, each at ``confidence`` (Clopper and Pearson 1934).

    ``k`` and ``n`` may be fractional: an effective sample is.
    """
    if n <= 0:
        return 0.0, 1.0
    low = 0.0 if k <= 0 else float(special.betaincinv(k, n - k + 1, 1 - confidence))
    high = 1.0 if k >= n else float(special.betaincinv(k + 1, n - k, confidence))
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
    return 1.0 if k <= 0 or n <= 0 else float(special.betainc(k, n - k + 1, allowed))


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
