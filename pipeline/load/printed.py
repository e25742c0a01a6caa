"""A load test in lines of text: each figure with its interval, what was found over time, and what the figures mean."""

from __future__ import annotations

from typing import Any

_LATENCIES = ("ttft_ms", "itl_ms", "tpot_ms", "e2e_ms")
_SHARES = ("error_share", "refused_share", "abandoned_share")
_MARK = {True: "!", False: " ", None: "?"}


def lines(load: dict[str, Any]) -> list[str]:
    """What ``load.json`` says, the stages first."""
    out: list[str] = []
    for name, f in load["stages"].items():
        out.append(f"{name}: {f['requests']} requests, {f['requests'] - f['ok']} not ok, {_rates(f)}")
        out += [f"{name}: {_latency(f, m, load['definitions'][m]['name'])}" for m in _LATENCIES]
        if f["queue_ms"]["p50"] is not None:
            out.append(f"{name}: {_latency(f, 'queue_ms', load['definitions']['queue_ms']['name'])}")
        shares = [f"{load['definitions'][k]['name'].lower()} {_share(f, k)}" for k in _SHARES if f[k]]
        if f["goodput_share"] is not None:
            shares.append(f"goodput {f['goodput_share']:.1%}")
        out += [f"{name}: {', '.join(shares)}"] if shares else []
    out += [f"{_MARK[x['found']]} {_where(x)}{x['kind']}: {x['words']}" for x in load["findings"] if x["found"]]
    quiet = [x for x in load["findings"] if x["found"] is False]
    unknown = sum(x["found"] is None for x in load["findings"])
    out.append(
        f"over time: {len(load['findings'])} looks, {len(quiet)} found nothing (load.json says what they would have "
        f"seen), {unknown} could not tell"
    )
    out.append(f"{_MARK[load['truncation']['found']]} truncation: {load['truncation']['words']}")
    out += [
        f"{load['definitions'][k]['name']}, {load['definitions'][k]['unit']}: {load['definitions'][k]['formula']}"
        for k in (*_LATENCIES, "goodput_share")
    ]
    out.append("in brackets: 95 % intervals from order statistics, at the number of independent samples")
    return out


def _rates(f: dict[str, Any]) -> str:
    return (
        f"{f['output_tokens_per_s']:.0f} output and {f['prompt_tokens_per_s']:.0f} prompt tokens/s, "
        f"{f['requests_per_s']:.2f} requests/s"
    )


def _latency(f: dict[str, Any], metric: str, name: str) -> str:
    parts = []
    for q in ("p50", "p95", "p99"):
        value = f[metric][q]
        if value is None:
            parts.append(f"{q.upper()} none ({f['reasons'][f'{metric}.{q}']})")
            continue
        known = f["intervals"].get(f"{metric}.{q}")
        span = f" [{_end(known['interval'][0])} to {_end(known['interval'][1])}]" if known else ""
        parts.append(f"{q.upper()} {value:.0f} ms{span}")
    return f"{name} {', '.join(parts)}"


def _end(value: float | None) -> str:
    return "open" if value is None else f"{value:.0f}"


def _share(f: dict[str, Any], key: str) -> str:
    low, high = f["intervals"][key]["interval"]
    return f"{f[key]:.1%} [{low:.1%} to {high:.1%}]"


def _where(x: dict[str, Any]) -> str:
    return "".join(f"{part}, " for part in (x["stage"], x["metric"]) if part)
