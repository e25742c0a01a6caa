"""The figures of the page, each made of plain rows; see :mod:`pipeline.report.figures` for how they are drawn."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import altair as alt
import numpy as np

from pipeline.report import numbers as say
from pipeline.report.figures import INK, RULE, SOFT, Figure, Palette, render
from pipeline.report.latency import StageSeries, finite, quantile, tail_ecdf

WIDTH, HEIGHT = 300, 104
MOST_DOTS = 240


def _data(rows: list[dict[str, Any]]) -> alt.Data:
    return alt.Data(values=rows)


def _ms_axis() -> alt.Axis:
    # A fixed extent, so that panels below each other have their plots at the same place.
    return alt.Axis(title=None, tickCount=4, format=",~r", minExtent=38, maxExtent=38)


def _x_seconds(end: float) -> alt.X:
    return alt.X(
        "t:Q",
        scale=alt.Scale(domain=[0, end], nice=False),
        axis=alt.Axis(title="seconds into the stage", tickCount=5, grid=False),
    )


def top_of(values: list[float]) -> float:
    """An upper end for a shared axis: the largest finite value with a little air."""
    usable = [v for v in values if math.isfinite(v)]
    return 1.08 * max(usable) if usable else 1.0


def _marks(marks: Sequence[dict[str, Any]], end_s: float) -> list[Any]:
    """What was found: a dashed line where it lies at a moment, and its name at the top edge."""
    layers: list[Any] = []
    if lines := [m for m in marks if m["at"]]:
        layers.append(
            alt.Chart(_data(lines))
            .mark_rule(strokeDash=[3, 2], strokeWidth=1.3, color="var(--hold)")
            .encode(_x_seconds(end_s))
        )
    for i, m in enumerate(marks):
        late = m["t"] > 0.6 * end_s  # then the words stand to the left of their line
        layers.append(
            alt.Chart(_data([m]))
            .mark_text(
                align="right" if late else "left",
                dx=-3 if late else 3,
                baseline="top",
                fontSize=9.5,
                fontWeight="bold",
                color="var(--hold)",
            )
            .encode(_x_seconds(end_s), y=alt.value(1 + 11 * i), text="what:N")
        )
    return layers


def _found(marks: Sequence[dict[str, Any]]) -> str:
    said = [f"{m['what']} at {m['t']:g} s" if m["at"] else str(m["what"]) for m in marks]
    return f" Found: {'; '.join(said)}." if said else ""


def ttft_over_time(
    s: StageSeries, palette: Palette, end_s: float, top_ms: float, marks: Sequence[dict[str, Any]] = ()
) -> Figure:
    """A dot a request, the P95 of the latest 20 as a line; failed requests are crosses at the top edge."""
    step = max(1, math.ceil(len(s.due_s) / MOST_DOTS))
    cut = float(np.quantile(s.ttft_ms[np.isfinite(s.ttft_ms)], 0.98)) if np.isfinite(s.ttft_ms).any() else 0.0
    dots = [
        {"t": round(float(t), 2), "v": round(float(v), 2), "tier": s.tier}
        for i, (t, v) in enumerate(zip(s.due_s, s.ttft_ms, strict=True))
        if math.isfinite(v) and (i % step == 0 or v >= cut)
    ]
    line = [
        {"t": float(t), "v": finite(v), "tier": s.tier, "run": _run(s.ttft_p95_ms, i)}
        for i, (t, v) in enumerate(zip(s.t_s, s.ttft_p95_ms, strict=True))
        if math.isfinite(v)
    ]
    failed = [{"t": float(t), "v": top_ms} for t, v in zip(s.due_s, s.ttft_ms, strict=True) if math.isinf(v)]
    y = alt.Y("v:Q", scale=alt.Scale(domain=[0, top_ms], nice=False), axis=_ms_axis())
    layers = [
        alt.Chart(_data(dots)).mark_circle(size=11, opacity=0.5).encode(_x_seconds(end_s), y, palette.colours()),
        alt.Chart(_data(line))
        .mark_line(strokeWidth=1.8, interpolate="step-before")
        .encode(_x_seconds(end_s), y, palette.colours(), detail="run:N"),
        alt.Chart(_data(failed[:MOST_DOTS]))
        .mark_point(shape="M-1,-1L1,1M1,-1L-1,1", size=16, stroke="var(--hold)", strokeWidth=1.6)
        .encode(_x_seconds(end_s), y),
        *_marks(marks, end_s),
    ]
    ordered = np.sort(s.ttft_ms)
    p95 = quantile(ordered, 0.95)
    fails = f" {s.failed} of {len(ordered)} requests failed." if s.failed else ""
    return render(
        alt.layer(*layers).properties(width=WIDTH, height=HEIGHT),
        f"TTFT over time, {s.tier}, {s.stage}",
        f"{len(ordered)} requests over {say.seconds(end_s)}; P50 {say.milliseconds(quantile(ordered, 0.5))} ms, "
        f"P95 {say.milliseconds(p95) if math.isfinite(p95) else 'infinite'} ms.{fails}{_found(marks)}",
    )


def _run(values: np.ndarray, i: int) -> int:
    """Number of the unbroken run that step ``i`` is in, so that a gap in the data is a gap in the line."""
    return int(np.isnan(values[:i]).sum() + np.isinf(values[:i]).sum())


def itl_over_time(
    s: StageSeries, palette: Palette, end_s: float, top_ms: float, marks: Sequence[dict[str, Any]] = ()
) -> Figure:
    """P95 of the gaps that ended in each step."""
    rows = [
        {"t": float(t), "v": finite(v), "tier": s.tier, "run": _run(s.itl_p95_ms, i)}
        for i, (t, v) in enumerate(zip(s.t_s, s.itl_p95_ms, strict=True))
        if math.isfinite(v)
    ]
    y = alt.Y("v:Q", scale=alt.Scale(domain=[0, top_ms], nice=False), axis=_ms_axis())
    base = alt.Chart(_data(rows)).encode(_x_seconds(end_s), y, palette.colours(), detail="run:N")
    layers = [base.mark_area(opacity=0.12), base.mark_line(strokeWidth=1.8), base.mark_circle(size=9, opacity=1)]
    layers += _marks(marks, end_s)
    return render(
        alt.layer(*layers).properties(width=WIDTH, height=HEIGHT),
        f"ITL over time, {s.tier}, {s.stage}",
        f"{len(s.itl_ms)} gaps; P50 {say.milliseconds(quantile(s.itl_ms, 0.5))} ms, "
        f"P95 {say.milliseconds(quantile(s.itl_ms, 0.95))} ms.{_found(marks)}",
    )


def percentiles(
    values: dict[str, np.ndarray],
    palette: Palette,
    metric: str,
    stage: str,
    limits: dict[float, float],
    baseline: Mapping[float, float] = MappingProxyType({}),
) -> Figure:
    """Latency by percentile, the tail stretched: x is -log10(1 - p).

    ``limits`` maps a percentile to its limit in ms. A limit far above every sample would flatten the curves: it is told
    in the panel's note and not drawn. ``baseline``: percentiles of the release in service, as hollow diamonds.
    """
    rows: list[dict[str, Any]] = []
    deepest = 1.0
    for tier, samples in values.items():
        n = len(samples)
        for value, p in tail_ecdf(samples):
            if p < 1:  # the largest sample has no finite place on this axis; it is drawn at 1 - 1/(2n)
                rows.append({"tier": tier, "x": round(-math.log10(1 - p), 4), "v": round(value, 3)})
            else:
                rows.append({"tier": tier, "x": round(math.log10(2 * n), 4), "v": round(value, 3)})
            deepest = max(deepest, rows[-1]["x"])
    ticks = [0.0, 0.5, 0.9, 0.95, 0.99, 0.999, 0.9999]
    places = [(0.0 if p == 0 else -math.log10(1 - p), p) for p in ticks]
    places = [(x, p) for x, p in places if x <= deepest + 0.05]
    named = [f"abs(datum.value - {x:.4f}) < 0.001 ? 'P{100 * p:g}'" for x, p in places[1:]]
    label = " : ".join(named) + (" : 'min'" if deepest < 2.2 else " : ''")
    x = alt.X(
        "x:Q",
        scale=alt.Scale(domain=[0, deepest], nice=False),
        axis=alt.Axis(values=[x for x, _ in places], labelExpr=label, title=None, labelOverlap=False),
    )
    y = alt.Y("v:Q", scale=alt.Scale(zero=True), axis=_ms_axis())
    layers = [
        alt.Chart(_data(rows))
        .mark_line(strokeWidth=1.8, interpolate="linear")
        .encode(x, y, palette.colours(), palette.dashes())
    ]
    top = max((r["v"] for r in rows), default=0.0)
    marks = [
        {"x": -math.log10(1 - p) - 0.1, "x2": -math.log10(1 - p) + 0.1, "v": v}
        for p, v in limits.items()
        if v <= 1.5 * top and -math.log10(1 - p) <= deepest
    ]
    note = ", ".join(
        f"P{100 * p:g} limit {say.milliseconds(v)} ms{'' if v <= 1.5 * top else ' (beyond the axis)'}"
        for p, v in sorted(limits.items())
    )
    if marks:
        layers.append(
            alt.Chart(_data(marks)).mark_rule(strokeWidth=2.5, color=INK).encode(alt.X("x:Q"), alt.Y("v:Q"), x2="x2:Q")
        )
    was = [{"x": -math.log10(1 - p), "v": v} for p, v in baseline.items() if -math.log10(1 - p) <= deepest]
    if was:
        layers.append(
            alt.Chart(_data(was))
            .mark_point(shape="diamond", size=52, filled=False, stroke=INK, strokeWidth=1.6)
            .encode(alt.X("x:Q"), alt.Y("v:Q"))
        )
    told = "; ".join(
        f"{tier} P50 {say.milliseconds(quantile(np.sort(v), 0.5))}, P95 "
        f"{say.milliseconds(finite(quantile(np.sort(v), 0.95)))} ms"
        for tier, v in values.items()
    )
    return render(
        alt.layer(*layers).properties(width=WIDTH, height=170),
        f"{metric} by percentile, {stage}",
        told
        + "."
        + (f" {note}." if note else "")
        + "".join(f" Baseline P{100 * p:g} {say.milliseconds(v)} ms." for p, v in sorted(baseline.items())),
        note,
    )


def server_over_time(
    rows: list[dict[str, Any]], kind: str, tier: str, top: float, bands: list[dict[str, Any]]
) -> Figure:
    """Requests running and waiting (``kind`` "requests") or KV blocks in use ("blocks"), once a second over a run."""
    end = max((r["t"] for r in rows), default=1.0)
    x = alt.X(
        "t:Q",
        scale=alt.Scale(domain=[0, end], nice=False),
        axis=alt.Axis(title="seconds into the run", tickCount=6, grid=False),
    )
    y = alt.Y(
        "v:Q",
        scale=alt.Scale(domain=[0, top], nice=False),
        axis=alt.Axis(title=None, tickCount=4, format=",~r", minExtent=38, maxExtent=38),
    )
    look = alt.Color(
        "what:N",
        scale=alt.Scale(domain=["running", "waiting", "blocks in use"], range=[INK, "var(--hold)", INK]),
        legend=None,
    )
    dash = alt.StrokeDash(
        "what:N",
        scale=alt.Scale(domain=["running", "waiting", "blocks in use"], range=[[1, 0], [4, 2], [1, 0]]),
        legend=None,
    )
    layers: list[Any] = []
    if bands:
        across = alt.X("a:Q", scale=alt.Scale(domain=[0, end], nice=False))
        layers = [
            alt.Chart(_data(bands)).mark_rect(opacity=0.5, color=RULE).encode(across, x2="b:Q"),
            alt.Chart(_data(bands))
            .mark_text(align="left", baseline="bottom", dy=-3, fontSize=9.5, color=SOFT)
            .encode(across, y=alt.value(0), text="name:N"),
        ]
    layers.append(alt.Chart(_data(rows)).mark_line(strokeWidth=1.5, interpolate="step-after").encode(x, y, look, dash))
    peaks = {w: max(r["v"] for r in rows if r["what"] == w) for w in dict.fromkeys(r["what"] for r in rows)}
    told = ", ".join(f"{w}: at most {say.number(v)}" for w, v in peaks.items())
    title = f"{'Requests in the server' if kind == 'requests' else 'KV blocks'} over time, {tier}"
    return render(alt.layer(*layers).properties(width=460, height=92), title, told + ".")


def scenario_dots(rows: list[dict[str, Any]], scenarios: list[str], palette: Palette) -> Figure:
    """Accuracy of each tier by scenario, with Wilson intervals."""
    y = alt.Y(
        "scenario:N", sort=scenarios, axis=alt.Axis(title=None, grid=True, ticks=False, domain=False, labelLimit=160)
    )
    offset = alt.YOffset("tier:N", sort=palette.tiers, scale=alt.Scale(domain=palette.tiers, paddingInner=0.35))
    x = alt.X(
        "accuracy:Q",
        scale=alt.Scale(domain=[0, 1]),
        axis=alt.Axis(format="%", title="accuracy, 95 % interval", tickCount=6),
    )
    base = alt.Chart(_data(rows))
    layers = [
        base.mark_rule(strokeWidth=1.2, opacity=0.55).encode(alt.X("lo:Q"), y, offset, palette.colours(), x2="hi:Q"),
        base.mark_point(size=38, filled=True, opacity=1).encode(x, y, offset, palette.colours(), palette.shapes()),
    ]
    band = max(26, 11 * len(palette.tiers) + 8)
    told = "; ".join(f"{r['scenario']} {r['tier']} {say.share(r['accuracy'])}" for r in rows)
    return render(
        alt.layer(*layers).properties(width=760, height=band * len(scenarios)),
        "Accuracy by scenario and tier",
        told + ".",
    )


def tier_bars(rows: list[dict[str, Any]], palette: Palette, title: str, axis_format: str, zero: bool = True) -> Figure:
    """One figure of merit for each tier: ``value``, its text, and an interval where there is one."""
    tiers = [r["tier"] for r in rows]
    y = alt.Y(
        "tier:N",
        sort=tiers,
        axis=alt.Axis(
            title=None, ticks=False, domain=False, labelLimit=110, labelColor=INK, labelPadding=6, minExtent=84
        ),
    )
    most = max(max(r["value"], r.get("hi") or 0) for r in rows)
    scale = alt.Scale(domain=[0, most * 1.35 if zero else 1], nice=False)
    x = alt.X("value:Q", scale=scale, axis=alt.Axis(title=None, tickCount=3, format=axis_format, grid=False))
    base = alt.Chart(_data(rows))
    layers = [
        base.mark_bar(height={"band": 0.55}, opacity=0.9).encode(x, y, palette.colours()),
        base.mark_text(align="left", dx=5, color=INK, fontSize=10.5).encode(
            alt.X("end:Q", scale=scale), y, text="text:N"
        ),
    ]
    spans = [r for r in rows if r.get("lo") is not None]
    if spans:
        layers.insert(
            1,
            alt.Chart(_data(spans))
            .mark_rule(strokeWidth=1.4, color=INK)
            .encode(alt.X("lo:Q", scale=scale), y, x2="hi:Q"),
        )
    told = "; ".join(f"{r['tier']} {r['text']}" for r in rows)
    return render(alt.layer(*layers).properties(width=160, height=22 * len(rows)), title, told + ".")


def tradeoff(rows: list[dict[str, Any]], palette: Palette, title: str, unit: str) -> Figure:
    """Accuracy with its interval (``lo``, ``hi``) against a cost ``x``, one mark a tier, a ring where ``pareto``."""
    low, high = min(r["lo"] for r in rows) - 0.02, max(r["hi"] for r in rows) + 0.02
    rows = _apart(rows, 0.09 * (high - low))
    left, right = min(r["x"] for r in rows), max(r["x"] for r in rows)
    room = max(0.12 * (right - left), 0.04 * right)
    x = alt.X(
        "x:Q",
        scale=alt.Scale(domain=[max(0.0, left - room), right + 3 * room], nice=False, zero=False),
        axis=alt.Axis(title=unit, tickCount=5, format=",~r", grid=False),
    )
    scale = alt.Scale(domain=[max(0.0, low), min(1.0, high)], nice=False, zero=False)
    axis = alt.Axis(title="accuracy", format=".0%", tickCount=5)
    base = alt.Chart(_data(rows))
    layers = [
        base.mark_rule(strokeWidth=1.2, opacity=0.55).encode(
            x, alt.Y("lo:Q", scale=scale, axis=axis), palette.colours(), y2="hi:Q"
        ),
        alt.Chart(_data([r for r in rows if r.get("pareto")]))
        .mark_point(size=190, filled=False, stroke=INK, strokeWidth=1.2)
        .encode(x, alt.Y("accuracy:Q", scale=scale, axis=axis)),
        base.mark_point(size=60, filled=True, opacity=1).encode(
            x, alt.Y("accuracy:Q", scale=scale, axis=axis), palette.colours(), palette.shapes()
        ),
        base.mark_text(align="left", dx=9, fontSize=10.5, fontWeight="bold").encode(
            x, alt.Y("label:Q", scale=scale, axis=axis), palette.colours(), text="tier:N"
        ),
    ]
    told = "; ".join(f"{r['tier']} {say.share(r['accuracy'])} at {say.number(r['x'])} {unit}" for r in rows)
    if unbeaten := [r["tier"] for r in rows if r.get("pareto")]:
        told += f"; Pareto: {', '.join(unbeaten)}"
    return render(alt.layer(*layers).properties(width=430, height=170), title, told + ".")


def _apart(rows: list[dict[str, Any]], least: float) -> list[dict[str, Any]]:
    """The rows with the height of their ``label``: at their mark, or as far above the one below as it takes to read."""
    placed, last = [], -math.inf
    for row in sorted(rows, key=lambda r: r["accuracy"]):
        last = max(row["accuracy"], last + least)
        placed.append(row | {"label": round(last, 4)})
    return placed


MEMORY_PARTS = ["weights", "activations", "KV pool", "rest"]


def memory_bars(rows: list[dict[str, Any]], labels: list[str]) -> Figure:
    """Planned and measured memory of each tier as stacked bars; ``mib`` a part."""
    colour = alt.Color(
        "part:N",
        scale=alt.Scale(domain=MEMORY_PARTS, range=["var(--mem-0)", "var(--mem-1)", "var(--mem-2)", "var(--mem-3)"]),
        legend=None,
    )
    y = alt.Y(
        "label:N",
        sort=labels,
        axis=alt.Axis(title=None, ticks=False, domain=False, labelLimit=220, labelColor=INK, labelPadding=6),
    )
    x = alt.X("sum(mib):Q", axis=alt.Axis(title="MiB", tickCount=6, format=",~r"))
    chart = alt.Chart(_data(rows)).mark_bar(height={"band": 0.7}).encode(x, y, colour, order="order:Q")
    told = "; ".join(f"{r['label']} {r['part']} {r['mib']:.1f} MiB" for r in rows)
    return render(chart.properties(width=620, height=20 * len(labels)), "Memory, planned and measured", told + ".")


def stage_bars(rows: list[dict[str, Any]], labels: list[str]) -> Figure:
    """When each stage ran and for how long (minutes since the first one began)."""
    y = alt.Y(
        "label:N",
        sort=labels,
        axis=alt.Axis(title=None, ticks=False, domain=False, labelLimit=200, labelColor=INK, labelPadding=6),
    )
    x = alt.X("seconds:Q", axis=alt.Axis(title="seconds", tickCount=6, format=",~r"))
    base = alt.Chart(_data(rows))
    layers = [
        base.mark_bar(height={"band": 0.6}, color="var(--mem-0)").encode(x, y),
        base.mark_text(align="left", dx=4, color=SOFT, fontSize=10).encode(x, y, text="text:N"),
    ]
    told = "; ".join(f"{r['label']} {r['text']}" for r in rows)
    return render(alt.layer(*layers).properties(width=480, height=17 * len(labels)), "Time of each stage", told + ".")
