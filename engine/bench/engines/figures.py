"""Figures of one run, their medians over the rounds, and ratios to the base engine taken round by round."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

from engine.bench.compare import Ratio, ratio_of
from engine.bench.engines.engine import Run
from engine.bench.engines.workloads import Workload
from engine.bench.metrics import Figure, min_samples, nearest_rank

ABSENT = Figure(None, "no such round")


@dataclass(frozen=True)
class RunMetric:
    name: str
    title: str
    unit: str
    better: Literal["higher", "lower"]
    formula: Callable[[Workload, Run], Figure]


class Spread(NamedTuple):
    """Median over the rounds, smallest and largest; None and why where no round has the figure."""

    median: float | None
    low: float | None = None
    high: float | None = None
    rounds: int = 0
    reason: str | None = None


def _gaps_ms(run: Run) -> list[float]:
    return [1000 * (b - a) for times in run.token_s for a, b in pairwise(times)]


def _ttft(_: Workload, run: Run) -> Figure:
    return Figure(1000 * statistics.median(times[0] for times in run.token_s))


def _itl(_: Workload, run: Run) -> Figure:
    gaps = _gaps_ms(run)
    return Figure(statistics.median(gaps)) if gaps else Figure(None, "one token a request has no gap")


def _itl_p95(_: Workload, run: Run) -> Figure:
    gaps = _gaps_ms(run)
    if len(gaps) < min_samples(0.95):
        return Figure(None, f"P95 needs {min_samples(0.95)} gaps, there are {len(gaps)}")
    return Figure(nearest_rank(gaps, 0.95))


def _output(_: Workload, run: Run) -> Figure:
    return Figure(run.output_tokens / run.seconds)


def _prompt(workload: Workload, run: Run) -> Figure:
    return Figure(workload.prompt_tokens / max(times[0] for times in run.token_s))


def _peak(_: Workload, run: Run) -> Figure:
    return Figure(None, "its processes are not ours to see") if run.peak_bytes is None else Figure(run.peak_bytes)


METRICS = (
    # median over the requests: from the moment all are handed over to a request's first token
    RunMetric("ttft_ms", "TTFT", "ms", "lower", _ttft),
    # median and nearest-rank P95 of all gaps between two tokens of a request
    RunMetric("itl_ms", "ITL", "ms", "lower", _itl),
    RunMetric("itl_p95_ms", "ITL P95", "ms", "lower", _itl_p95),
    # all output tokens over the time to the last of them
    RunMetric("output_tokens_per_s", "output", "tok/s", "higher", _output),
    # all prompt tokens over the time until every request has its first token
    RunMetric("prompt_tokens_per_s", "prompt", "tok/s", "higher", _prompt),
    # most resident memory of its processes during the run
    RunMetric("peak_bytes", "peak memory", "bytes", "lower", _peak),
)


@dataclass(frozen=True)
class Result:
    """One engine on one workload; by metric name. ``agreement``: see ``agreed_tokens``, a round each."""

    engine: str
    rounds: dict[str, list[Figure]]
    spreads: dict[str, Spread]
    ratios: dict[str, Ratio]  # empty for the base and without one
    agreement: list[int | None]


def spread_of(figures: Sequence[Figure]) -> Spread:
    known = [f.value for f in figures if f.value is not None]
    if not known:
        return Spread(None, reason=next((f.reason for f in figures if f is not ABSENT), "no round was run"))
    return Spread(statistics.median(known), min(known), max(known), len(known))


def paired_ratio(metric: RunMetric, mine: Sequence[Figure], base: Sequence[Figure]) -> Ratio:
    """Over the rounds that both have."""
    both = [(a, b) for a, b in zip(mine, base, strict=True) if a.value is not None and b.value is not None]
    if not both:
        reason = next((f.reason for f in (*mine, *base) if f.reason), "no round has both")
        return Ratio(None, reason=reason)
    return ratio_of(metric, [a for a, _ in both], [b for _, b in both])


def results_of(
    workload: Workload, runs: dict[str, list[Run | None]], base: str | None, reference: str | None
) -> list[Result]:
    """Of the engines that have a round. ``runs``: by engine, a round each, None where there is none. ``reference``: the
    engine whose tokens are right."""
    runs = {name: of for name, of in runs.items() if any(of)}
    rounds = {
        name: {m.name: [ABSENT if r is None else m.formula(workload, r) for r in of] for m in METRICS}
        for name, of in runs.items()
    }
    return [
        Result(
            name,
            found,
            {k: spread_of(v) for k, v in found.items()},
            {m.name: paired_ratio(m, found[m.name], rounds[base][m.name]) for m in METRICS}
            if base is not None and name != base and base in rounds
            else {},
            [agreed_tokens(a, b) for a, b in zip(runs[name], runs.get(reference or "", runs[name]), strict=True)]
            if reference not in (None, name)
            else [],
        )
        for name, found in rounds.items()
    ]


def agreed_tokens(run: Run | None, reference: Run | None) -> int | None:
    """Tokens before the first difference, summed over the requests; None without both outputs."""
    if run is None or reference is None or run.tokens is None or reference.tokens is None:
        return None
    return sum(
        next((k for k, (a, b) in enumerate(zip(mine, theirs, strict=False)) if a != b), min(len(mine), len(theirs)))
        for mine, theirs in zip(run.tokens, reference.tokens, strict=True)
    )
