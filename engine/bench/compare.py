"""Figures by policy, and ratios to the policy that each is measured against, by round."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from scipy import stats

from engine.bench.drive import RunRecord
from engine.bench.errors import BenchError
from engine.bench.metrics import METRICS, Figure
from engine.bench.policies import Policy

RESOLUTION = 1e-9  # of a log ratio: rounding is no difference


class Titled(Protocol):
    @property
    def title(self) -> str: ...


@dataclass(frozen=True)
class Ratio:
    """The geometric mean over the rounds and the smallest and largest of them. The round is the unit: the requests
    within one are correlated, and a machine that drifts moves both sides of a round alike.

    ``clear``: the 95 % t-interval of the mean log ratio, from two rounds on, lies on one side of 1.
    """

    mean: float | None
    low: float | None = None
    high: float | None = None
    rounds: int = 0
    clear: bool = False
    reason: str | None = None


@dataclass(frozen=True)
class Result:
    """One policy: pooled figures, figures of each round, ratios to ``policy.against``; each by metric name."""

    policy: Policy
    pooled: dict[str, Figure]
    rounds: dict[str, list[Figure]]
    ratios: dict[str, Ratio]


def compare(policies: list[Policy], records: dict[str, list[RunRecord]]) -> list[Result]:
    """``records``: one a round for each policy, by name. A policy's ``against`` must be among them."""
    rounds = {p.name: {m.name: [m.formula([r]) for r in records[p.name]] for m in METRICS} for p in policies}
    return [
        Result(
            p,
            {m.name: m.formula(records[p.name]) for m in METRICS},
            rounds[p.name],
            {m.name: ratio_of(m, rounds[p.name][m.name], rounds[p.against][m.name]) for m in METRICS if m.compared}
            if p.against
            else {},
        )
        for p in policies
    ]


def check_same_outputs(records: Iterable[tuple[str, list[RunRecord]]]) -> None:
    """A policy decides when a token is computed, never which: every run of every policy gave the same ones.
    ``records``: runs by the policy's name.

    Raises:
        BenchError: two runs differ, with the place.
    """
    (first_name, first), *rest = ((name, r) for name, runs in records for r in runs)
    for name, record in rest:
        for i, (expected, found) in enumerate(zip(first.tokens, record.tokens, strict=True)):
            if expected != found:
                at = next((k for k, (a, b) in enumerate(zip(expected, found, strict=False)) if a != b), len(found))
                raise BenchError(
                    f"request {i} under {name} differs from {first_name} from token {at} on; outputs must not depend "
                    "on the policy: a defect of the engine"
                )


def ratio_of(metric: Titled, mine: list[Figure], theirs: list[Figure]) -> Ratio:
    """Of the rounds in which both sides have a figure above 0; None unless all of them do."""
    logs = []
    for a, b in zip(mine, theirs, strict=True):
        if not (a.value and b.value):
            reason = a.reason or b.reason or f"{metric.title} is 0 in a round"
            return Ratio(None, reason=f"by round: {reason}")
        logs.append(math.log(a.value / b.value))
    mean, n = math.fsum(logs) / len(logs), len(logs)
    half = math.inf
    if n > 1:
        half = float(stats.t.ppf(0.975, n - 1)) * statistics.stdev(logs) / math.sqrt(n)
    clear = abs(mean) > half + RESOLUTION
    return Ratio(math.exp(mean), math.exp(min(logs)), math.exp(max(logs)), n, clear)
