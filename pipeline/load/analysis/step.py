"""One sudden change of level: the largest standardised CUSUM over all moments, against simulated correlated windows.

Worked on normal scores of the windows, so that one wild window (or one of failures only) weighs no more than the
largest; the null distribution is that of a stationary first-order process with the windows' own correlation, taken one
standard error high (:mod:`serial`). The size is the difference of the medians on either side.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from pipeline.load.analysis.serial import cautious, correlation, normal_scores
from pipeline.load.analysis.signals import Floats, Windows, percent

_DRAWS = 1999
_POWER_Z = 0.84  # seen four times in five


@dataclass(frozen=True)
class Step:
    """``percent``: change of the level at ``at_s`` seconds into the stage. ``detectable_percent``: the step in the
    middle of the stage that would be seen four times in five.
    """

    percent: float
    at_s: float
    p_value: float
    detectable_percent: float
    windows: int
    correlation: float


def _margin(n: int) -> int:
    """Fewest windows on either side: a step at the very end cannot be told from one odd window."""
    return max(3, n // 8)


def _cusum(z: Floats) -> Floats:
    """[..., n - 2 margin + 1]: how far the mean before each moment is from the mean of all, standardised."""
    n, m = z.shape[-1], _margin(z.shape[-1])
    k = np.arange(1, n)
    c = np.cumsum(z - z.mean(-1, keepdims=True), axis=-1)[..., :-1]
    return np.asarray((np.abs(c) / np.sqrt(k * (n - k) / n))[..., m - 1 : n - m])


def _statistic(z: Floats) -> Floats:
    """The largest CUSUM in units of what is left when the step is taken out."""
    top = _cusum(z).max(-1)
    left = np.var(z, axis=-1) - top**2 / z.shape[-1]
    return np.asarray(top / np.sqrt(np.maximum(left, 1e-9)))


@lru_cache(maxsize=64)
def _null(n: int, rho: float) -> Floats:
    """Sorted statistics of ``n`` windows of a stationary process; the same draws every time."""
    rng = np.random.default_rng(n)
    noise = rng.standard_normal((_DRAWS, n))
    x = np.empty_like(noise)
    x[:, 0] = noise[:, 0]
    for i in range(1, n):
        x[:, i] = rho * x[:, i - 1] + math.sqrt(1 - rho**2) * noise[:, i]
    return np.sort(_statistic(x))


def step(w: Windows, alpha: float = 0.05) -> Step:
    """The likeliest step in the windows, whether or not it is significant."""
    n = len(w.v)
    z = normal_scores(w.v)
    k = int(np.argmax(_cusum(z))) + _margin(n)
    rho = math.ceil(cautious(correlation(w.v), n) * 20) / 20
    null = _null(n, min(rho, 0.95))
    p = float((1 + np.sum(null >= _statistic(z))) / (_DRAWS + 1))
    before, after = np.median(w.v[:k]), np.median(w.v[k:])
    residual = np.concatenate([w.v[:k] - before, w.v[k:] - after])
    spread = 1.4826 * float(np.median(np.abs(residual)))
    needed = 2 * (float(np.quantile(null, 1 - alpha)) + _POWER_Z) / math.sqrt(n) * spread
    return Step(
        percent(float(after - before)), float((w.t_s[k - 1] + w.t_s[k]) / 2), p, percent(needed), n, rho
    )  # fmt: skip
