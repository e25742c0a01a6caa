"""Several tests at once: what may be rejected when all of them were looked at."""

from __future__ import annotations

from collections.abc import Mapping


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
