"""How figures are written, and the rows of the tables: the same for the terminal and the page."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from engine.bench.compare import Ratio, Result
from engine.bench.fit import Fit
from engine.bench.metrics import BY_NAME, METRICS, Figure, Metric

ABSENT = "–"
ARROWS = {"higher": " ↑", "lower": " ↓", "neither": ""}
TOLD = (
    "output_tokens_per_s",
    "ttft_p95_ms",
    "itl_p95_ms",
    "longest_gap_ms",
    "batch_occupancy_share",
    "kv_wasted_share",
)


@dataclass(frozen=True)
class Table:
    """``notes`` say why cells are absent, each once."""

    title: str
    head: list[str]
    rows: list[list[str]]
    notes: list[str] = field(default_factory=list)


def number(value: float) -> str:
    """Three significant digits, thousands in groups, never in exponent form: 0.0123, 4.56, 1,234."""
    if value == 0:
        return "0"
    places = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(places, 6)}f}"


def with_unit(value: float, unit: str) -> str:
    if unit == "share":
        return f"{100 * value:.1f} %"
    if unit == "bytes":
        return f"{value / 1024**2:,.1f}"
    return number(value)


def _titled(metric: Metric) -> str:
    unit = {"share": "", "bytes": "MiB"}.get(metric.unit, metric.unit)
    return f"{metric.title}, {unit}" if unit else metric.title


def _figure(figure: Figure, metric: Metric) -> str:
    return ABSENT if figure.value is None else with_unit(figure.value, metric.unit)


def _ratio(ratio: Ratio) -> str:
    """0.87 (0.84-0.91), with an asterisk where the rounds' interval excludes 1."""
    if ratio.mean is None:
        return ABSENT
    if ratio.rounds < 2:
        return f"{ratio.mean:.2f}"
    return f"{ratio.mean:.2f} ({ratio.low:.2f}–{ratio.high:.2f}){'*' if ratio.clear else ''}"


def figures_table(results: list[Result], load: str) -> Table:
    """A metric a row, a policy a column; raw samples of all rounds pooled."""
    rows, notes = [], dict[str, None]()
    for m in METRICS:
        figures = [r.pooled[m.name] for r in results]
        rows.append([_titled(m), *(_figure(f, m) for f in figures)])
        notes |= {f"{m.title}: {f.reason}": None for f in figures if f.value is None}
    return Table(f"Figures, {load}", ["", *(r.policy.name for r in results)], rows, list(notes))


def ratios_table(results: list[Result], load: str) -> Table | None:
    """Each policy over the one it is measured against: mean of the rounds (smallest-largest); None without any."""
    compared = [r for r in results if r.policy.against]
    if not compared:
        return None
    rows, notes = [], dict[str, None]()
    for m in METRICS:
        if not m.compared:
            continue
        ratios = [r.ratios[m.name] for r in compared]
        rows.append([f"{m.title}{ARROWS[m.better]}", *map(_ratio, ratios)])
        notes |= {f"{m.title}: {r.reason}": None for r in ratios if r.mean is None}
    rounds = max((r.rounds for c in compared for r in c.ratios.values()), default=0)
    spread = (
        f"mean of {rounds} rounds (smallest–largest); *: the 95 % interval of the mean excludes 1"
        if rounds > 1
        else "one round: no spread, so no conclusion about small differences"
    )
    head = ["↑ more is better, ↓ less is better", *(f"{r.policy.name} / {r.policy.against}" for r in compared)]
    return Table(f"Ratios, {load}: {spread}", head, rows, list(notes))


def fit_table(fits: list[Fit]) -> Table:
    """A reservation a column."""
    pool = fits[0].pool_bytes

    def mib(value: float) -> str:
        return f"{value / 1024**2:,.1f} ({100 * value / pool:.1f} %)"

    rows: list[list[str]] = [
        ["requests at once, mean", *(f"{f.at_once_mean:.1f}" for f in fits)],
        ["requests at once, most", *(str(f.at_once_most) for f in fits)],
        ["used, MiB", *(mib(f.used_bytes) for f in fits)],
        ["reserved, MiB", *(mib(f.reserved_bytes) for f in fits)],
        ["internal waste (reserved, not used), MiB", *(mib(f.internal_waste_bytes) for f in fits)],
        ["external waste (free, not usable), MiB", *(mib(f.external_waste_bytes) for f in fits)],
        ["failed allocations, exhausted", *(f"{f.failures_exhausted:,}" for f in fits)],
        ["failed allocations, fragmented", *(f"{f.failures_fragmented:,}" for f in fits)],
        ["preemptions", *(f"{f.preemptions:,}" for f in fits)],
        ["tokens computed again", *(f"{f.recomputed_tokens:,}" for f in fits)],
        ["steps to serve all", *(f"{f.steps:,}" for f in fits)],
        ["refused (longer than the pool)", *(str(f.refused_requests) for f in fits)],
    ]
    notes = [
        f"{f.reservation}: no request ever waited, so the means are over all steps" for f in fits if not f.steps_waiting
    ]
    title = f"What fits {pool / 1024**2:,.1f} MiB, {fits[0].requests} requests in order of arrival"
    return Table(title, ["", *(f.reservation for f in fits)], rows, notes)


def findings(results: list[Result]) -> list[str]:
    """A sentence for each comparison: what differs beyond the noise of the rounds, and what does not."""
    told = []
    for r in results:
        if not r.policy.against:
            continue
        known = [(BY_NAME[name].title, r.ratios[name]) for name in TOLD if r.ratios[name].mean is not None]
        rounds = max((ratio.rounds for _, ratio in known), default=0)
        clear = ", ".join(f"{title} × {ratio.mean:.2f}" for title, ratio in known if ratio.clear)
        rest = ", ".join(f"{title} × {ratio.mean:.2f}" for title, ratio in known if not ratio.clear)
        if rounds < 2:
            parts = [f"in one round {rest}"] if rest else ["no figure in both"]
        else:
            parts = [clear] if clear else []
            parts += [f"not told from 1 in {rounds} rounds: {rest}"] if rest else []
        told.append(f"{r.policy.name} against {r.policy.against}: {'; '.join(parts)}.")
    return told


def fit_finding(fits: list[Fit]) -> str:
    held = ", ".join(f"{f.reservation} {f.at_once_mean:.1f} (uses {100 * f.used_share:.0f} %)" for f in fits)
    pool = f"{fits[0].pool_bytes / 1024**2:,.0f} MiB"
    return f"Requests of the trace's own lengths that a pool of {pool} holds at once, on average: {held}."
