"""``seatrial policy explain``: what a policy asks, what it can detect at the sample sizes at hand, and what it would
take to detect less.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scipy import stats

from pipeline.errors import SeatrialError
from pipeline.evaluation.items import EVALSETS, load_evalset
from pipeline.gate.inputs import RESULTS
from pipeline.gate.policy import (
    AnswerLength,
    CutOff,
    Divergence,
    ErrorRate,
    LatencyLimit,
    Policy,
    QualityBaseline,
    QualityDelta,
    Rule,
    Truncation,
)
from pipeline.gate.statistics.paired import detectable_delta
from pipeline.gate.statistics.planning import failing_share, needed, passing_share, samples_to_fail
from pipeline.gate.statistics.tails import FACTORS
from pipeline.params import AbParams

DISAGREEMENTS = (0.05, 0.10, 0.20)
LESS = 2  # "what it would take to detect less": twice the share that is allowed
Lines = list[str]


@dataclass(frozen=True)
class Sizes:
    """What there is to judge: the set's items and sources, and the requests of each stage of the last load test."""

    evalset: str
    items: int | None
    sources: int | None
    generated: int | None
    choices: int | None
    why: str
    requests: dict[str, int]


def sizes_at_hand(evalset: str, tier: str, results: Path = RESULTS, evalsets: Path = EVALSETS) -> Sizes:
    """From the folder of the set and, where a load test of ``tier`` was run, its record; never raises for either."""
    requests: dict[str, int] = {}
    try:
        load = json.loads((results / tier / "load/load.json").read_text(encoding="utf-8"))
        for stage, figures in load["stages"].items():
            requests[stage] = int(figures["requests"])
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        requests = {}
    try:
        items = load_evalset(evalsets / evalset).items
    except SeatrialError as e:
        return Sizes(evalset, None, None, None, None, str(e), requests)
    choices = sum(i.kind == "choice" for i in items)
    sources = len({(i.scenario, i.source) for i in items})
    return Sizes(evalset, len(items), sources, len(items) - choices, choices, "", requests)


def explain(policy: Policy, sizes: Sizes) -> str:
    """One paragraph a rule, for people."""
    lines = [f"policy {policy.name}: {len(policy.rules)} rules, confidence {policy.confidence:.0%} one-sided"]
    if policy.limits_for is not None:
        asked = policy.limits_for.machines.model_dump(exclude_none=True, exclude_defaults=True)
        words = ", ".join(f"{k} {list(v) if isinstance(v, tuple) else v}" for k, v in asked.items()) or "any machine"
        lines.append(f"latency limits are for machines of class {policy.limits_for.name}: {words}")
    if policy.budget_minutes is not None:
        lines.append(f"budget: {policy.budget_minutes:g} minutes of measuring")
    blocking = sum(r.severity == "blocking" for r in policy.rules)
    lines += [
        f"ship: all {blocking} blocking rules pass; hold: one fails that stands among all that were looked at (Holm), "
        "so that an equal build is held with at most the chance that one test has",
        "",
    ]
    for rule in policy.rules:
        doc = " ".join((type(rule).__doc__ or "").split())
        lines.append(f"{rule.id} ({rule.kind}, {rule.severity}): {doc}")
        lines += [f"    {line}" for line in power_of(rule, policy, sizes)]
    for w in policy.waivers:
        lines.append(f"waived: {w.rule} for {w.tier} by {w.owner} until {w.expires}: {w.reason}")
    return "\n".join(lines)


def power_of(rule: Rule, policy: Policy, sizes: Sizes) -> Lines:
    """What one rule can detect at the sizes at hand, and what it would take to detect less."""
    teller: Callable[[Any, float, Sizes], Lines] = _TELLERS.get(type(rule), _plain)
    return teller(rule, rule.confidence or policy.confidence, sizes)


def explain_ab(ab: AbParams) -> str:
    """The policy of ``seatrial ab``, for people: what blocks, how it decides, and what it can detect.

    Student's t on the log ratios of pairs of rounds: with ``n`` pairs of spread s the interval's half width is
    t s / sqrt(n); an equal build is inside the margin in 4 of 5 runs up to the spread told.
    """
    margin = math.log1p(ab.margin_percent / 100)
    how = "one after the other" if ab.turn_s is None else f"both sides in turns of {ab.turn_s:g} s"
    lines = [
        f"seatrial ab: pairs of rounds, {how}, of profile {ab.profile} for up to {ab.budget_minutes:g} minutes,"
        f" {ab.looks} looks that share {1 - ab.confidence:.0%} of error (Pocock-type spending)",
        *(f"    {stage}: {', '.join(names)} block" for stage, names in ab.blocking.items()),
        f"    ship: each is surely less than {ab.margin_percent:g} % worse; hold: one is surely worse by more, among"
        " all that block; else undecided",
    ]
    if ab.counts:
        lines.append(
            f"    {', '.join(ab.counts)} of the same requests block in every stage: exact, so none of the error is"
            f" spent on them; more than {ab.margin_percent:g} % worse holds after two pairs"
        )
    for pairs in (6, 12, 24):
        reach = float(stats.t.isf(1 - ab.confidence, pairs - 1) + stats.t.ppf(0.8, pairs - 1))
        most, seen = 100 * math.expm1(margin * math.sqrt(pairs) / reach), 100 * math.expm1(2 * margin)
        lines.append(
            f"    {pairs} pairs of rounds: a figure of an equal build passes in 4 of 5 runs where ratios spread by "
            f"{most:.1f} % from pair to pair or less, and one {seen:.1f} % worse fails as often (at one look)"
        )
    return "\n".join(lines)


def _plain(rule: Rule, confidence: float, sizes: Sizes) -> Lines:
    shown = rule.model_dump(exclude={"id", "kind", "severity", "confidence"}, exclude_none=True)
    return [", ".join(f"{k} {v}" for k, v in shown.items())] if shown else []


def _latency(rule: LatencyLimit, confidence: float, sizes: Sizes) -> Lines:
    limits = ", ".join(f"{stage} {limit:g} ms" for stage, limit in rule.limits_ms.items())
    allowed = 1 - rule.quantile
    lines = [limits, _passes(allowed, confidence, "independent samples", "over the limit")]
    for h in (f for f in FACTORS if 1 < f <= rule.headroom and f * allowed < 0.5):
        lines.append(f"or from {needed(h * allowed, confidence)} with none over 1/{h} of the limit")
    if rule.metric == "ttft":  # gaps outnumber requests, and are worth far fewer than there are: said in the verdict
        for stage in rule.limits_ms:
            if n := sizes.requests.get(stage):
                lines.append(f"{stage}: {_detects(n, allowed, confidence, 'requests, were they independent')}")
    return [*lines, _less(allowed, confidence, "independent samples")]


def _share(rule: ErrorRate | Truncation, confidence: float, sizes: Sizes) -> Lines:
    lines = [f"limit {rule.limit:.2%}: {_passes(rule.limit, confidence, 'requests', 'of the kind')}"]
    if n := sum(sizes.requests.values()):
        lines.append(_detects(n, rule.limit, confidence, "requests"))
    return [*lines, _less(rule.limit, confidence, "requests")]


def _passes(allowed: float, confidence: float, what: str, over: str) -> str:
    none, one, two = (needed(allowed, confidence, k) for k in (0, 1, 2))
    return f"passes from {none} {what} with none {over}, {one} with one, {two} with two"


def _detects(n: int, allowed: float, confidence: float, what: str) -> str:
    good, bad = passing_share(n, allowed, confidence), failing_share(n, allowed, confidence)
    passes = "never passes" if good is None else f"passes in 4 of 5 runs up to a true share of {good:.2%}"
    fails = "never fails" if bad is None else f"fails in 4 of 5 from {bad:.2%}"
    return f"{n} {what}: {passes}, {fails} ({allowed:.3g} allowed)"


def _less(allowed: float, confidence: float, what: str) -> str:
    n = samples_to_fail(LESS * allowed, allowed, confidence)
    return f"to fail twice the share that is allowed in 4 of 5 runs: {n} {what}"


def _margin(rule: QualityDelta | QualityBaseline | CutOff, confidence: float, sizes: Sizes) -> Lines:
    n = sizes.generated if isinstance(rule, CutOff) else sizes.items
    if n is None or sizes.sources is None:
        return [f"margin {rule.margin_points:g} points; what it can detect is unknown: {sizes.why}"]
    what = "generated answers" if isinstance(rule, CutOff) else "items"
    sources = min(n, sizes.sources)
    lines = [f"margin {rule.margin_points:g} points, on {n} {what} from {sources} independent sources"]
    for flips in DISAGREEMENTS:
        best, worst = (100 * detectable_delta(m, flips, confidence) for m in (n, sources))
        says = "can" if worst <= rule.margin_points else "may be too few to" if best <= rule.margin_points else "cannot"
        half = 100 * math.sqrt(flips / n) * detectable_delta(1, 1, confidence, 0.5)
        lines.append(
            f"at {flips:.0%} of {what} flipped: half width {half:.1f} points at least; an equal build passes in 4 of 5 "
            f"runs from a margin of {best:.1f} (independent {what}) to {worst:.1f} ({what} of a source flip together): "
            f"{says} decide"
        )
    for points in (rule.margin_points / 2, 1.0):
        m = math.ceil(DISAGREEMENTS[1] * (detectable_delta(1, 1, confidence) / (points / 100)) ** 2)
        lines.append(f"for a margin of {points:g} points at {DISAGREEMENTS[1]:.0%} flipped: {m} independent {what}")
    return lines


def _length(rule: AnswerLength, confidence: float, sizes: Sizes) -> Lines:
    """A length differs from answer to answer by a factor whose spread is assumed to be 25 or 50 %."""
    if sizes.generated is None:
        return [f"band {rule.band_percent:g} %; what it can detect is unknown: {sizes.why}"]
    n = sizes.generated
    halves = [100 * spread * detectable_delta(n, 1, confidence, 0.5) for spread in (0.25, 0.5)]
    return [
        f"band {rule.band_percent:g} % on {n} generated answers: half width {halves[0]:.1f} % where lengths differ by "
        f"25 %, {halves[1]:.1f} % where by 50 %; a quarter of that takes 16 times as many"
    ]


def _divergence(rule: Divergence, confidence: float, sizes: Sizes) -> Lines:
    allowed = 1 - rule.quantile
    lines = [
        f"limit {rule.limit_nats:g} nats: {_passes(allowed, confidence, 'independent choice items', 'over the limit')}"
    ]
    if sizes.choices:
        lines.append(_detects(sizes.choices, allowed, confidence, "choice items, were they independent"))
    return [*lines, _less(allowed, confidence, "independent choice items")]


_TELLERS: dict[type, Callable[[Any, float, Sizes], Lines]] = {
    LatencyLimit: _latency,
    ErrorRate: _share,
    Truncation: _share,
    QualityDelta: _margin,
    QualityBaseline: _margin,
    CutOff: _margin,
    AnswerLength: _length,
    Divergence: _divergence,
}
