"""The figures of two load tools side by side: ours, guidellm's, and ours by guidellm's definitions.

The third is computed from the raw records of our client. Where it meets guidellm's figure the two instruments agree,
and what is left between the first two is their definitions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from loadtests.quantiles import nearest_rank
from pipeline.load.figures import FIGURES
from pipeline.load.summary import QUANTILES, summarise

Figures = dict[str, float | None]  # by name, such as "ttft_ms.p95"; None: too few samples, or none


@dataclass(frozen=True)
class Theirs:
    """A figure of ours and the one of guidellm's report that is closest to it."""

    metric: str  # of the report
    scale: float  # to our unit
    definition: str  # read from guidellm 0.8.1, schemas/base/request_stats.py and benchmark/schemas/metrics.py


LATENCIES: dict[str, Theirs] = {
    "ttft_ms": Theirs(
        "time_to_first_token_ms",
        1,
        "From sending the request's first byte to the line of the stream that brings its first text. Only of requests "
        "that ended well inside the measured time, also where they began before it; this holds for all latencies.",
    ),
    "itl_ms": Theirs(
        "inter_token_latency_ms",
        1,
        "Of one answer: from its first token to its last, divided by the number of tokens after the first; quantiles "
        "over answers, each weighted by those tokens. It is our TPOT: a stall inside an answer is averaged away.",
    ),
    "tpot_ms": Theirs(
        "time_per_output_token_ms",
        1,
        "Of one answer: from sending the request to its last token, divided by all its tokens; quantiles over answers, "
        "each weighted by its tokens. It contains the time to the first token, ours does not.",
    ),
    "e2e_ms": Theirs("request_latency", 1000, "From sending the request's first byte to the end of the stream."),
}
RATES: dict[str, Theirs] = {
    "output_tokens_per_s": Theirs(
        "output_tokens_per_second",
        1,
        "Output tokens in the measured time, divided by its length, of the requests that ended well inside it; the "
        "tokens of each are spread evenly from its first to its last. Those that the end cut off are not among them.",
    ),
    "prompt_tokens_per_s": Theirs(
        "prompt_tokens_per_second",
        1,
        "Prompt tokens of the requests that ended well inside the measured time, if their first token came in it too.",
    ),
    "requests_per_s": Theirs("requests_per_second", 1, "Requests that ended well, divided by the measured time."),
}
MEANS = {"prompt_tokens_mean": "prompt_token_count", "output_tokens_mean": "output_token_count"}
NAMES = [*(f"{m}.{q}" for m in LATENCIES for q in QUANTILES), *RATES, *MEANS]


def our_figures(records: pl.DataFrame, window: tuple[str, float, float]) -> Figures:
    """As ``load.json`` has them. ``window``: the stage, and its measured part in seconds of the run."""
    stage, from_s, to_s = window
    found = summarise(records, {stage: (from_s, to_s)}, fixed_output=True, goodput=None)
    return {name: _at(found, name) for name in NAMES}


def _at(found: dict[str, Any], name: str) -> float | None:
    metric, _, quantile = name.partition(".")
    value = found[metric][quantile] if quantile else found[metric]
    return None if value is None else float(value)


def by_their_definitions(records: pl.DataFrame, window: tuple[str, float, float]) -> Figures:
    """Our own records as guidellm would have reckoned with them: answers that ended inside the measured part."""
    stage, from_s, to_s = window
    ended = pl.col("end_s").is_between(from_s, to_s)
    rows = records.filter((pl.col("stage") == stage) & (pl.col("status") == "ok") & ended)
    values: dict[str, list[tuple[float, float]]] = {m: [] for m in LATENCIES}  # of each: (value, weight)
    output_tokens = prompt_tokens = 0
    columns = ("sent_s", "end_s", "token_times_s", "prompt_tokens")
    for sent, end, times, prompt in rows.select(columns).iter_rows():
        n, first, last = len(times), times[0], times[-1]
        values["ttft_ms"].append(((first - sent) * 1000, 1))
        values["e2e_ms"].append(((end - sent) * 1000, 1))
        values["tpot_ms"].append(((last - sent) * 1000 / n, n))
        if n > 1:
            values["itl_ms"].append(((last - first) * 1000 / (n - 1), n - 1))
        output_tokens += sum(first + (last - first) * i / max(n - 1, 1) >= from_s for i in range(n))
        prompt_tokens += prompt if first >= from_s else 0
    found: Figures = {
        f"{m}.{name}": weighted_quantile(values[m], q) for m in LATENCIES for name, q in QUANTILES.items()
    }
    counts = {"output_tokens_per_s": output_tokens, "prompt_tokens_per_s": prompt_tokens, "requests_per_s": rows.height}
    return found | {name: count / (to_s - from_s) for name, count in counts.items()}


def weighted_quantile(values: Sequence[tuple[float, float]], q: float) -> float | None:
    """The least value at or below which lies the share ``q`` of the weight; None of nothing."""
    wanted = q * math.fsum(weight for _, weight in values)
    reached = 0.0
    for value, weight in sorted(values):
        reached += weight
        if reached >= wanted * (1 - 1e-12):
            return value
    return None


def their_figures(report: dict[str, Any]) -> Figures:
    """What guidellm's JSON report says of its successful requests.

    Raises:
        ValueError: the report is in another form, has not exactly one benchmark, or a request in it failed.
    """
    try:
        (benchmark,) = report["benchmarks"]
        metrics = benchmark["metrics"]
        totals = metrics["request_totals"]
        if totals["errored"] or not totals["successful"]:
            raise ValueError(f"{totals['successful']} requests ended well and {totals['errored']} failed")
        found: Figures = {}
        for key, theirs in LATENCIES.items():
            percentiles = metrics[theirs.metric]["successful"]["percentiles"]
            found |= {f"{key}.{q}": float(percentiles[q]) * theirs.scale for q in QUANTILES}
        found |= {key: float(metrics[x.metric]["successful"]["mean"]) * x.scale for key, x in RATES.items()}
        found |= {key: float(metrics[name]["successful"]["mean"]) for key, name in MEANS.items()}
    except (KeyError, TypeError) as e:
        raise ValueError(f"guidellm's report is not in the form that is known here: {e!r}") from e
    return found


@dataclass(frozen=True)
class Compared:
    """One figure over all rounds: the middle round of each, and the ratios within the rounds."""

    name: str
    ours: list[float]
    theirs: list[float]
    as_theirs: list[float]  # ours by guidellm's definition; empty where it has none

    @property
    def ratios(self) -> list[float]:
        """guidellm's figure to ours, round by round."""
        return _ratios(self.theirs, self.ours)

    @property
    def instrument_ratios(self) -> list[float]:
        """guidellm's figure to ours by its own definition, round by round."""
        return _ratios(self.theirs, self.as_theirs)


def _ratios(above: list[float], below: list[float]) -> list[float]:
    return [a / b for a, b in zip(above, below, strict=False) if b > 0]


def compare(rounds: Sequence[tuple[Figures, Figures, Figures]]) -> list[Compared]:
    """Figures of all rounds, each (ours, guidellm's, ours by its definitions). One that a round lacks is left out."""
    out = []
    for name in NAMES:
        sides = [[figures.get(name) for figures in side] for side in zip(*rounds, strict=True)]
        ours, theirs, as_theirs = ([v for v in side if v is not None] for side in sides)
        if len(ours) == len(theirs) == len(rounds):
            out.append(Compared(name, ours, theirs, as_theirs if len(as_theirs) == len(rounds) else []))
    return out


def middle(values: Sequence[float]) -> float:
    """The median, of an even number the lower of the two in the middle."""
    return nearest_rank(sorted(values), 0.5)


def definitions() -> list[tuple[str, str, str]]:
    """Of each figure: its name, what it means here, what it means in guidellm."""
    return [(FIGURES[k].name, FIGURES[k].formula, x.definition) for k, x in (LATENCIES | RATES).items()]
