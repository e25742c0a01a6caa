"""Limits on a quantile, judged by the share of samples over them (absolute limits on P95 and P99)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.gate.statistics.shares import Outcome, judge_share, needed_for_pass, share_interval, share_p_value

Floats = NDArray[np.float64]


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
