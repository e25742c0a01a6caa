"""When requests are due. Pure arithmetic on seconds since a stage began, decided before the stage begins."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Iterator

from loadtests.workload import Closed, Open, StageSpec, Walk


class ClosedLoop:
    """How many users are at work at each moment: ``levels`` is [(from_s, users)], the first from 0 on.

    User ``slot`` (0, 1, ...) is at work while ``slot < users``.
    """

    def __init__(self, levels: list[tuple[float, int]]) -> None:
        self.levels = levels
        self._starts = [s for s, _ in levels]

    def users(self, at_s: float) -> int:
        return self.levels[max(bisect_right(self._starts, at_s) - 1, 0)][1]

    def next_active(self, slot: int, at_s: float) -> float | None:
        """The first moment not before ``at_s`` at which ``slot`` is at work; None: never again."""
        i = max(bisect_right(self._starts, at_s) - 1, 0)
        for from_s, users in self.levels[i:]:
            if slot < users:
                return max(from_s, at_s)
        return None


def closed_loop(spec: StageSpec, seed: int) -> ClosedLoop:
    """The concurrency over a stage's whole length.

    Raises:
        TypeError: the stage's arrivals are open-loop.
    """
    match spec.arrivals:
        case Closed(concurrency=n):
            return ClosedLoop([(0.0, n)])
        case Walk() as walk:
            rng = random.Random(f"{seed}/{spec.name}/walk")
            level = (walk.min + walk.max) // 2
            levels, k = [(0.0, level)], 1
            while k * walk.every_s < spec.warmup_s + spec.duration_s:
                level += int(rng.random() * (2 * walk.step + 1)) - walk.step
                level = min(max(level, walk.min), walk.max)
                levels.append((k * walk.every_s, level))
                k += 1
            return ClosedLoop(levels)
        case Open():
            raise TypeError(f"stage {spec.name} has open-loop arrivals, so no fixed users")


def open_arrivals(spec: StageSpec, seed: int) -> Iterator[float]:
    """Due times of an open-loop stage, up to its end.

    Raises:
        TypeError: the stage's arrivals are closed-loop.
    """
    if not isinstance(spec.arrivals, Open):
        raise TypeError(f"stage {spec.name} has closed-loop arrivals: a request is due when a user is free")
    rate, end_s = spec.arrivals.rate_per_s, spec.warmup_s + spec.duration_s
    rng = random.Random(f"{seed}/{spec.name}/arrivals")
    i, at_s = 0, 0.0
    while True:
        if spec.arrivals.kind == "poisson":
            at_s += rng.expovariate(rate)
        else:
            at_s = i / rate
        if at_s >= end_s:
            return
        yield at_s
        i += 1
