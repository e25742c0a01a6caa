"""Is the candidate slower than the base by more than a margin? One look at interleaved rounds, judged.

Non-inferiority: pass if the upper bound of the ratio is inside the margin, fail if the lower bound is outside,
undecided otherwise. Both errors are kept over all looks of the plan: a candidate at the margin or beyond passes with
at most ``alpha``, one inside it is held with at most ``alpha`` over all comparisons of the family together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scipy import special

from pipeline.gate.statistics.looks import LookPlan
from pipeline.gate.statistics.rounds import Ratio, ratio_by_round
from pipeline.gate.statistics.shares import Outcome

MOST_PAIRS = 10_000


@dataclass(frozen=True)
class Rounds:
    """One figure by round. ``base[i]`` and ``candidate[i]`` ran side by side; +inf: too many failures for a figure.

    ``margin``: the largest loss allowed, as a share (0.03: 3 %). ``higher_is_better``: a throughput, not a latency.
    """

    base: Sequence[float]
    candidate: Sequence[float]
    margin: float
    base_first: Sequence[bool] | None = None
    blocking: bool = True
    higher_is_better: bool = False


@dataclass(frozen=True)
class Compared:
    """``ratio`` is None where a side has no figure. ``resolves``: the smallest loss, as a share, that so many pairs
    tell from none with 80 % power at this look (the margin on top of it); ``pairs_needed``: so many in all would
    settle it, at this spread and this estimate, None where decided or where more of the same would not.
    """

    outcome: Outcome
    why: str
    ratio: Ratio | None
    level: float  # nominal one-sided error of the bounds at this look
    margin: float
    p_worse: float | None  # of the test that the loss is beyond the margin
    p_equivalent: float | None  # of the two one-sided tests that the difference is within the margin both ways
    resolves: float | None
    pairs_needed: int | None


def compare(
    figures: Mapping[str, Rounds], plan: LookPlan, counts: Sequence[int], *, final: bool = False
) -> dict[str, Compared]:
    """Every figure of one look. ``counts``: pairs of rounds at this look and the looks before it.

    A pass is judged at the plan's ``alpha``, each figure for itself: shipping needs all of them (an intersection-union
    test needs no correction: Berger 1982). A hold needs only one, so among the blocking figures the holds share
    ``alpha`` by Holm's steps, each at its share of the spending (group sequential Holm: Ye, Li, Liu and Yao 2013).
    Advisory figures are judged for themselves and take nothing from the others.

    Failures: a candidate with a round without a figure beside a base with one fails; where the base itself has such
    a round nothing can be said.

    Raises:
        ValueError: more looks than planned, or a figure with other pairs than ``counts[-1]``.
    """
    level = plan.level(counts, final=final)
    ratios: dict[str, Ratio] = {}
    out: dict[str, Compared] = {}
    for name, f in figures.items():
        if len(f.base) != counts[-1] or len(f.candidate) != counts[-1]:
            raise ValueError(
                f"{name}: {len(f.base)} and {len(f.candidate)} rounds, but the look is at {counts[-1]} pairs"
            )
        if not f.margin > 0:
            raise ValueError(f"{name}: margin {f.margin:g}; without a margin no number of rounds would pass a build")
        failed = [sum(not math.isfinite(v) for v in side) for side in (f.base, f.candidate)]
        if any(failed):
            out[name] = _failed(failed[0], failed[1], counts[-1], level, f.margin)
            continue
        base, candidate = (f.candidate, f.base) if f.higher_is_better else (f.base, f.candidate)
        ratios[name] = ratio_by_round(base, candidate, 1 - level, base_first=_order(f))
    worse = {name: r.p_above(1 + figures[name].margin) for name, r in ratios.items()}
    family = {name: p for name, p in worse.items() if figures[name].blocking}
    held: set[str] = {n for n, p in worse.items() if not figures[n].blocking and p < level}
    for rank, name in enumerate(sorted(family, key=lambda n: family[n])):
        if family[name] >= plan.level(counts, final=final, alpha=plan.alpha / (len(family) - rank)):
            break
        held.add(name)
    for name, r in ratios.items():
        out[name] = _judged(r, figures[name].margin, level, worse[name], name in held)
    return {name: out[name] for name in figures}


def _order(f: Rounds) -> Sequence[bool] | None:
    if f.base_first is None or not f.higher_is_better:
        return f.base_first
    return [not b for b in f.base_first]  # the two sides have changed places


def _failed(base: int, candidate: int, pairs: int, level: float, margin: float) -> Compared:
    if base:
        outcome: Outcome = "undecided"
        why = f"in {base} of {pairs} rounds the base itself has no figure: too many of its requests failed"
    else:
        outcome = "fail"
        why = f"in {candidate} of {pairs} rounds the candidate has no figure: too many of its requests failed"
    return Compared(outcome, why, None, level, margin, None, None, None, None)


def _judged(r: Ratio, margin: float, level: float, p_worse: float, held: bool) -> Compared:
    outcome: Outcome = "fail" if held else "pass" if r.high <= 1 + margin else "undecided"
    said = f"{r.ratio - 1:+.1%}, between {r.low - 1:+.1%} and {r.high - 1:+.1%} ({r.pairs} pairs of rounds)"
    words = {
        "pass": f"not worse by more than {margin:.1%}: {said}",
        "fail": f"worse by more than {margin:.1%}: {said}",
        "undecided": f"may or may not be worse by more than {margin:.1%}: {said}",
    }
    needed = None if outcome != "undecided" else _pairs_needed(r, margin, level)
    within = max(r.p_above(1 / (1 + margin)), r.p_below(1 + margin))
    return Compared(outcome, words[outcome], r, level, margin, p_worse, within, resolves(r, level), needed)


def resolves(r: Ratio, level: float, power: float = 0.8) -> float:
    """The loss, as a share, that is told from none with ``power``: (t_level + t_power) standard errors."""
    t = float(special.stdtrit(r.freedom, power) - special.stdtrit(r.freedom, level))
    return math.exp(t * r.log_error) - 1


def _pairs_needed(r: Ratio, margin: float, level: float) -> int | None:
    """Pairs at which the interval, shrunk about the same estimate, leaves the margin on one side."""
    room = abs(math.log(r.ratio / (1 + margin)))
    spread = r.log_error * math.sqrt(r.pairs)
    lost = r.pairs - r.freedom
    low, high = r.pairs + 1, MOST_PAIRS

    def enough(n: int) -> bool:
        return -float(special.stdtrit(n - lost, level)) * spread / math.sqrt(n) <= room

    if not enough(high):
        return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle + 1, high)
    return high
