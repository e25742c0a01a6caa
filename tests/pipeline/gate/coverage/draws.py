"""Made-up latencies with known quantiles: one slow tail or two modes, independent or correlated in time."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, signal, stats

Floats = NDArray[np.float64]
SLOW_SHARE, SLOW_MS, FAST_MS, WITHIN = 0.2, 400.0, 100.0, 0.2


def autoregressive(rng: np.random.Generator, draws: int, n: int, rho: float) -> Floats:
    """Standard normal values [draws, n], each correlated with the one before it by ``rho``."""
    noise = rng.normal(size=(draws, n))
    if rho == 0:
        return noise
    noise[:, 1:] *= math.sqrt(1 - rho**2)
    found: Floats = signal.lfilter([1.0], [1.0, -rho], noise, axis=1)
    return found


@dataclass(frozen=True)
class Latency:
    """``lognormal``: 100 ms and a tail. ``bimodal``: one in five is of a slow kind (a cold cache, a long prompt), and
    which ones are comes in runs of its own where the values are correlated.
    """

    name: str

    def draw(self, rng: np.random.Generator, draws: int, n: int, rho: float = 0.0) -> Floats:
        z = autoregressive(rng, draws, n, rho)
        if self.name == "lognormal":
            return FAST_MS * np.exp(0.5 * z)
        slow = autoregressive(rng, draws, n, rho) > stats.norm.isf(SLOW_SHARE)
        return np.where(slow, SLOW_MS, FAST_MS) * np.exp(WITHIN * z)

    def quantile(self, q: float) -> float:
        """The true one."""
        if self.name == "lognormal":
            return FAST_MS * math.exp(0.5 * stats.norm.ppf(q))

        def beyond(x: float) -> float:
            fast, slow = (stats.norm.cdf(math.log(x / m) / WITHIN) for m in (FAST_MS, SLOW_MS))
            return float((1 - SLOW_SHARE) * fast + SLOW_SHARE * slow - q)

        return float(optimize.brentq(beyond, 10, 4000))


LATENCIES = (Latency("lognormal"), Latency("bimodal"))
