"""Latency and the share within the SLO against the rate, as one SVG file that stands by itself."""

from __future__ import annotations

from typing import Any

import altair as alt
import vl_convert

_INK, _SOFT, _BLUE, _RED = "#222222", "#6b6b6b", "#0072b2", "#d55e00"


def svg(value: dict[str, Any]) -> str:
    """Of ``sweep.json``: TTFT P50 and P95 above, the share of requests within the SLO below; the knee as a line, its
    interval as a band.
    """
    latency = [
        {"rate": p["rate_per_s"], "ms": p["figures"]["ttft_ms"][q], "what": f"TTFT {q.upper()}"}
        for p in value["probes"]
        if not p["void"]
        for q in ("p50", "p95")
        if p["figures"]["ttft_ms"][q] is not None
    ]
    shares = [{k: r[k] for k in ("rate_per_s", "share", "low", "high")} for r in value["rates"]]
    x = alt.X("rate:Q", scale=alt.Scale(type="log", nice=False), axis=alt.Axis(title="requests per second", grid=False))
    colour = alt.Color("what:N", scale=alt.Scale(range=[_BLUE, _RED]), legend=alt.Legend(title=None, orient="top-left"))
    base = alt.Chart(alt.Data(values=latency))
    top = alt.layer(
        base.mark_line(opacity=0.6).encode(x, alt.Y("mean(ms):Q", title="ms"), colour),
        base.mark_circle(size=36, opacity=1).encode(x, alt.Y("ms:Q", title="ms"), colour),
        *_marks(value),
    ).properties(width=560, height=220, title=_title(value))
    share_x = alt.X(
        "rate_per_s:Q", scale=alt.Scale(type="log", nice=False), axis=alt.Axis(title="requests per second", grid=False)
    )
    of = alt.Chart(alt.Data(values=shares))
    target = alt.Chart(alt.Data(values=[{"y": value["target_share"]}]))
    bottom = alt.layer(
        of.mark_rule(color=_SOFT).encode(share_x, alt.Y("low:Q", title="within the SLO"), y2="high:Q"),
        of.mark_circle(size=40, color=_INK, opacity=1).encode(
            share_x, alt.Y("share:Q", axis=alt.Axis(format=".0%"), scale=alt.Scale(domain=[0, 1]))
        ),
        target.mark_rule(strokeDash=[4, 3], color=_SOFT).encode(y="y:Q"),
    ).properties(width=560, height=120)
    return str(vl_convert.vegalite_to_svg(alt.vconcat(top, bottom).to_dict(), allowed_base_urls=[]))


def _marks(value: dict[str, Any]) -> list[Any]:
    low, high = value["interval"]
    marks: list[Any] = []
    if low is not None and high is not None:
        band = alt.Chart(alt.Data(values=[{"a": low, "b": high}]))
        marks.append(band.mark_rect(opacity=0.12, color=_INK).encode(x="a:Q", x2="b:Q"))
    if value["knee_per_s"] is not None:
        line = alt.Chart(alt.Data(values=[{"knee": value["knee_per_s"]}]))
        marks.append(line.mark_rule(color=_INK, strokeWidth=1.5).encode(x="knee:Q"))
    return marks


def _title(value: dict[str, Any]) -> str:
    slo = value["slo"]
    return (
        f"{value['target_share']:.0%} of requests within TTFT {slo['ttft_ms']:g} ms and TPOT {slo['tpot_ms']:g} ms, "
        f"stage {value['stage']}"
    )
