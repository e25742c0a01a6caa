"""Correlation between neighbouring windows, and a choice of windows in which little of it is left."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import ndtri
from scipy.stats import rankdata

from pipeline.load.analysis.signals import Floats, Signal, Windows, windows

COUNTS = (40, 30, 24, 18, 14)
FEWEST = 10
LITTLE = 0.3  # correlation of neighbours up to which windows are not merged further
_LEAST = {0.5: 8, 0.95: 20, 0.99: 100}


def normal_scores(v: Floats) -> Floats:
    """Ranks as normal quantiles (van der Waerden): failures at +inf are merely the largest."""
    return np.asarray(ndtri(rankdata(v) / (len(v) + 1)), dtype=np.float64)


def correlation(v: Floats) -> float:
    """Lag-one correlation from differences, 1 + rho = E(x[t+2]-x[t])^2 / E(x[t+1]-x[t])^2, which a single step hardly
    touches (the largest difference, where it would sit, is left out); a drift must be taken out before. At least 0.
    """
    z = normal_scores(v)
    one, two = np.sort(np.diff(z) ** 2)[:-1], np.sort((z[2:] - z[:-2]) ** 2)[:-2]
    if len(two) < 3 or one.mean() <= 0:
        return 0.0
    return float(min(max(two.mean() / one.mean() - 1, 0.0), 0.95))


def cautious(rho: float, n: int) -> float:
    """``rho`` of ``n`` windows plus one standard error: to take a correlation for too small makes false alarms."""
    return min(rho + math.sqrt((1 - rho**2) / n), 0.95)


def slope(w: Windows) -> float:
    """Theil and Sen's: the median of the slopes between all pairs of windows; 0 where most are infinite."""
    i, j = np.triu_indices(len(w.v), 1)
    with np.errstate(invalid="ignore"):  # of two infinite windows
        rise = w.v[j] - w.v[i]
    found = float(np.median((rise / (w.t_s[j] - w.t_s[i]))[~np.isnan(rise)]))
    return found if math.isfinite(found) else 0.0


def best_windows(signal: Signal, q: float) -> Windows | None:
    """The most windows, up to 40, that have enough samples for the quantile and are nearly uncorrelated (batch means:
    Law and Carson 1979); None where even the fewest do not fill :data:`FEWEST` windows.
    """
    found: Windows | None = None
    for count in COUNTS:
        w = windows(signal, count, q, _LEAST[q])
        if len(w.v) < max(FEWEST, 0.8 * count):
            continue
        found = w
        if correlation(w.v - slope(w) * w.t_s) <= LITTLE:
            break
    return found
