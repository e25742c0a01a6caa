"""The figures of the page as inline SVG: Altair rendered in this process, no script and no network on the page."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import altair as alt
import vl_convert

from engine.bench.drive import RunRecord
from engine.bench.fit import Fit
from engine.bench.metrics import itl_s, reserved_bytes, ttft_s, used_bytes

WIDTH, HEIGHT = 470, 120
MOST_POINTS = 400
# Names of CSS variables that the page sets for light and dark; dashes say the same again without colour.
COLOURS = [f"var(--policy-{i})" for i in range(7)]
DASHES: list[list[float]] = [[1, 0], [7, 3], [2, 2.5], [9, 3, 2, 3], [4, 4], [12, 3], [3, 1.5]]
FIT_PARTS = ["used", "internal waste", "external waste", "idle"]
FIT_COLOURS = [f"var(--part-{i})" for i in range(4)]
MIB = 1024**2


def occupancy_over_time(name: str, record: RunRecord, end_s: float) -> str:
    """Requests in the batch of each step as an area, slots as the axis, requests waiting as a line."""
    rows = over_time(record, lambda s: s.batch_requests)
    waiting = over_time(record, lambda s: s.waiting)
    top = max([record.slots, *(r["v"] for r in waiting)])
    area = alt.Chart(alt.Data(values=rows)).mark_area(color="var(--policy-0)", opacity=0.55, interpolate="step-after")
    line = alt.Chart(alt.Data(values=waiting)).mark_line(
        color="var(--policy-1)", strokeWidth=1.4, strokeDash=[4, 3], interpolate="step-after"
    )
    slots = alt.Chart(alt.Data(values=[{"v": record.slots}])).mark_rule(color="var(--soft)")
    y = alt.Y("v:Q", scale=alt.Scale(domain=[0, 1.05 * top], nice=False), axis=axis("requests"))
    layers = [area.encode(_x(end_s), y), line.encode(_x(end_s), y), slots.encode(y)]
    return svg(alt.layer(*layers), f"{name}: requests computed in each step, {record.slots} slots")


def kv_over_time(name: str, record: RunRecord, end_s: float, top_bytes: float) -> str:
    """Reserved bytes behind used bytes, the pool as a rule where the axis reaches it."""
    reserved = over_time(record, lambda s: reserved_bytes(record, s) / MIB)
    used = over_time(record, lambda s: used_bytes(record, s) / MIB)
    y = alt.Y("v:Q", scale=alt.Scale(domain=[0, 1.05 * top_bytes / MIB], nice=False), axis=axis("MiB"))
    layers = [
        alt.Chart(alt.Data(values=rows))
        .mark_area(color=colour, opacity=opacity, interpolate="step-after")
        .encode(_x(end_s), y)
        for rows, colour, opacity in ((reserved, "var(--part-1)", 0.75), (used, "var(--part-0)", 0.9))
    ]
    pool = record.num_blocks * record.block_bytes
    if pool <= top_bytes:
        rule = alt.Chart(alt.Data(values=[{"v": pool / MIB}])).mark_rule(color="var(--ink)")
        layers.append(rule.encode(y))
    return svg(alt.layer(*layers), f"{name}: KV bytes reserved and used")


def latency_ecdf(records: dict[str, list[RunRecord]], metric: str) -> str:
    """Share of requests (TTFT) or gaps (ITL) up to each time, all rounds pooled, time on a log axis."""
    of = {"TTFT": ttft_s, "ITL": itl_s}[metric]
    rows = [
        {"policy": name, "ms": round(1000 * value, 3), "share": round(share, 5)}
        for name, runs in records.items()
        for value, share in ecdf(of(runs))
    ]
    names = list(records)
    chart = (
        alt.Chart(alt.Data(values=rows))
        .mark_line(strokeWidth=1.8, interpolate="step-after")
        .encode(
            alt.X("ms:Q", scale=alt.Scale(type="log", nice=False), axis=axis("milliseconds", labelOverlap=True)),
            alt.Y("share:Q", scale=alt.Scale(domain=[0, 1]), axis=axis("share", format=".0%")),
            alt.Color("policy:N", scale=alt.Scale(domain=names, range=colours_of(names)), legend=None),
            alt.StrokeDash("policy:N", scale=alt.Scale(domain=names, range=_cycle(DASHES, names)), legend=None),
        )
    )
    return svg(chart, f"{metric} by policy: share of samples up to a time", height=230)


def fit_parts(fits: list[Fit]) -> str:
    """The pool's bytes by reservation, one bar each."""
    rows = [
        {"reservation": f.reservation, "part": part, "order": i, "mib": round(value / MIB, 3)}
        for f in fits
        for i, (part, value) in enumerate(
            zip(
                FIT_PARTS,
                (f.used_bytes, f.internal_waste_bytes, f.external_waste_bytes, f.idle_bytes),
                strict=True,
            )
        )
    ]
    chart = (
        alt.Chart(alt.Data(values=rows))
        .mark_bar(size=20)
        .encode(
            alt.X("mib:Q", scale=alt.Scale(nice=False), axis=axis("MiB")),
            alt.Y("reservation:N", sort=[f.reservation for f in fits], axis=alt.Axis(title=None, labelLimit=120)),
            alt.Color("part:N", scale=alt.Scale(domain=FIT_PARTS, range=FIT_COLOURS), legend=None),
            order=alt.Order("order:Q"),
        )
    )
    return svg(
        chart, "The pool's bytes by reservation: used, internal waste, external waste, idle", height=34 * len(fits)
    )


def over_time(record: RunRecord, value: Callable[[Any], float]) -> list[dict[str, float]]:
    """Time-weighted means of a step's value in at most MOST_POINTS equal spans; a span without a step is 0."""
    end = max((s.start_s + s.duration_s for s in record.steps), default=0.0)
    if not end:
        return []
    width = end / min(MOST_POINTS, max(1, len(record.steps)))
    spans = [0.0] * (math.ceil(end / width) + 1)
    for step in record.steps:
        at, stop = step.start_s, step.start_s + step.duration_s
        while at < stop:
            span = int(at / width)
            upto = min(stop, (span + 1) * width)
            if upto <= at:  # rounding put the edge of the span at or before its start
                span, upto = span + 1, min(stop, (span + 2) * width)
            spans[span] += value(step) * (upto - at) / width
            at = upto
    return [{"t": round(i * width, 4), "v": round(v, 4)} for i, v in enumerate(spans)]


def ecdf(samples: list[float]) -> list[tuple[float, float]]:
    """(value, share of samples at most that) at MOST_POINTS places, the largest always among them."""
    ordered, n = sorted(samples), len(samples)
    step = max(1, n // MOST_POINTS)
    places = sorted({*range(0, n, step), n - 1}) if n else []
    return [(ordered[i], (i + 1) / n) for i in places if ordered[i] > 0]  # a log axis has no 0


def colours_of(names: list[str]) -> list[str]:
    return _cycle(COLOURS, names)


def _cycle(values: list[Any], names: list[str]) -> list[Any]:
    return [values[i % len(values)] for i in range(len(names))]


def axis(title: str, **options: Any) -> alt.Axis:
    return alt.Axis(title=title, **{"tickCount": 4, "grid": True, **options})


def _x(end_s: float) -> alt.X:
    return alt.X("t:Q", scale=alt.Scale(domain=[0, end_s], nice=False), axis=axis("seconds", grid=False))


def svg(chart: Any, title: str, height: int = HEIGHT) -> str:
    spec = (
        chart.properties(width=WIDTH, height=height)
        .configure(background="transparent", font="inherit", padding=4)
        .configure_view(stroke=None)
        .configure_axis(
            labelColor="var(--soft)",
            titleColor="var(--soft)",
            gridColor="var(--rule)",
            domainColor="var(--rule)",
            tickColor="var(--rule)",
            titleFontWeight="normal",
        )
        .to_dict(validate=False)  # against the schema: takes longer than drawing, and nothing here comes from a user
    )
    svg: str = vl_convert.vegalite_to_svg(spec, allowed_base_urls=[])
    head, body = svg[: svg.index(">")], svg[svg.index(">") + 1 :]
    label = title.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
    head = re.sub(r' (?:role|aria-[a-z]+)="[^"]*"', "", head)
    return f'{head} role="img" aria-label="{label}"><title>{label}</title>{body}'
