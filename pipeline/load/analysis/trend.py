"""A slow drift over a stage: Theil and Sen's slope, judged by Mann and Kendall's test for correlated windows.

The variance of Kendall's S is that of Hamed and Rao (1998, J. Hydrol. 204, eq. 15) under first-order correlation, with
the correlation taken one standard error high and Student's t on what the windows are worth as independent ones: with
20 to 40 windows the plain correction rejects twice as often as it claims.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.stats import t as student

from pipeline.load.analysis import serial
from pipeline.load.analysis.signals import Windows, percent

_POWER_Z = 0.84  # seen four times in five


@dataclass(frozen=True)
class Trend:
    """Change over the whole stage, in percent of the value at its start, with a 95 % interval. ``detectable_percent``:
    the change that would be seen four times in five.
    """

    percent: float
    interval: tuple[float, float]
    p_value: float
    detectable_percent: float
    windows: int
    correlation: float


def trend(w: Windows, span_s: float, alpha: float = 0.05) -> Trend:
    """``span_s``: length of the stage, over which the slope is told."""
    n = len(w.v)
    i, j = np.triu_indices(n, 1)
    with np.errstate(invalid="ignore"):  # of two infinite windows
        rise = w.v[j] - w.v[i]
    slopes = np.sort((rise / (w.t_s[j] - w.t_s[i]))[~np.isnan(rise)])
    s = float(np.nansum(np.sign(rise)))
    slope = float(np.median(slopes))
    rho = serial.cautious(serial.correlation(w.v - serial.slope(w) * w.t_s), n)
    k = np.arange(1, n)
    ranks = 6 / np.pi * np.arcsin(rho**k / 2)
    inflation = 1 + 2 / (n * (n - 1) * (n - 2)) * float(np.sum((n - k) * (n - k - 1) * (n - k - 2) * ranks))
    sd = math.sqrt(n * (n - 1) * (2 * n + 5) / 18 * inflation)
    freedom = max(n / inflation - 2, 2.0)
    p = float(min(2 * student.sf((abs(s) - 1) / sd, freedom), 1.0))
    half = float(student.ppf(1 - alpha / 2, freedom)) * sd
    m = len(slopes)
    low = slopes[max(math.floor((m - half) / 2), 0)]
    high = slopes[min(math.ceil((m + half) / 2), m - 1)]
    ends = tuple(percent(x * span_s) for x in (slope, low, high))
    reach = (high - low) / 2 * span_s * (1 + _POWER_Z / float(student.ppf(1 - alpha / 2, freedom)))
    return Trend(ends[0], (ends[1], ends[2]), p, percent(reach), n, rho)
