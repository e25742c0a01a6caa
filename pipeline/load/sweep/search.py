"""The search for the goodput knee: a bounded bisection over rates, each judged by the share of requests within the SLO.

A probe is a short open-loop stage at one rate. Probes of one rate are pooled; a rate holds or breaks the target when
the whole interval of the share (Clopper and Pearson, at the effective number of requests) is on one side. A rate may be
looked at up to :data:`MOST_LOOKS` times, so the looks share the error (Pocock-type spending, ``statistics.looks``): had
each all of it, a rate at the target would be called wrongly twice as often as the confidence says. Only such rates
bound the knee; one that stays open after the last look directs the search by its estimate alone.
Goodput as the highest rate that keeps the SLO: DistServe (Zhong et al., OSDI 2024, section 2).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from pipeline.gate.statistics.looks import LookPlan
from pipeline.gate.statistics.shares import share_interval

MOST_LOOKS = 3
_STEP_UP = 2.0
_LOOK = 2  # data of one look in the plan's unit, which only its ratio counts; a plan begins with 2
State = Literal["holds", "breaks", "open"]


@dataclass(frozen=True)
class Probe:
    """One stage at one rate: how many requests were due, how many kept the SLO (failed ones did not), and how many
    independent ones they are worth. ``figures``: what else was measured. ``void``: why it counts for nothing.
    """

    rate_per_s: float
    requests: int
    good: int
    effective: float
    figures: dict[str, Any] = field(default_factory=dict)
    void: str | None = None


@dataclass(frozen=True)
class Rate:
    """All probes at one rate. ``low``, ``high``: interval of the share of requests within the SLO."""

    rate_per_s: float
    probes: int
    requests: int
    share: float
    low: float
    high: float
    state: State


@dataclass(frozen=True)
class Found:
    """``knee_per_s``: the highest rate whose share reached the target and below which none broke it; ``interval``: the
    highest rate that surely holds and the lowest that surely breaks. None: no rate showed it.
    """

    knee_per_s: float | None
    interval: tuple[float | None, float | None]
    rates: list[Rate]
    probes: list[Probe]
    spent_s: float
    stopped: str


@dataclass(frozen=True)
class Bounds:
    """``target``: share of requests that must keep the SLO. ``tolerance``: the search ends when the bracket is that
    narrow, as a share of its lower end.
    """

    lowest_per_s: float
    highest_per_s: float
    target: float = 0.95
    confidence: float = 0.95
    tolerance: float = 0.1
    budget_s: float = 600.0

    def __post_init__(self) -> None:
        if not 0 < self.lowest_per_s < self.highest_per_s:
            raise ValueError(f"rates from {self.lowest_per_s:g} to {self.highest_per_s:g}: expected 0 < from < to")
        if not 0 < self.target < 1:
            raise ValueError(f"a target share of {self.target:g}: expected one between 0 and 1")


def rate_of(probes: list[Probe], bounds: Bounds) -> Rate:
    """The probes of one rate, pooled: as many looks. Each probe of a rate measures as many requests, so the looks lie
    evenly.
    """
    n, good = sum(p.requests for p in probes), sum(p.good for p in probes)
    effective = sum(p.effective for p in probes)
    share = good / n if n else 0.0
    plan = LookPlan(tuple(_LOOK * (k + 1) for k in range(MOST_LOOKS)), (1 - bounds.confidence) / 2)
    level = plan.level(plan.at[: len(probes)])
    low, high = share_interval(share * effective, effective, 1 - level)
    state: State = "holds" if low >= bounds.target else "breaks" if high < bounds.target else "open"
    return Rate(probes[0].rate_per_s, len(probes), n, share, low, high, state)


def search(
    probe: Callable[[float], Probe],
    cost_s: Callable[[float], float],
    bounds: Bounds,
    clock: Callable[[], float] = time.monotonic,
    say: Callable[[Rate], None] = lambda rate: None,
) -> Found:
    """Runs probes until the bracket is narrow enough or the next one would pass the budget.

    Args:
        cost_s: the most that a probe at this rate can take; a probe is begun only if that much time is left.
    """
    began = clock()
    taken: dict[float, list[Probe]] = {}
    voids: list[Probe] = []
    rate, stopped = bounds.lowest_per_s, ""
    while not stopped:
        if clock() - began + cost_s(rate) > bounds.budget_s:
            stopped = f"the next probe could pass the budget of {bounds.budget_s:g} s"
            break
        found = probe(rate)
        if found.void:
            voids.append(found)
            if len(voids) > MOST_LOOKS:
                stopped = f"the load client cannot be believed: {found.void}"
            continue
        taken.setdefault(rate, []).append(found)
        say(rate_of(taken[rate], bounds))
        following = _next(taken, bounds)
        stopped, rate = following if isinstance(following, tuple) else ("", following)
    rates = [rate_of(p, bounds) for _, p in sorted(taken.items())]
    every = [p for _, ps in sorted(taken.items()) for p in ps] + voids
    return Found(_knee(rates, bounds), _bracket(rates), rates, every, clock() - began, stopped)


def _next(taken: dict[float, list[Probe]], bounds: Bounds) -> float | tuple[str, float]:
    """The rate to probe next, or (why to stop, the last rate)."""
    rates = [rate_of(p, bounds) for _, p in sorted(taken.items())]
    for r in rates:
        if r.state == "open" and r.probes < MOST_LOOKS:
            return r.rate_per_s
    bad = [r.rate_per_s for r in rates if not _good(r, bounds)]
    ceiling = min(bad, default=None)
    good = [r.rate_per_s for r in rates if _good(r, bounds) and (ceiling is None or r.rate_per_s < ceiling)]
    floor = max(good, default=None)
    if floor is None:
        return f"the target is not kept even at the lowest rate, {bounds.lowest_per_s:g}/s", bounds.lowest_per_s
    if ceiling is None:
        if floor >= bounds.highest_per_s:
            return f"the target is still kept at the highest rate allowed, {bounds.highest_per_s:g}/s", floor
        return min(floor * _STEP_UP, bounds.highest_per_s)
    if ceiling / floor <= 1 + bounds.tolerance:
        return f"the knee lies between {floor:.3g} and {ceiling:.3g}/s, as narrow as asked for", floor
    return math.sqrt(floor * ceiling)


def _good(rate: Rate, bounds: Bounds) -> bool:
    return rate.state == "holds" or (rate.state == "open" and rate.share >= bounds.target)


def _knee(rates: list[Rate], bounds: Bounds) -> float | None:
    knee = None
    for r in rates:  # by rate; one that breaks ends it, whatever a higher one was lucky with
        if not _good(r, bounds):
            break
        knee = r.rate_per_s
    return knee


def _bracket(rates: list[Rate]) -> tuple[float | None, float | None]:
    breaks = min((r.rate_per_s for r in rates if r.state == "breaks"), default=None)
    holds = [r.rate_per_s for r in rates if r.state == "holds" and (breaks is None or r.rate_per_s < breaks)]
    return max(holds, default=None), breaks
