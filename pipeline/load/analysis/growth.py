"""What the server kept after the load was over: KV blocks in use when idle, and memory that goes on growing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from pipeline.load.server_metrics import gauge

GROWTH_SEEN = 0.01  # of the memory at the start of a stage
_QUARTERS = 4
_LEAST_SAMPLES = 5  # in each quarter


@dataclass(frozen=True)
class Blocks:
    """KV blocks in use by nobody: idle before the load and idle after it."""

    before: int
    after: int

    @property
    def leaked(self) -> int:
        return self.after - self.before


@dataclass(frozen=True)
class Memory:
    """Resident bytes at the medians of a stage's four quarters. ``leaks``: each is above the last, the growth does not
    die away (the last step is at least half of the mean step) and comes to 1 % or more.
    """

    quarters: tuple[float, ...]
    length_s: float

    @property
    def grown_bytes(self) -> float:
        return self.quarters[-1] - self.quarters[0]

    @property
    def leaks(self) -> bool:
        steps = np.diff(self.quarters)
        return bool(
            (steps > 0).all() and steps[-1] >= steps.mean() / 2 and self.grown_bytes >= GROWTH_SEEN * self.quarters[0]
        )


def idle_blocks(before: Mapping[str, float] | None, after: Mapping[str, float] | None) -> Blocks | str:
    """From the server's metrics before and after the load, or why they do not say."""
    ends = []
    for metrics, when in ((before, "before"), (after, "after")):
        if metrics is None:
            return f"the server had no metrics {when} the load"
        used = gauge(metrics, "kv_blocks_used")
        if used is None:
            return "the server does not report its KV blocks"
        busy = (gauge(metrics, "running") or 0) + (gauge(metrics, "waiting") or 0)
        if busy:
            return f"the server was not idle {when} the load: {busy:.0f} requests ran or waited"
        ends.append(round(used))
    return Blocks(*ends)


def memory_growth(samples: pl.DataFrame, from_s: float, to_s: float) -> Memory | str:
    """Of one stage's measured part, from the samples taken each second; or why they do not say."""
    inside = samples.filter(pl.col("t_s").is_between(from_s, to_s) & pl.col("rss_bytes").is_not_null())
    quarters = []
    for i in range(_QUARTERS):
        width = (to_s - from_s) / _QUARTERS
        mine = inside.filter(pl.col("t_s").is_between(from_s + i * width, from_s + (i + 1) * width))["rss_bytes"]
        if mine.len() < _LEAST_SAMPLES:
            return f"fewer than {_LEAST_SAMPLES} samples of resident memory in a quarter of the stage"
        quarters.append(float(mine.median()))  # type: ignore[arg-type]
    return Memory(tuple(quarters), to_s - from_s)
