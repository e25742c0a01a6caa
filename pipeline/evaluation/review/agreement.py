"""Krippendorff's alpha: agreement of any number of raters, some of whom may not have rated some units.

    alpha = 1 - D_o / D_e                     (Krippendorff 2011, "Computing Krippendorff's Alpha-Reliability")

with the observed disagreement D_o within units and the disagreement D_e expected by chance, both over the coincidence
matrix o[c, k] = sum over units of pairs (c, k) / (m_u - 1), units with one rating left out. ``interval`` squares the
difference of two values, ``ordinal`` that of their ranks, ``nominal`` only tells equal from unequal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

Level = Literal["nominal", "ordinal", "interval"]


def alpha(units: Iterable[Sequence[float]], level: Level = "ordinal") -> float | None:
    """Agreement on ``units``, each the ratings that it got; 1 is perfect, 0 what chance would give.

    None where it is not defined: fewer than two units with two ratings, or no rating that differs from another.
    """
    pairable = [u for u in units if len(u) > 1]
    coincidences: Counter[tuple[float, float]] = Counter()
    for u in pairable:
        for i, c in enumerate(u):
            for j, k in enumerate(u):
                if i != j:
                    coincidences[c, k] += 1 / (len(u) - 1)  # type: ignore[assignment]
    totals: Counter[float] = Counter()
    for (c, _), n in coincidences.items():
        totals[c] += n
    n = sum(totals.values())
    if len(pairable) < 2 or len(totals) < 2:
        return None
    distance = _distance(level, totals)
    observed = sum(o * distance(c, k) for (c, k), o in coincidences.items()) / n
    expected = sum(totals[c] * totals[k] * distance(c, k) for c in totals for k in totals) / (n * (n - 1))
    return 1 - observed / expected


def _distance(level: Level, totals: Counter[float]) -> Callable[[float, float], float]:
    if level == "nominal":
        return lambda c, k: float(c != k)
    if level == "interval":
        return lambda c, k: (c - k) ** 2

    def ordinal(c: float, k: float) -> float:
        low, high = min(c, k), max(c, k)
        between = sum(n for g, n in totals.items() if low <= g <= high)
        return float((between - (totals[low] + totals[high]) / 2) ** 2) if low != high else 0.0

    return ordinal
