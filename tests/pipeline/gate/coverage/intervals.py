"""How often each interval, asked for 95 %, holds the truth: one row a method and kind of data."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from scipy import stats

from loadtests.quantiles import nearest_rank
from pipeline.gate.statistics.effective import cluster_design_effect, serial_design_effect
from pipeline.gate.statistics.effects import hodges_lehmann
from pipeline.gate.statistics.lengths import length_ratio
from pipeline.gate.statistics.paired import paired_delta
from pipeline.gate.statistics.rounds import ratio_by_round
from pipeline.gate.statistics.shares import share_interval
from pipeline.load.intervals import quantile_interval
from tests.pipeline.gate.coverage.draws import LATENCIES, Latency

DRAWS, ONE_SIDED = 2000, 0.975
Rng = np.random.Generator
Ends = Iterator[tuple[float, float]]


@dataclass(frozen=True)
class Row:
    """``conservative``: by nature covers more than asked (ranks and counts are whole numbers)."""

    method: str
    data: str
    conservative: bool
    too_low: int  # draws in which the upper end lies below the truth
    too_high: int
    draws: int

    @property
    def covered(self) -> float:
        return 1 - (self.too_low + self.too_high) / self.draws


@dataclass(frozen=True)
class Case:
    method: str
    data: str
    truth: float
    ends: Callable[[Rng, int], Ends]
    conservative: bool = False

    def row(self, draws: int = DRAWS) -> Row:
        rng = np.random.default_rng([20261129, *f"{self.method}{self.data}".encode()])
        low, high = np.asarray(list(self.ends(rng, draws))).T
        return Row(
            self.method, self.data, self.conservative, int((high < self.truth).sum()), int((low > self.truth).sum()),
            len(low),
        )  # fmt: skip


def _open(ends: tuple[float | None, float | None]) -> tuple[float, float]:
    return -math.inf if ends[0] is None else ends[0], math.inf if ends[1] is None else ends[1]


def _quantile(latency: Latency, q: float, n: int, rho: float) -> Case:
    def ends(rng: Rng, draws: int) -> Ends:
        for x in latency.draw(rng, draws, n, rho):
            ordered = np.sort(x)
            worth = n / serial_design_effect(x, nearest_rank(ordered, q)) if rho else float(n)
            yield _open(quantile_interval(ordered, q, worth))

    how = f"correlated in time by {rho:g}" if rho else "independent"
    data = f"{latency.name}, {how}, {n} requests"
    return Case(f"P{q * 100:g}, order statistics", data, latency.quantile(q), ends, conservative=True)


def _gaps(latency: Latency, q: float, requests: int = 60, each: int = 10) -> Case:
    """Gaps of a request share half of their variance, and gaps of one second a fifth (the step serves all of them)."""

    def ends(rng: Rng, draws: int) -> Ends:
        request = np.repeat(np.arange(requests), each)
        second = (request * 3 + np.tile(np.arange(each), requests)) // 12
        for _ in range(draws):
            z = math.sqrt(0.5) * rng.normal(size=requests)[request] + math.sqrt(0.3) * rng.normal(size=len(request))
            z += math.sqrt(0.2) * rng.normal(size=second.max() + 1)[second]
            if latency.name == "lognormal":
                x = 100 * np.exp(0.5 * z)
            else:  # a slow request is slow in all its gaps
                x = np.where(rng.random(requests)[request] < 0.2, 400.0, 100.0) * np.exp(0.2 * z)
            ordered = np.sort(x)
            level = nearest_rank(ordered, q)
            effect = max(cluster_design_effect(x, c.tolist(), level) for c in (request, second))
            yield _open(quantile_interval(ordered, q, len(x) / effect))

    data = f"{latency.name}, gaps of {requests} requests and of the steps that they share"
    return Case(f"P{q * 100:g}, order statistics", data, latency.quantile(q), ends, conservative=True)


def _rounds(latency: Latency, q: float, pairs: int, rho: float, method: str) -> Case:
    """Candidate 7 % slower; the machine differs from pair to pair by 10 %; ``crossover``: and drifts by 1 % a round."""
    n = 120

    def ends(rng: Rng, draws: int) -> Ends:
        x = latency.draw(rng, draws * pairs * 2, n, rho)
        rank = math.ceil(q * n) - 1
        figure = np.partition(x, rank, axis=1)[:, rank].reshape(draws, pairs, 2)
        figure *= np.exp(rng.normal(0, 0.1, (draws, pairs, 1)))
        base, candidate = figure[..., 0], figure[..., 1] * 1.07
        first = np.arange(pairs) % 2 == 0
        if method == "crossover t":
            candidate = candidate * np.where(first, 1.01, 1 / 1.01)
        for b, c in zip(base, candidate, strict=True):
            r = (
                ratio_by_round(b, c, ONE_SIDED, base_first=first.tolist())
                if method == "crossover t"
                else ratio_by_round(b, c, ONE_SIDED, method="t" if method == "t" else "bootstrap_t")
            )
            yield r.low, r.high

    how = f"correlated by {rho:g} within a round" if rho else "independent"
    return Case(f"ratio of P{q * 100:g} by round, {method}", f"{latency.name}, {how}, {pairs} pairs", 1.07, ends)


def _share(share: float, n: int) -> Case:
    def ends(rng: Rng, draws: int) -> Ends:
        for k in rng.binomial(n, share, draws):
            yield share_interval(int(k), n, ONE_SIDED)

    return Case("share, Clopper-Pearson", f"{share:.0%} of {n}", share, ends, conservative=True)


def _paired(rate: float, loss: float, sources: int, most: int) -> Case:
    """Four strata of sources with 1 to ``most`` items each; a source's items flip together in two of three cases."""
    source = np.repeat(np.arange(sources), [1 + i % most for i in range(sources)])
    n = len(source)
    strata = [f"s{i * 4 // sources}" for i in source]
    clusters = [str(i) for i in source]

    def ends(rng: Rng, draws: int) -> Ends:
        for _ in range(draws):
            together = rng.random(sources)[source] < 0.67
            u = np.where(together, rng.random(sources)[source], rng.random(n))
            d = np.where(u < rate / 2 + loss, -1.0, np.where(u > 1 - rate / 2, 1.0, 0.0))
            p = paired_delta(d.tolist(), [0.0] * n, strata, clusters, ONE_SIDED)
            yield p.low, p.high

    data = f"{n} items, {rate + loss:.0%} flip, {sources} sources"
    return Case("paired difference, clustered", data, -loss, ends)


def _lengths(n: int = 160) -> Case:
    """Answers from one source share a length; the candidate's are 10 % shorter, each by its own factor."""
    cluster = np.arange(n) // 2
    source = cluster.astype(str).tolist()

    def ends(rng: Rng, draws: int) -> Ends:
        for _ in range(draws):
            size = 40 * np.exp(0.4 * rng.normal(size=n // 2)[cluster] + 0.3 * rng.normal(size=n))
            own = 0.9 * np.exp(0.2 * rng.normal(size=n // 2)[cluster] + 0.2 * rng.normal(size=n) - 0.04)
            r = length_ratio((size * own).tolist(), size.tolist(), ["s"] * n, source, ONE_SIDED)
            yield r.low, r.high

    return Case("length of answers, ratio of means", f"{n} answers of {n // 2} sources", -0.1, ends)


def _divergence(n: int = 120, spread: float = 3.0) -> Case:
    """As skewed as those of the shipped set's choice items; two items from each source."""
    cluster = np.arange(n) // 2

    def ends(rng: Rng, draws: int) -> Ends:
        for _ in range(draws):
            x = math.sqrt(0.3) * rng.normal(size=n // 2)[cluster] + math.sqrt(0.7) * rng.normal(size=n)
            x = 0.001 * np.exp(spread * x)
            ordered = np.sort(x)
            worth = n / cluster_design_effect(x, cluster.tolist(), nearest_rank(ordered, 0.9))
            yield _open(quantile_interval(ordered, 0.9, worth))

    truth = 0.001 * math.exp(spread * stats.norm.ppf(0.9))
    data = f"divergences, lognormal with sigma {spread:g}, {n} items of {n // 2} sources"
    return Case("P90, order statistics", data, truth, ends, conservative=True)


def _shift(latency: Latency) -> Case:
    def ends(rng: Rng, draws: int) -> Ends:
        a, b = latency.draw(rng, draws, 60), latency.draw(rng, draws, 60) + 15
        for x, y in zip(a, b, strict=True):
            s = hodges_lehmann(x.tolist(), y.tolist())
            yield s.low, s.high

    return Case("shift, Hodges-Lehmann", f"{latency.name}, independent, 60 and 60 requests", 15.0, ends)


def cases() -> list[Case]:
    both = [
        c
        for latency in LATENCIES
        for c in (
            _quantile(latency, 0.5, 150, 0.0),
            _quantile(latency, 0.95, 150, 0.0),
            _quantile(latency, 0.99, 500, 0.0),
            _quantile(latency, 0.5, 200, 0.6),
            _quantile(latency, 0.95, 200, 0.6),
            _quantile(latency, 0.95, 400, 0.8),
            _gaps(latency, 0.95),
            _rounds(latency, 0.5, 6, 0.0, "t"),
            _rounds(latency, 0.95, 6, 0.0, "t"),
            _rounds(latency, 0.95, 6, 0.6, "t"),
            _rounds(latency, 0.95, 12, 0.6, "crossover t"),
            _rounds(latency, 0.95, 20, 0.6, "bootstrap t"),
            _shift(latency),
        )
    ]
    rest = [
        _share(0.05, 150),
        _share(0.01, 500),
        _paired(0.40, 0.0, 20, 3),
        _paired(0.30, 0.0, 40, 3),
        _paired(0.10, 0.0, 80, 7),
        _paired(0.10, 0.04, 80, 7),
        _paired(0.10, 0.0, 160, 3),
        _paired(0.10, 0.04, 160, 3),
        _lengths(),
        _divergence(),
    ]
    return [*both, *rest]


def table(rows: list[Row]) -> str:
    head = "| method | data | covers, of 95 % | misses below | misses above |\n| --- | --- | --- | --- | --- |\n"
    return head + "\n".join(
        f"| {r.method} | {r.data} | {r.covered:.1%}{' (conservative)' if r.conservative else ''} | "
        f"{r.too_low / r.draws:.1%} | {r.too_high / r.draws:.1%} |"
        for r in rows
    )


def nominal_error(draws: int = DRAWS) -> float:
    """Standard error of a coverage of 95 % in so many draws."""
    return math.sqrt(0.05 * 0.95 / draws)
