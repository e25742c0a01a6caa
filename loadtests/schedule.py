"""When requests are due. Pure arithmetic on seconds since a stage began, decided before the stage begins.

Distributed, every worker knows the whole schedule and takes its ``Share`` of it: the union of what the workers send is
what one would have sent, each request once, at the same times.
"""

from __future__ import annotations

import itertools
import math
import random
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from loadtests.arrivals import Closed, Open, OpenLoop, Steps, Walk
from loadtests.replay.scale import Planned
from loadtests.workload import StageSpec


@dataclass(frozen=True)
class Share:
    """What worker ``worker`` (0, 1, ...) of ``workers`` sends: the arrivals and the users whose number leaves that
    remainder. Numbers stay those of the whole run, so seeds, names and due times do too.

    Raises:
        ValueError: there is no such worker.
    """

    worker: int = 0
    workers: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.worker < self.workers:
            raise ValueError(f"worker {self.worker} of {self.workers}; expected 0 to {self.workers - 1}")

    def owns(self, number: int) -> bool:
        return number % self.workers == self.worker

    def indices(self) -> Iterator[int]:
        """Arrivals of a closed loop in order: each free user takes the next."""
        return itertools.count(self.worker, self.workers)

    def slots(self, users: int) -> range:
        """The closed-loop users, of ``users`` in all, that this worker holds."""
        return range(self.worker, users, self.workers)


WHOLE = Share()


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
        case Steps(levels=levels):
            return ClosedLoop(list(levels))
        case Walk() as walk:
            rng = random.Random(f"{seed}/{spec.name}/walk")
            level = (walk.min + walk.max) // 2
            levels, k = [(0.0, level)], 1
            while k * walk.every_s < spec.length_s:
                level += int(rng.random() * (2 * walk.step + 1)) - walk.step
                level = min(max(level, walk.min), walk.max)
                levels.append((k * walk.every_s, level))
                k += 1
            return ClosedLoop(levels)
        case OpenLoop():
            raise TypeError(f"stage {spec.name} has open-loop arrivals, so no fixed users")


def due_times(spec: StageSpec, seed: int, share: Share = WHOLE) -> Iterator[tuple[int, float]]:
    """(number, due_s) of the arrivals of an open-loop stage up to its end, those of ``share``.

    Raises:
        TypeError: the stage's arrivals are closed-loop.
    """
    return ((i, at_s) for i, at_s in enumerate(open_arrivals(spec, seed)) if share.owns(i))


def open_arrivals(spec: StageSpec, seed: int) -> Iterator[float]:
    """Due times of all arrivals of an open-loop stage, up to its end, in order.

    Raises:
        TypeError: the stage's arrivals are closed-loop.
    """
    rng = random.Random(f"{seed}/{spec.name}/arrivals")
    if spec.replayed is not None:
        return _as_recorded(spec.replayed.requests, rng)
    if isinstance(spec.arrivals, Open):
        return _at_rate(spec.arrivals, rng, spec.length_s)
    raise TypeError(f"stage {spec.name} has closed-loop arrivals: a request is due when a user is free")


def _as_recorded(requests: list[Planned], rng: random.Random) -> Iterator[float]:
    """In the order of the trace; those of one recorded time are spread evenly at random."""
    for due_s, together in itertools.groupby(requests, key=lambda r: r.due_s):
        spreads = [r.spread_s for r in together]
        yield from (due_s + share * s for share, s in zip(sorted(rng.random() for _ in spreads), spreads, strict=True))


def _at_rate(arrivals: Open, rng: random.Random, end_s: float) -> Iterator[float]:
    """Arrivals at rate 1, their clock stretched so that the rate at each moment is the one asked for.

    The stretched times of a Poisson process are those of the Poisson process with that rate (time rescaling: Brown et
    al., Neural Computation 14, 2002, section 2).
    """
    gap = _unit_gap(arrivals, rng)
    count = 0.0 if arrivals.kind == "constant" else gap()  # arrivals expected until the next one
    before = 0.0  # and until the segment of the rate that is being looked at
    points = arrivals.points
    for (from_s, rate), (to_s, next_rate) in itertools.pairwise([*points, (math.inf, points[-1][1])]):
        until_s = min(to_s, end_s)
        slope = 0.0 if math.isinf(to_s) or to_s == from_s else (next_rate - rate) / (to_s - from_s)
        length = max(until_s - from_s, 0.0)
        after = before + length * (rate + slope * length / 2)
        while count < after:
            inside = count - before
            # The smaller root of inside = rate x + slope x^2 / 2, in the form that does not cancel.
            root = math.sqrt(max(rate * rate + 2 * slope * inside, 0.0))
            at_s = from_s + (2 * inside / (rate + root) if inside > 0 else 0.0)
            if at_s < end_s:
                yield at_s
            count += gap()
        before = after


def _unit_gap(arrivals: Open, rng: random.Random) -> Callable[[], float]:
    match arrivals.kind:
        case "constant":
            return lambda: 1.0
        case "poisson":
            return lambda: rng.expovariate(1.0)
        case "gamma":
            shape = arrivals.burstiness or 1.0
            return lambda: rng.gammavariate(shape, 1 / shape)
