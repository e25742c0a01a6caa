"""The record of planted slowdowns: how often the gate of a pull request held what it must hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from pipeline.drill.aa import CONFIDENCE
from pipeline.drill.comparisons import Comparison, Planted, of_one_policy
from pipeline.gate.statistics.shares import share_interval

RECORD = Path("pipeline/drill/power.jsonl")


@dataclass(frozen=True)
class Power:
    """Of one slowdown. ``interval``: (low, high) of the share held at 95 %, two-sided."""

    planted: Planted
    comparisons: int
    held: int
    shipped: int
    interval: tuple[float, float]
    median_minutes: float

    def text(self) -> str:
        low, high = self.interval
        undecided = self.comparisons - self.held - self.shipped
        return (
            f"{self.planted}: {self.held} of {self.comparisons} held ({low:.0%} to {high:.0%}), {undecided} undecided, "
            f"{self.shipped} shipped; median {self.median_minutes:.1f} minutes"
        )


def summary(comparisons: Sequence[Comparison]) -> list[Power]:
    """By slowdown, the smallest first, of those under the policy of the last one."""
    by: dict[Planted, list[Comparison]] = {}
    for c in of_one_policy(comparisons) if comparisons else []:
        if c.planted is not None:
            by.setdefault(c.planted, []).append(c)
    return [_of(planted, by[planted]) for planted in sorted(by, key=lambda p: (p.part, p.percent))]


def _of(planted: Planted, of_it: list[Comparison]) -> Power:
    held = sum(c.verdict == "hold" for c in of_it)
    return Power(
        planted=planted,
        comparisons=len(of_it),
        held=held,
        shipped=sum(c.verdict == "ship" for c in of_it),
        interval=share_interval(held, len(of_it), CONFIDENCE),
        median_minutes=median(c.minutes for c in of_it),
    )
