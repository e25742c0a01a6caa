"""From the figures of all rounds to the ratio of each with its interval, and to ship, hold or undecided."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from scipy import stats

from pipeline.ab.counts import Counted
from pipeline.ab.rounds import FIGURES, THROUGHPUT, Round, base_first
from pipeline.gate.statistics.compare import Compared, Rounds, compare
from pipeline.gate.statistics.looks import LookPlan
from pipeline.params import AbParams

Verdict = Literal["ship", "hold", "undecided"]
Name = tuple[str, str]  # stage or POOLED, figure
POOLED = "pooled"
LEAST_PAIRS = 4  # below, Student's t is so wide that a look is wasted
MINUTES = (5, 10, 20)


@dataclass(frozen=True)
class Look:
    """What was found with so many pairs. ``absent``: figures that cannot be compared, and why."""

    pairs: int
    compared: dict[Name, Compared]
    absent: dict[Name, str]
    verdict: Verdict
    reason: str


def plan_looks(most_pairs: int, params: AbParams) -> LookPlan:
    """``params.looks`` looks, evenly over the pairs that the budget allows, none before ``LEAST_PAIRS``."""
    most = max(most_pairs, LEAST_PAIRS)
    wanted = {max(LEAST_PAIRS, math.ceil(most * k / params.looks)) for k in range(1, params.looks + 1)}
    return LookPlan(tuple(sorted(wanted)), 1 - params.confidence)


def pairs_in(budget_s: float, pair_s: float) -> int:
    """How many pairs fit into the budget, by the length of the first."""
    return max(1, int(budget_s // max(pair_s, 1e-3)))


def whole_pairs(rounds: Sequence[Round]) -> list[tuple[Round, Round]]:
    """(base, candidate) of the pairs of which neither round is void, in order."""
    found: dict[int, dict[str, Round]] = {}
    for r in rounds:
        found.setdefault(r.pair, {})[r.side] = r
    pairs = [(p["base"], p["candidate"]) for _, p in sorted(found.items()) if len(p) == 2]
    return [(a, b) for a, b in pairs if a.void is None and b.void is None]


def look_at(
    rounds: Sequence[Round], stages: Sequence[str], params: AbParams, plan: LookPlan, counts: Sequence[int],
    *, final: bool, work: Sequence[Counted] = (),
) -> Look:  # fmt: skip
    """Judges what is there.

    Args:
        counts: whole pairs at this look and at those before it.
        final: no further look will be taken.
        work: what was counted of the same pairs and blocks.
    """
    pairs = whole_pairs(rounds)
    figures, absent = _figures(pairs, stages, params)
    compared: dict[str, Compared] = compare(
        {"/".join(name): f for name, f in figures.items()}, plan, list(counts), final=final
    )
    named = {name: compared["/".join(name)] for name in figures}
    blocking = [(stage, figure) for stage in stages for figure in params.blocking.get(stage, [])]
    verdict, reason = verdict_of(
        {n: named[n] for n in blocking if n in named},
        {n: absent.get(n, f"no such figure; known: {', '.join(FIGURES)}") for n in blocking if n not in named},
    )
    return Look(len(pairs), named, absent, *_with_work(verdict, reason, work))


def _figures(
    pairs: Sequence[tuple[Round, Round]], stages: Sequence[str], params: AbParams
) -> tuple[dict[Name, Rounds], dict[Name, str]]:
    present: dict[Name, Rounds] = {}
    absent: dict[Name, str] = {}
    order = [base_first(a.pair) for a, _ in pairs]
    for figure in FIGURES:
        columns: list[tuple[list[float], list[float]]] = []
        for stage in stages:
            a = [base.figures[stage, figure] for base, _ in pairs]
            b = [candidate.figures[stage, figure] for _, candidate in pairs]
            if missing := sum(v is None for v in (*a, *b)):
                absent[stage, figure] = f"too few samples for it in {missing} of {2 * len(pairs)} rounds"
                continue
            if zero := sum(v == 0 for v in (*a, *b)):
                absent[stage, figure] = f"0 in {zero} of {2 * len(pairs)} rounds: tokens reached the client together"
                continue
            known = ([float(v) for v in a if v is not None], [float(v) for v in b if v is not None])
            columns.append(known)
            blocks = figure in params.blocking.get(stage, [])
            present[stage, figure] = _rounds(figure, *known, params, order, blocking=blocks)
        if len(columns) == len(stages) > 1:
            both = [[_mean(v) for v in zip(*(c[side] for c in columns), strict=True)] for side in (0, 1)]
            present[POOLED, figure] = _rounds(figure, both[0], both[1], params, order, blocking=False)
    return present, absent


def _rounds(
    figure: str, a: list[float], b: list[float], params: AbParams, order: list[bool], *, blocking: bool
) -> Rounds:
    higher = figure == THROUGHPUT
    return Rounds(a, b, params.margin_percent / 100, order, blocking, higher)


def _mean(values: Sequence[float]) -> float:
    """Geometric: stages weigh the same, whatever their figures' size."""
    return math.exp(sum(map(math.log, values)) / len(values)) if all(map(math.isfinite, values)) else math.inf


def verdict_of(blocking: Mapping[Name, Compared], absent: Mapping[Name, str]) -> tuple[Verdict, str]:
    """Any blocking figure that fails holds; all must pass to ship; no evidence is never a pass."""
    failing = [n for n, c in blocking.items() if c.outcome == "fail"]
    open_ = [n for n, c in blocking.items() if c.outcome == "undecided"]
    if failing:
        worst = max(failing, key=lambda n: -1.0 if (r := blocking[n].ratio) is None else r.ratio)
        return "hold", f"{_words(worst)} is {blocking[worst].why}" + _also(failing, worst)
    if absent:
        name, why = next(iter(absent.items()))
        return "undecided", f"{_words(name)}: {why}; a longer slice, or another blocking figure"
    if open_ or not blocking:
        if not blocking:
            return "undecided", "no figure blocks: ab.blocking names none of this profile's stages"
        widest = max(open_, key=lambda n: blocking[n].pairs_needed or math.inf)
        c = blocking[widest]
        would = f"; {c.pairs_needed} pairs of rounds would settle it" if c.pairs_needed else ""
        return "undecided", f"{_words(widest)} {c.why}{would}" + _also(open_, widest)
    worst = max(blocking, key=lambda n: r.high if (r := blocking[n].ratio) else math.inf)
    return "ship", f"{len(blocking)} blocking figures are inside the margin; the widest, {_words(worst)}: " + (
        blocking[worst].why
    )


def _with_work(verdict: Verdict, reason: str, work: Sequence[Counted]) -> tuple[Verdict, str]:
    """What was counted holds by itself; what could not be counted keeps a build from shipping."""
    failing = [c for c in work if c.outcome == "fail"]
    if failing:
        also = [c.words for c in failing[1:]] + ([f"latency: {reason}"] if verdict == "hold" else [])
        more = f" (also: {', '.join(also)})" if also else ""
        return "hold", f"{failing[0].words} is {failing[0].why}{more}"
    unknown = [c for c in work if c.outcome == "undecided"]
    if verdict == "ship" and unknown:
        return "undecided", f"{unknown[0].words}: {unknown[0].why} (latency alone: ship: {reason})"
    if verdict == "ship" and work:
        return "ship", f"{reason}; {len(work)} counts of the same requests are too"
    return verdict, reason


def held_stages(look: Look, params: AbParams) -> dict[str, str]:
    """Of each latency that holds, ``ttft`` and ``itl``, the stage that it has grown most in. Where only throughput
    holds, both of its stage: it is what they leave.
    """
    failing = [
        (c.ratio.ratio if c.ratio else math.inf, stage, figure.partition("-")[0])
        for (stage, figure), c in look.compared.items()
        if c.outcome == "fail" and figure in params.blocking.get(stage, [])
    ]
    grown = {metric: stage for _, stage, metric in sorted(failing)}
    throughput = grown.pop(THROUGHPUT, None)
    return grown if grown or throughput is None else {"ttft": throughput, "itl": throughput}


def _words(name: Name) -> str:
    stage, figure = name
    metric, _, quantile = figure.partition("-")
    return f"{quantile.upper()} {metric.upper()} of {stage}" if quantile else f"{figure} of {stage}"


def _also(names: Sequence[Name], but: Name) -> str:
    others = [_words(n) for n in names if n != but]
    return f" (also: {', '.join(others)})" if others else ""


def resolved_in(look: Look, pair_s: float, confidence: float) -> dict[str, Any]:
    """What the machine resolves: for every blocking-sized figure the standard error of its ratio and the half-width of
    its interval now, and the loss told from none with 80 % power after 5, 10 and 20 minutes at this spread, in percent.
    """
    out: dict[str, Any] = {}
    for name, c in look.compared.items():
        r = c.ratio
        if r is None:
            continue
        spread, lost = r.log_error * math.sqrt(r.pairs), r.pairs - r.freedom
        after: dict[str, float | None] = {}
        for minutes in MINUTES:
            n = int(minutes * 60 // pair_s)
            t = None
            if n - lost >= 1:
                t = float(stats.t.isf(1 - confidence, n - lost) + stats.t.ppf(0.8, n - lost))
            after[str(minutes)] = None if t is None else 100 * (math.exp(t * spread / math.sqrt(n)) - 1)
        half = 100 * (math.sqrt(r.high / r.low) - 1)
        out["/".join(name)] = {
            "standard_error_percent": 100 * math.expm1(r.log_error),
            "half_width_percent": half,
            "resolves_percent_after_minutes": after,
        }
    return out
