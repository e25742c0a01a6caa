"""What a virtual machine's host takes away of its processors: "steal" in /proc/stat.

A neighbour on the host that wants the same cores for a minute makes that minute two or three times as slow, which no
build can help. A load test says how much it was in each stage; a round of an A/B with too much of it counts for
nothing, and another pair is run in its place.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import psutil

# Of the processors' time; with 1.4 % the P95s of pairs of equal runs stay within 4 to 20 % (loadtests/README.md).
MOST_SHARE = 0.05


def processors() -> int:
    """Whose time the host may take."""
    return os.cpu_count() or 1


def stolen_s() -> float:
    """Seconds that the host took since the machine started, of all processors; 0 where the system does not count."""
    return float(getattr(psutil.cpu_times(), "steal", 0.0))


class Stolen:
    """Counts from its making."""

    def __init__(
        self, counted_s: Callable[[], float] = stolen_s, clock: Callable[[], float] = time.monotonic,
        of: int | None = None,
    ) -> None:  # fmt: skip
        self._counted_s, self._clock, self._processors = counted_s, clock, of or processors()
        self._began = clock(), counted_s()

    def share(self) -> float:
        """Share of the processors' time since then, 0 to 1."""
        since_s, taken_s = self._clock() - self._began[0], self._counted_s() - self._began[1]
        return min(1.0, max(0.0, taken_s / (since_s * self._processors))) if since_s > 0 else 0.0


def why_void(share: float) -> str | None:
    """Why a round with so much of it counts for nothing; None: it counts."""
    if share <= MOST_SHARE:
        return None
    return f"the host took {share:.1%} of the processors' time away, at most {MOST_SHARE:.0%} may be"
