"""Tables and sentences, for the terminal and the page."""

from __future__ import annotations

from engine.bench.compare import Ratio
from engine.bench.engines.engine import Facts
from engine.bench.engines.figures import METRICS, Result, RunMetric, Spread
from engine.bench.engines.shares import Share
from engine.bench.engines.workloads import Workload
from engine.bench.show import ABSENT, ARROWS, Table, number, with_unit

UNITS = {"bytes": "MiB"}


def _titled(metric: RunMetric) -> str:
    return f"{metric.title}, {UNITS.get(metric.unit, metric.unit)}{ARROWS[metric.better]}"


def _spread(spread: Spread, unit: str) -> str:
    """26.1 (25.9–26.4)"""
    if spread.median is None or spread.low is None or spread.high is None:
        return ABSENT
    if spread.rounds < 2:
        return with_unit(spread.median, unit)
    return f"{with_unit(spread.median, unit)} ({with_unit(spread.low, unit)}–{with_unit(spread.high, unit)})"


def _ratio(ratio: Ratio | None) -> str:
    if ratio is None or ratio.mean is None:
        return ABSENT
    if ratio.rounds < 2:
        return f"{ratio.mean:.2f}"
    return f"{ratio.mean:.2f} ({ratio.low:.2f}–{ratio.high:.2f}){'*' if ratio.clear else ''}"


def figures_table(workload: Workload, results: list[Result], reference: str | None) -> Table:
    """An engine a row."""
    head = ["", *(_titled(m) for m in METRICS)]
    agreed = [r.agreement for r in results]
    if any(agreed):
        head.append(f"agreement of {workload.output_tokens:,}")
    rows, notes = [], dict[str, None]()
    for r in results:
        row = [r.engine, *(_spread(r.spreads[m.name], m.unit) for m in METRICS)]
        if any(agreed):
            row.append(_agreement(r.agreement) if r.engine != reference else "reference")
        rows.append(row)
        for m in METRICS:
            spread = r.spreads[m.name]
            if spread.median is None and spread.reason:
                notes[f"{m.title}: {spread.reason}"] = None
    rounds = max((s.rounds for r in results for s in r.spreads.values()), default=0)
    spread_words = f"median of {rounds} rounds (smallest–largest)" if rounds > 1 else "one round: no spread"
    if any(agreed):
        notes[f"agreement: tokens before the first difference from {reference}"] = None
    return Table(f"{workload}; {spread_words}", head, rows, list(notes))


def _agreement(agreed: list[int | None]) -> str:
    known = sorted({n for n in agreed if n is not None})
    return "–".join(str(n) for n in dict.fromkeys([known[0], known[-1]])) if known else ABSENT


def ratios_table(workload: Workload, results: list[Result], base: str) -> Table | None:
    """Each engine over the base, round by round; None without another."""
    compared = [r for r in results if r.ratios]
    if not compared:
        return None
    rows = [[r.engine, *(_ratio(r.ratios.get(m.name)) for m in METRICS)] for r in compared]
    rounds = max((x.rounds for r in compared for x in r.ratios.values()), default=0)
    words = (
        f"mean of {rounds} rounds (smallest–largest); *: the 95 % interval of the mean excludes 1"
        if rounds > 1
        else "one round: no spread, so no conclusion about small differences"
    )
    head = ["", *(f"{m.title}{ARROWS[m.better]}" for m in METRICS)]
    return Table(f"{workload.name}, ratio to {base}: {words}", head, rows)


def shares_table(shares: list[tuple[str, Share]], ceilings: dict[str, Spread], names: dict[str, str]) -> Table | None:
    """``shares``: with the workload's name. ``names``: the instructions behind each peak."""
    if not shares:
        return None
    rows = [
        [f"{s.engine}, {workload}", f"{_spread(s.achieved, '')} {s.what}", _spread(s.share, "share"), s.ceiling]
        for workload, s in shares
    ]
    notes = [
        f"{what}: {_spread(spread, '')} {'GB/s' if what == 'memory read' else 'GOP/s'}"
        + (f", {names[what.removesuffix(' peak')]}" if what.removesuffix(" peak") in names else "")
        for what, spread in ceilings.items()
    ]
    notes.append("decode: bytes of weights of a step over ITL; prefill: 2 x weights of the layers x tokens over TTFT")
    return Table("What is got out of the machine", ["", "achieved", "share", "of"], rows, notes)


def findings(workload: Workload, results: list[Result], base: str) -> list[str]:
    """A sentence for each engine against the base, with the figure that the workload is about."""
    name = headline(workload)
    metric = next(m for m in METRICS if m.name == name)
    told = []
    for r in results:
        ratio = r.ratios.get(name)
        if ratio is None or ratio.mean is None:
            continue
        times = ratio.mean if metric.better == "higher" else 1 / ratio.mean
        sure = "" if ratio.clear else ", not told from 1" if ratio.rounds > 1 else ", one round"
        spread = r.spreads[name].median
        figure = "" if spread is None else f" ({number(spread)} {metric.unit})"
        told.append(f"{workload.name}: {r.engine} is {times:.2f} x {base} in {metric.title}{figure}{sure}.")
    return told


def headline(workload: Workload) -> str:
    if len(workload.jobs) > 1:
        return "output_tokens_per_s"
    return "itl_ms" if workload.output_tokens > 1 else "prompt_tokens_per_s"


def described(facts: Facts) -> str:
    return " ".join(filter(None, [facts.engine, facts.version, facts.weights]))
