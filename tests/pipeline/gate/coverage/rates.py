"""How often each rule of the shipped policies lets a bad build pass, passes a good one and fails a bad one.

The judges' own statistics, at the sample sizes of a pull request (or a release), on made-up data: a build just beyond
the limit or margin must pass no more often than the policy's confidence allows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import stats

from pipeline.gate.rules.quality import interval_outcome
from pipeline.gate.statistics.compare import Rounds, compare
from pipeline.gate.statistics.effective import cluster_design_effect, serial_design_effect
from pipeline.gate.statistics.lengths import judge_band, length_ratio
from pipeline.gate.statistics.looks import LookPlan
from pipeline.gate.statistics.paired import paired_delta
from pipeline.gate.statistics.shares import judge_share
from pipeline.gate.statistics.tails import judge_tail
from tests.pipeline.gate.coverage.draws import autoregressive

DRAWS = 1000
Rng = np.random.Generator
Trial = Callable[[Rng, float], str]  # an outcome, at so bad a build


@dataclass(frozen=True)
class Rule:
    """``edge``: the least bad build that must not pass; ``good`` and ``bad``: what ought to pass and to fail."""

    name: str
    size: str
    confidence: float
    trial: Trial
    edge: tuple[float, str]
    good: tuple[float, str]
    bad: tuple[float, str]


@dataclass(frozen=True)
class Rates:
    rule: Rule
    false_pass: float
    false_fail: float
    passes_good: float
    fails_bad: float
    draws: int


def rates(rule: Rule, draws: int = DRAWS) -> Rates:
    rng = np.random.default_rng(list(rule.name.encode()))
    said = {
        kind: [rule.trial(rng, at) for _ in range(draws)]
        for kind, at in (("edge", rule.edge[0]), ("good", rule.good[0]), ("bad", rule.bad[0]))
    }
    share = {(k, o): sum(x == o for x in v) / draws for k, v in said.items() for o in ("pass", "fail")}
    return Rates(
        rule, share["edge", "pass"], share["good", "fail"], share["good", "pass"], share["bad", "fail"], draws
    )  # fmt: skip


def _tail(n: int, q: float, confidence: float, headroom: int, rho: float) -> Trial:
    """``at``: true share over the limit. Lognormal latencies, correlated in time."""

    def trial(rng: Rng, at: float) -> str:
        x = np.exp(0.5 * autoregressive(rng, 1, n, rho)[0])
        limit = math.exp(0.5 * stats.norm.isf(at))
        return judge_tail(x, limit, q, confidence, lambda u: n / serial_design_effect(x, u), headroom).outcome

    return trial


def _gaps(requests: int, q: float, confidence: float) -> Trial:
    def trial(rng: Rng, at: float) -> str:
        request = np.repeat(np.arange(requests), 8)
        z = math.sqrt(0.5) * rng.normal(size=requests)[request] + math.sqrt(0.5) * rng.normal(size=len(request))
        x, limit, clusters = np.exp(0.5 * z), math.exp(0.5 * stats.norm.isf(at)), request.tolist()
        return judge_tail(
            x, limit, q, confidence, lambda u: len(x) / cluster_design_effect(x, clusters, u), 4
        ).outcome  # fmt: skip

    return trial


def _share(n: int, limit: float, confidence: float) -> Trial:
    return lambda rng, at: judge_share(int(rng.binomial(n, at)), n, limit, confidence)


def _paired(n: int, flipped: float, margin: float, confidence: float) -> Trial:
    """``at``: true loss as a share; two items from a source, which flip together in half of the cases."""
    source = np.arange(n) // 2
    strata = [f"s{i * 4 // n}" for i in range(n)]
    clusters = source.astype(str).tolist()

    def trial(rng: Rng, at: float) -> str:
        together = rng.random(len(source))[source] < 0.5
        u = np.where(together, rng.random(len(source))[source], rng.random(n))
        lost = (flipped + at) / 2 if at < flipped else at
        d = np.where(u < lost, -1.0, np.where(u > 1 - (lost - at), 1.0, 0.0))
        p = paired_delta(d.tolist(), [0.0] * n, strata, clusters, confidence)
        return interval_outcome(p.low, p.high, -margin)

    return trial


def _lengths(n: int, band: float, confidence: float) -> Trial:
    source = (np.arange(n) // 2).astype(str).tolist()

    def trial(rng: Rng, at: float) -> str:
        size = 40 * np.exp(0.5 * rng.normal(size=n))
        own = size * (1 - at) * np.exp(0.25 * rng.normal(size=n) - 0.03125)
        r = length_ratio(own.tolist(), size.tolist(), ["s"] * n, source, confidence)
        return judge_band(r.low, r.high, band)

    return trial


def _rounds(margin: float, spread: float, at_pairs: tuple[int, ...]) -> Trial:
    """``at``: true slowdown; five blocking figures of equal truth and independent noise share the error."""
    plan = LookPlan(at_pairs)

    def trial(rng: Rng, at: float) -> str:
        noise = np.exp(rng.normal(0, spread, (5, 2, at_pairs[-1])))
        for k, n in enumerate(at_pairs):
            figures = {
                str(i): Rounds(x[0, :n].tolist(), ((1 + at) * x[1, :n]).tolist(), margin) for i, x in enumerate(noise)
            }
            said = [c.outcome for c in compare(figures, plan, at_pairs[: k + 1]).values()]
            if "fail" in said:
                return "fail"
            if set(said) == {"pass"}:
                return "pass"
        return "undecided"

    return trial


def rules() -> list[Rule]:
    tail_edge = (0.0501, "5.01 % over the limit")
    return [
        Rule("limit on P95 of TTFT", "150 requests, correlated by 0.5", 0.95, _tail(150, 0.95, 0.95, 4, 0.5),
             tail_edge, (0.005, "0.5 % over"), (0.15, "15 % over")),
        Rule("limit on P95 of TTFT, short run", "90 requests, correlated by 0.5", 0.95, _tail(90, 0.95, 0.95, 4, 0.5),
             tail_edge, (1e-6, "0.0001 % over"), (0.3, "30 % over")),
        Rule("limit on P95 of ITL", "150 requests of 8 gaps", 0.95, _gaps(150, 0.95, 0.95),
             tail_edge, (0.01, "1 % over"), (0.12, "12 % over")),
        Rule("limit on P99 of TTFT (release)", "3000 requests, correlated by 0.5", 0.99,
             _tail(3000, 0.99, 0.99, 1, 0.5),
             (0.01001, "1.001 % over"), (0.003, "0.3 % over"), (0.025, "2.5 % over")),
        Rule("share of errors or cut answers", "450 requests, limit 2 %", 0.95, _share(450, 0.02, 0.95),
             (0.02001, "2.001 %"), (0.004, "0.4 %"), (0.05, "5 %")),
        Rule("accuracy, margin 4 points", "700 items of 350 sources, 7 % flip", 0.95, _paired(700, 0.07, 0.04, 0.95),
             (0.0401, "4.01 points lost"), (0.0, "equal"), (0.08, "8 points lost")),
        Rule("accuracy, margin 4 points (release)", "700 items of 350 sources, 5 % flip", 0.99,
             _paired(700, 0.05, 0.04, 0.99), (0.0401, "4.01 points lost"), (0.0, "equal"), (0.09, "9 points lost")),
        Rule("answers cut off, margin 7 points", "380 answers of 190 sources, 8 % differ", 0.95,
             _paired(380, 0.08, 0.07, 0.95), (0.0701, "7.01 points more"), (0.0, "equal"), (0.14, "14 points more")),
        Rule("length of answers, band 20 %", "380 answers of 190 sources", 0.95, _lengths(380, 0.2, 0.95),
             (0.201, "20.1 % shorter"), (0.0, "equal"), (0.3, "30 % shorter")),
        Rule("A/B, margin 5 %, 5 figures", "3 looks at 6, 12, 18 pairs, 3 % spread a round", 0.95,
             _rounds(0.05, 0.03, (6, 12, 18)), (0.0501, "all 5.01 % slower"), (0.0, "equal"), (0.10, "10 % slower")),
    ]  # fmt: skip


def table(found: list[Rates]) -> str:
    head = (
        "| rule | sample | passes at the edge (allowed) | passes a good build | fails it | fails a bad build |\n"
        "| --- | --- | --- | --- | --- | --- |\n"
    )
    return head + "\n".join(
        f"| {r.rule.name} | {r.rule.size} | {r.false_pass:.1%} ({1 - r.rule.confidence:.0%}): {r.rule.edge[1]} | "
        f"{r.passes_good:.1%}: {r.rule.good[1]} | {r.false_fail:.1%} | {r.fails_bad:.1%}: {r.rule.bad[1]} |"
        for r in found
    )
