"""What a sample of a size can tell, before anything is measured: for choosing limits, margins and lengths of runs."""

from __future__ import annotations

from scipy import special

from pipeline.gate.statistics.shares import judge_share

MOST = 1_000_000


def needed(allowed: float, confidence: float, over: int = 0) -> int:
    """Smallest independent sample that passes a share of ``allowed`` with ``over`` of it over the limit.

    Raises:
        ValueError: none of up to a million does.
    """
    low, high = over + 1, MOST
    if judge_share(over, high, allowed, confidence) != "pass":
        raise ValueError(f"no sample of up to {MOST} passes a share of {allowed:g} with {over} over it")
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if judge_share(over, middle, allowed, confidence) == "pass" else (middle + 1, high)
    return high


def _last_pass(n: int, allowed: float, confidence: float) -> int:
    """Most over the limit of ``n`` that still pass; -1: not even none."""
    low, high = -1, n
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if judge_share(middle, n, allowed, confidence) == "pass" else (low, middle - 1)
    return low


def _first_fail(n: int, allowed: float, confidence: float) -> int | None:
    """Fewest over the limit of ``n`` that fail; None: not even all."""
    if judge_share(n, n, allowed, confidence) != "fail":
        return None
    low, high = 0, n
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if judge_share(middle, n, allowed, confidence) == "fail" else (middle + 1, high)
    return high


def passing_share(n: int, allowed: float, confidence: float, power: float = 0.8) -> float | None:
    """Largest true share with which ``n`` independent samples pass in ``power`` of all runs; None: they never do."""
    k = _last_pass(n, allowed, confidence)
    if k < 0:
        return None
    return 1.0 if k >= n else float(special.betaincinv(k + 1, n - k, 1 - power))


def failing_share(n: int, allowed: float, confidence: float, power: float = 0.8) -> float | None:
    """Smallest true share with which ``n`` independent samples fail in ``power`` of all runs; None: they never do."""
    k = _first_fail(n, allowed, confidence)
    return None if k is None else float(special.betaincinv(k, n - k + 1, power))


def samples_to_fail(share: float, allowed: float, confidence: float, power: float = 0.8) -> int | None:
    """Smallest independent sample that fails a true ``share`` in ``power`` of all runs; None: none up to a million."""
    if share <= allowed:
        return None
    low, high = 1, 1

    def enough(n: int) -> bool:
        found = failing_share(n, allowed, confidence, power)
        return found is not None and found <= share

    while not enough(high):
        low, high = high, high * 2
        if high > MOST:
            return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle + 1, high)
    return high
