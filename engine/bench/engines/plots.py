"""One figure a workload: each engine's median as a bar, its rounds as points."""

from __future__ import annotations

import altair as alt

from engine.bench.charts import axis, colours_of, svg
from engine.bench.engines.figures import METRICS, Result
from engine.bench.engines.tables import headline
from engine.bench.engines.workloads import Workload

ROW = 26  # pixels


def bars(
    workload: Workload, results: list[Result], names: list[str], metric_name: str | None = None
) -> tuple[str, str]:
    """(title, SVG). ``names``: of all engines, in order, so that each has one colour on the whole page."""
    metric = next(m for m in METRICS if m.name == (metric_name or headline(workload)))
    colours = dict(zip(names, colours_of(names), strict=True))
    rows = [{"engine": r.engine, "v": r.spreads[metric.name].median} for r in results]
    points = [{"engine": r.engine, "v": f.value} for r in results for f in r.rounds[metric.name]]
    shown = [r.engine for r in results]
    y = alt.Y("engine:N", sort=shown, axis=alt.Axis(title=None, labelLimit=160))
    x = alt.X("v:Q", scale=alt.Scale(zero=True, nice=False), axis=axis(metric.unit))
    bar = alt.Chart(alt.Data(values=[r for r in rows if r["v"] is not None])).mark_bar(size=14, opacity=0.8)
    coloured = alt.Color("engine:N", scale=alt.Scale(domain=shown, range=[colours[n] for n in shown]), legend=None)
    point = alt.Chart(alt.Data(values=[p for p in points if p["v"] is not None])).mark_point(
        color="var(--ink)", size=14, filled=True, opacity=0.8
    )
    title = f"{workload.name}: {metric.title}, {metric.unit}, {metric.better} is better"
    chart = alt.layer(bar.encode(x, y, coloured), point.encode(x, y))
    return title, svg(chart, title, height=ROW * len(shown))
