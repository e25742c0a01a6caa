"""The record of A/A comparisons: identical builds under the policy of a pull request, and how often they were held.

What may be claimed of the gate's false alarms is the interval of Clopper and Pearson (1934), and nothing beyond it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from pipeline.drill.comparisons import Comparison, of_one_policy
from pipeline.gate.statistics.shares import share_interval

RECORD = Path("pipeline/drill/aa.jsonl")
CONFIDENCE = 0.975  # of each end: a two-sided 95 % interval


@dataclass(frozen=True)
class Summary:
    """Of the comparisons under the policy of the last one; ``others`` were made under another. ``false_holds``: (low,
    high) of their share at 95 %, two-sided. ``resolves_percent``: by minutes, the slowdown that is told from none with
    80 % power, the median over each comparison's widest blocking figure; minutes too few for any are left out.
    """

    comparisons: int
    others: int
    held: int
    undecided: int
    false_holds: tuple[float, float]
    median_minutes: float
    median_rounds: float
    median_half_width_percent: float | None
    median_standard_error_percent: float | None
    resolves_percent: dict[str, float]

    def text(self) -> str:
        low, high = self.false_holds
        half, error = self.median_half_width_percent, self.median_standard_error_percent
        width = "" if half is None else f", half-width {half:.1f} %"
        width += "" if error is None else f", standard error {error:.2f} %"
        told = ", ".join(f"{percent:.1f} % after {minutes}" for minutes, percent in self.resolves_percent.items())
        told = f". Told from none with 80 % power: {told} minutes" if told else ""
        others = f". {self.others} under another policy are left out" if self.others else ""
        return (
            f"{self.comparisons} comparisons of identical builds: {self.held} held, {self.undecided} undecided; the "
            f"share of false holds lies between {low:.1%} and {high:.1%} (95 %, Clopper-Pearson). Median "
            f"{self.median_minutes:.1f} minutes, {self.median_rounds:.0f} rounds{width}{told}{others}"
        )


def summary(comparisons: Sequence[Comparison]) -> Summary | None:
    """Of those under the policy of the last one. None: nothing was compared yet, so nothing may be claimed."""
    if not comparisons:
        return None
    every, comparisons = len(comparisons), of_one_policy(comparisons)
    n, held = len(comparisons), sum(c.verdict == "hold" for c in comparisons)
    widths = [c.half_width_percent for c in comparisons if c.half_width_percent is not None]
    errors = [c.standard_error_percent for c in comparisons if c.standard_error_percent is not None]
    return Summary(
        comparisons=n,
        others=every - n,
        held=held,
        undecided=sum(c.verdict == "undecided" for c in comparisons),
        false_holds=share_interval(held, n, CONFIDENCE),
        median_minutes=median(c.minutes for c in comparisons),
        median_rounds=median(c.rounds for c in comparisons),
        median_half_width_percent=median(widths) if widths else None,
        median_standard_error_percent=median(errors) if errors else None,
        resolves_percent=_resolves(comparisons),
    )


def _resolves(comparisons: Sequence[Comparison]) -> dict[str, float]:
    known: dict[str, list[float]] = {}
    for c in comparisons:
        for minutes, percent in c.resolves_percent.items():
            if percent is not None:
                known.setdefault(minutes, []).append(percent)
    return {minutes: median(known[minutes]) for minutes in sorted(known, key=int)}
