"""The page's figure groups: which panels stand beside each other, on which shared scales, with which numbers behind."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from loadtests.quantiles import min_samples
from pipeline.report import charts, evidence
from pipeline.report import numbers as say
from pipeline.report.fidelity import pareto
from pipeline.report.figures import Figure, FigureGroup, Palette, Table
from pipeline.report.findings import marks_of
from pipeline.report.gates import QUANTILES, latency_figure, not_comparable
from pipeline.report.inputs import RunData
from pipeline.report.latency import StageSeries, quantile, series_of
from pipeline.report.quality import scenarios_of
from pipeline.report.summary import header_of, rules_of
from pipeline.report.tiers import TierFigures, wilson

Series = dict[tuple[str, str], StageSeries]


def all_series(run: RunData) -> Series:
    """Every (tier, load stage) that left measured records."""
    found: Series = {}
    for name, tier in run.tiers.items():
        for stage in run.stage_names():
            s = series_of(tier, stage)
            if s is not None:
                found[name, stage] = s
    return found


def _why(run: RunData, tier: str) -> str:
    t = run.tiers[tier]
    return t.why("records") if t.records is None else "no measured request in this stage"


def over_time(run: RunData, series: Series, palette: Palette, metric: str) -> FigureGroup | None:
    """A row a tier, a column a load stage; the panels of a column share their scales."""
    stages = [s for s in run.stage_names() if any((t, s) in series for t in run.tiers)]
    if not stages:
        return None
    panels: list[Figure] = []
    tops, ends = {}, {}
    for stage in stages:
        mine = [series[t, stage] for t in run.tiers if (t, stage) in series]
        ends[stage] = max(max(float(s.t_s[-1]), float(s.due_s[-1])) for s in mine)
        values = [v for s in mine for v in (s.ttft_ms if metric == "ttft" else s.itl_p95_ms)]
        tops[stage] = charts.top_of([float(v) for v in values])
    for tier in run.tiers:
        for stage in stages:
            s = series.get((tier, stage))
            if s is None:
                panels.append(Figure(f"{tier}, {stage}", None, _why(run, tier)))
            elif metric == "ttft":
                marks = marks_of(run, tier, stage, metric)
                panels.append(charts.ttft_over_time(s, palette, ends[stage], tops[stage], marks))
            elif any(say.is_number(float(v)) for v in s.itl_p95_ms):
                marks = marks_of(run, tier, stage, metric)
                panels.append(charts.itl_over_time(s, palette, ends[stage], tops[stage], marks))
            else:
                panels.append(Figure(f"{tier}, {stage}", None, "fewer than 20 gaps in every time step"))
    head = ["tier", "load stage", "into the stage"]
    head.append("TTFT P95, latest 20 (ms)" if metric == "ttft" else "ITL P95 (ms)")
    head.append("output tok/s")
    rows = []
    for (tier, stage), s in series.items():
        every = max(1, len(s.t_s) // 12)
        for i in range(every - 1, len(s.t_s), every):
            value = float((s.ttft_p95_ms if metric == "ttft" else s.itl_p95_ms)[i])
            rows.append([tier, stage, f"{s.t_s[i]:.1f} s", _cell(value), say.number(float(s.output_tokens_per_s[i]))])
    name = "Time to first token" if metric == "ttft" else "Inter-token latency"
    note = (
        "In ms. Dots: requests by due time. Line: P95 of the latest 20 requests. Red cross: a request that failed."
        if metric == "ttft"
        else "P95 of the gaps that ended in each time step, in ms; none where a step holds fewer than 20."
    )
    return FigureGroup(
        f"{metric}-time",
        f"{name} over time",
        panels,
        Table(head, rows, "At most about twelve time steps a stage; reports/plots/latency_over_time.csv has all."),
        len(stages),
        note + " Panels of one column share their scales. Dashed lines and words in red: what was found over time.",
        stages,
    )


def _cell(value: float) -> str:
    if value == float("inf"):
        return "∞ (failed)"
    return say.milliseconds(value) if value == value else "too few"


def limits_of(run: RunData, metric: str, stage: str) -> dict[float, float]:
    """The candidate's absolute limits on percentiles of a metric in a stage, for the marks in the figure."""
    out: dict[float, float] = {}
    for rule in rules_of(run, run.candidate):
        raw, figure = rule.raw, latency_figure(rule.raw)
        limit = raw.get("limit")
        if raw.get("group") != "latency" or raw.get("stage") != stage or figure is None or figure[0] != metric:
            continue
        if raw.get("unit") == "ms" and say.is_number(limit) and limit is not None:
            out[QUANTILES[figure[1]]] = float(limit)
    return out


def baseline_of(run: RunData, metric: str, stage: str) -> dict[float, float]:
    """The percentiles that the release in service had in this stage; empty where they must not be compared."""
    release, mine = run.release, header_of(run.tiers.get(run.candidate), "load")
    if release is None or mine is None or not_comparable(release, mine):
        return {}
    block = (release.latency.get(stage) or {}).get(f"{metric}_ms") or {}
    return {p: float(block[q]) for q, p in QUANTILES.items() if say.is_number(block.get(q))}


def percentile_panels(run: RunData, series: Series, palette: Palette) -> FigureGroup | None:
    stages = [s for s in run.stage_names() if any((t, s) in series for t in run.tiers)]
    if not stages:
        return None
    panels, rows, marked = [], [], False
    based = any(baseline_of(run, m, s) for m in ("ttft", "itl") for s in stages)
    for metric, label in (("ttft", "TTFT"), ("itl", "ITL")):
        for stage in stages:
            values = {
                t: (series[t, stage].ttft_ms if metric == "ttft" else series[t, stage].itl_ms)
                for t in run.tiers
                if (t, stage) in series
            }
            limits = limits_of(run, metric, stage)
            marked = marked or bool(limits)
            if any(len(v) for v in values.values()):
                panels.append(
                    charts.percentiles(values, palette, label, stage, limits, baseline_of(run, metric, stage))
                )
            else:
                panels.append(Figure(f"{label}, {stage}", None, "no token gaps"))
            for tier, v in values.items():
                ordered = sorted(float(x) for x in v)
                rows.append(
                    [label, stage, tier, f"{len(ordered):,}"]
                    + [_percentile(ordered, p) for p in (0.5, 0.75, 0.9, 0.95, 0.99)]
                    + [_cell(ordered[-1]) if ordered else say.ABSENT]
                )
    note = "In ms. The axis stretches the tail: the distance from P90 to P99 is that from P0 to P90."
    return FigureGroup(
        "percentiles",
        "Latency by percentile",
        panels,
        Table(
            ["metric", "load stage", "tier", "samples", "P50", "P75", "P90", "P95", "P99", "largest"], rows, "In ms."
        ),
        len(stages),
        note
        + (" Black bars: limits of the candidate." if marked else "")
        + (f" Hollow diamonds: the baseline, {run.release.name}." if based and run.release else ""),
        stages,
    )


def _percentile(ordered: list[float], p: float) -> str:
    if len(ordered) < min_samples(p):
        return "too few"
    return _cell(quantile(np.array(ordered), p))


def server_panels(run: RunData) -> FigureGroup | None:
    """Queue and KV blocks of each tier over the whole load run, the load stages shaded."""
    held = {n: t for n, t in run.tiers.items() if t.samples is not None and t.samples.height}
    if not held:
        return None
    panels: list[Figure] = []
    rows: list[list[str]] = []
    tops = {"requests": 1.0, "blocks": 1.0}
    for t in held.values():
        assert t.samples is not None
        for column in ("requests_running", "requests_waiting"):
            tops["requests"] = max(tops["requests"], 1.1 * _top(t.samples[column].to_list()))
        tops["blocks"] = max(tops["blocks"], 1.02 * _top(t.samples["kv_blocks_total"].to_list()))
    for name, tier in run.tiers.items():
        if name not in held or tier.samples is None:
            panels += [Figure(f"{name}, {k}", None, tier.why("samples")) for k in ("requests", "KV blocks")]
            continue
        s = tier.samples.filter(pl.col("t_s") >= 0)  # before that, Locust was still starting
        thin = s.gather_every(max(1, s.height // 300))
        times = thin["t_s"].to_list()
        bands = [
            {"a": b["start_s"], "b": b["end_s"], "name": b["name"]}
            for b in (tier.run or {}).get("stages") or []
            if {"start_s", "end_s", "name"} <= b.keys()
        ]
        requests = [
            {"t": t, "v": v, "what": what}
            for column, what in (("requests_running", "running"), ("requests_waiting", "waiting"))
            for t, v in zip(times, thin[column].to_list(), strict=True)
            if v is not None
        ]
        blocks = [
            {"t": t, "v": v, "what": "blocks in use"}
            for t, v in zip(times, thin["kv_blocks_used"].to_list(), strict=True)
            if v is not None
        ]
        for kind, values in (("requests", requests), ("blocks", blocks)):
            if values:
                panels.append(charts.server_over_time(values, kind, name, tops[kind], bands))
            else:
                panels.append(Figure(f"{name}, {kind}", None, "the server does not report it"))
        running, waiting, used, total, preempted = (_most(s, c) for c in SAMPLED)
        rows.append(
            [
                name,
                *(say.number(v) for v in (running, waiting, used, total)),
                say.share(used / total) if used is not None and total else say.ABSENT,
                say.number(preempted),
            ]
        )
    head = [
        "tier",
        "most running",
        "most waiting",
        "most KV blocks",
        "blocks in all",
        "pool used at most",
        "preemptions",
    ]
    return FigureGroup(
        "server",
        "Queue and KV cache over time",
        panels,
        Table(head, rows, "Sampled once a second; a peak between two samples is not seen."),
        2,
        "Left: requests running (solid) and waiting (dashed). Right: KV blocks in use; the top edge is the pool. "
        "Shaded: the load stages; between them the server drains.",
        ["requests", "KV blocks"],
    )


SAMPLED = ("requests_running", "requests_waiting", "kv_blocks_used", "kv_blocks_total", "preemptions_total")


def _most(samples: pl.DataFrame, column: str) -> int | None:
    known = [v for v in samples[column].to_list() if say.is_number(v)] if column in samples.columns else []
    return int(max(known)) if known else None


def _top(values: list[Any]) -> float:
    return max((float(v) for v in values if say.is_number(v)), default=0.0)


def scenario_panel(run: RunData, palette: Palette) -> Figure | None:
    rows = []
    for name, tier in run.tiers.items():
        for scenario, block in ((tier.eval or {}).get("scenarios") or {}).items():
            accuracy, n, correct = block.get("accuracy"), block.get("n"), block.get("correct")
            if not say.is_number(accuracy):
                continue
            span = wilson(correct, n) if say.is_number(n) and say.is_number(correct) else None
            lo, hi = span or (accuracy, accuracy)
            rows.append(
                {"tier": name, "scenario": scenario, "accuracy": accuracy, "lo": round(lo, 4), "hi": round(hi, 4)}
            )
    return charts.scenario_dots(rows, scenarios_of(run), palette) if rows else None


def overview(figures: dict[str, TierFigures], palette: Palette) -> list[Figure]:
    """Four small panels: memory, speed, tail latency and quality, the tiers side by side."""
    from pipeline.report.plots import worst

    def panel(title: str, key: Any, text: Any, fmt: str, span: Any = None) -> Figure:
        rows = []
        for name, f in figures.items():
            value = key(f)
            if value is None:
                continue
            lo, hi = (span(f) or (None, None)) if span else (None, None)
            row = {"tier": name, "value": value, "text": text(value), "end": hi or value}
            rows.append(row | ({"lo": lo, "hi": hi} if lo is not None else {}))
        if not rows:
            return Figure(title, None, "measured for no tier")
        return charts.tier_bars(rows, palette, title, fmt)

    return [
        panel(
            "Weights",
            lambda f: f.weights_bytes.value and f.weights_bytes.value / 1024**2,
            lambda v: f"{say.number(v)} MiB",
            ",~r",
        ),
        panel(
            "Output tokens per second",
            lambda f: f.output_tokens_per_s.value,
            lambda v: f"{say.number(float(v))} tok/s",
            ",~r",
        ),
        panel(
            "Worst stage's P95 TTFT", lambda f: worst(f, "ttft_ms", "p95"), lambda v: f"{say.milliseconds(v)} ms", "~s"
        ),
        panel("Accuracy, 95 % interval", lambda f: f.accuracy.value, say.share, ".0%", lambda f: f.interval),
    ]


def tradeoff_panels(figures: dict[str, TierFigures], palette: Palette) -> list[Figure]:
    """Accuracy against what it costs: bytes of weights, and output tokens a second. One mark a tier."""

    def panel(title: str, key: Any, scale: float, unit: str, more: bool) -> Figure:
        """``more``: of what is on the x axis one wants much."""
        rows: list[dict[str, Any]] = []
        for name, f in figures.items():
            cost, accuracy = key(f), f.accuracy.value
            if cost is None or accuracy is None:
                continue
            low, high = f.interval or (accuracy, accuracy)
            rows.append({"tier": name, "x": round(cost / scale, 3), "accuracy": accuracy, "lo": low, "hi": high})
        dear = [-r["x"] if more else r["x"] for r in rows]
        unbeaten = pareto([(x, -r["accuracy"]) for x, r in zip(dear, rows, strict=True)])
        rows = [r | {"pareto": p} for r, p in zip(rows, unbeaten, strict=True)]
        return charts.tradeoff(rows, palette, title, unit) if rows else Figure(title, None, "measured for no tier")

    return [
        panel("Accuracy against weights", lambda f: f.weights_bytes.value, 1024**2, "MiB of weights", False),
        panel("Accuracy against speed", lambda f: f.output_tokens_per_s.value, 1.0, "output tokens per second", True),
    ]


def memory_panel(rows: list[evidence.MemoryRow]) -> Figure | None:
    bars, labels = evidence.memory_bars(rows)
    return charts.memory_bars(bars, labels) if bars else None


def time_panel(notes: list[evidence.StageNote]) -> Figure | None:
    rows = [
        {"label": n.label, "seconds": n.wall_s, "text": f"{say.seconds(n.wall_s)}, {say.with_bytes(n.peak_bytes)}"}
        for n in notes
        if n.wall_s is not None
    ]
    return charts.stage_bars(rows, [str(r["label"]) for r in rows]) if rows else None
