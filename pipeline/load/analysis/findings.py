"""Everything that a run's records and samples say about time, as findings: what was found, its size, or what would
have been seen.

Each test is made at 5 % by itself; over the whole run Holm's procedure decides which of them count, so that a quiet
run of many stages is called unstable in one case of twenty at most.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from loadtests.records import ClientHealth
from pipeline.gate.statistics.several import holm
from pipeline.load.analysis.growth import Blocks, idle_blocks, memory_growth
from pipeline.load.analysis.serial import FEWEST, best_windows
from pipeline.load.analysis.signals import Signal, Windows, itl_signal, ttft_signal
from pipeline.load.analysis.spikes import detectable_height, spikes
from pipeline.load.analysis.stall import Silence, burst, longest_silence, recovery_s
from pipeline.load.analysis.step import Step, step
from pipeline.load.analysis.trend import Trend, trend
from pipeline.load.stolen import MOST_SHARE, processors

ALPHA = 0.05
QUANTILES = {"P50": 0.5, "P95": 0.95}
NAMES = {"ttft": "TTFT", "itl": "ITL"}


@dataclass(frozen=True)
class Finding:
    """``found``: True, False (looked for, not there; ``words`` say what would have been seen) or None (cannot be
    told; ``words`` say why). ``size`` in ``unit``; ``detectable``: the size that would have been seen.
    """

    kind: str  # trend, step, spikes, stall, burst, blocks, memory, host, client
    stage: str | None
    metric: str | None  # "TTFT P95", ...
    found: bool | None
    words: str
    size: float | None = None
    unit: str = ""
    interval: tuple[float, float] | None = None
    detectable: float | None = None
    at_s: float | None = None
    period_s: float | None = None
    p_value: float | None = None

    def json(self) -> dict[str, Any]:
        """As JSON: figures that are not numbers become null."""
        return {k: _clean(v) for k, v in asdict(self).items()}


def _clean(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_clean(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@dataclass(frozen=True)
class StageWindow:
    """A stage's measured part on the records' clock; ``closed``: its arrivals wait for the server."""

    name: str
    from_s: float
    to_s: float
    closed: bool


def findings(
    records: pl.DataFrame,
    stages: Sequence[StageWindow],
    samples: pl.DataFrame,
    metrics: tuple[Mapping[str, float] | None, Mapping[str, float] | None],
    client: ClientHealth,
) -> list[Finding]:
    """All findings of a run, those of each stage together. ``metrics``: the server's, before and after the load."""
    out: list[Finding] = []
    for s in stages:
        ttft = ttft_signal(records, s.name, s.from_s, s.to_s, closed=s.closed)
        itl = itl_signal(records, s.name, s.from_s, s.to_s, closed=s.closed)
        for signal in (ttft, itl):
            out += _levels(s, signal)
            out.append(_spikes(s, signal))
        out.append(_stall(s, longest_silence(records, s.name, s.from_s, s.to_s), ttft))
        if not s.closed:
            out.append(_burst(s, ttft))
        out.append(_memory(s, samples))
        out.append(_host(s, samples, processors()))
    out.append(_blocks(idle_blocks(*metrics)))
    out.append(_client(client))
    return _corrected(out)


def _corrected(found: list[Finding]) -> list[Finding]:
    """Keeps as found what is significant after looking this often."""
    tested = {str(i): f.p_value for i, f in enumerate(found) if f.p_value is not None}
    rejected = holm(tested, dict.fromkeys(tested, ALPHA))
    out = []
    for i, f in enumerate(found):
        if f.found and f.p_value is not None and str(i) not in rejected:
            f = replace(
                f, found=False, words=f"{f.words}; not significant among {len(tested)} tests (p = {f.p_value:.2g})"
            )
        out.append(f)
    return out


def _levels(s: StageWindow, signal: Signal) -> list[Finding]:
    """Trend and step of each quantile. A ramp looks like a step, a step like a ramp: what fits worse is withdrawn."""
    out: list[Finding] = []
    for name, q in QUANTILES.items():
        metric = f"{NAMES[signal.metric]} {name}"
        w = best_windows(signal, q)
        if w is None or not np.isfinite(w.v).mean() > 0.8:
            why = (
                f"too few samples for {FEWEST} windows of a {name}"
                if w is None
                else "too many windows in which it is infinite"
            )
            out += [Finding(kind, s.name, metric, None, why) for kind in ("trend", "step")]
            continue
        t, j = trend(w, signal.span_s), step(w)
        ramp = _fits_ramp(w, t, signal.span_s, j)
        out.append(_trend(s, metric, t, t.p_value <= ALPHA and (ramp or j.p_value > ALPHA)))
        out.append(_step(s, metric, j, j.p_value <= ALPHA and (not ramp or t.p_value > ALPHA)))
    return out


def _fits_ramp(w: Windows, t: Trend, span_s: float, j: Step) -> bool:
    """Whether a straight line leaves less of the windows unexplained than two levels do."""
    line = w.v - math.log1p(t.percent / 100) * w.t_s / span_s
    two = np.where(w.t_s < j.at_s, w.v, w.v - math.log1p(j.percent / 100))
    return bool(np.abs(line - np.median(line)).sum() <= np.abs(two - np.median(two)).sum())


def _trend(s: StageWindow, metric: str, t: Trend, found: bool) -> Finding:
    low, high = t.interval
    words = f"{t.percent:+.1f} % over the stage (95 %: {low:+.1f} to {high:+.1f} %)"
    if not found:
        seen = f"; a drift of {t.detectable_percent:.1f} % would have been seen 4 times in 5"
        words += "; a step fits better" if t.p_value <= ALPHA else seen
    return Finding(
        "trend", s.name, metric, found, words, t.percent, "%", t.interval, t.detectable_percent, p_value=t.p_value
    )


def _step(s: StageWindow, metric: str, j: Step, found: bool) -> Finding:
    words = f"{j.percent:+.1f} % at {j.at_s:.1f} s into the stage"
    if not found:
        seen = f"no step; one of {j.detectable_percent:.1f} % in the middle would have been seen 4 times in 5"
        words = f"{words}; a drift fits better" if j.p_value <= ALPHA else seen
    return Finding(
        "step", s.name, metric, found, words, j.percent, "%", None, j.detectable_percent, j.at_s, p_value=j.p_value
    )


def _spikes(s: StageWindow, signal: Signal) -> Finding:
    metric, p = NAMES[signal.metric], spikes(signal)
    if p is None:
        return Finding("spikes", s.name, metric, None, "too few samples to look for a period")
    found = p.p_value <= ALPHA and p.height_ms > 0
    if found:
        words = f"every {p.period_s:.2f} s, {p.height_ms:.0f} ms above the median, {p.count} of them"
        return Finding(
            "spikes", s.name, metric, True, words, p.height_ms, "ms", None, None, p.first_s, p.period_s, p.p_value
        )
    seen = detectable_height(signal)
    words = "no period; " + (
        f"12 spikes to {seen:g} times the median at even intervals would have been seen"
        if seen
        else "this sample could not show 12 spikes of any height"
    )
    return Finding("spikes", s.name, metric, False, words, None, "ms", detectable=seen, p_value=p.p_value)


def _stall(s: StageWindow, longest: Silence | None, ttft: Signal) -> Finding:
    if longest is None:
        return Finding("stall", s.name, None, None, "nothing was in flight")
    at = longest.from_s - s.from_s
    words = f"no token for {longest.length_s:.2f} s from {at:.1f} s into the stage, while requests were in flight"
    if not longest.stalled:
        words = f"longest time without a token {longest.length_s:.2f} s; one of {longest.seen_from_s:.2f} s is a stall"
        return Finding(
            "stall", s.name, None, False, words, longest.length_s, "s", None, longest.seen_from_s, at
        )  # fmt: skip
    words += _back(recovery_s(ttft, at, longest.to_s - s.from_s))
    return Finding("stall", s.name, None, True, words, longest.length_s, "s", None, longest.seen_from_s, at)


def _back(seconds: float | None) -> str:
    if seconds is None:
        return "; TTFT was not back to what it was before within the stage"
    return f"; TTFT was back to what it was before {seconds:.1f} s after"


def _burst(s: StageWindow, ttft: Signal) -> Finding:
    b = burst(ttft.t_s, ttft.span_s)
    if b is None:
        return Finding("burst", s.name, None, False, "arrivals came without a burst of twice the usual rate")
    first, last, times = b
    words = f"arrivals at {times:.1f} times the usual rate from {first:.1f} to {last:.1f} s into the stage"
    words += _back(recovery_s(ttft, first, last))
    return Finding("burst", s.name, None, True, words, times, "times", at_s=first)


def _memory(s: StageWindow, samples: pl.DataFrame) -> Finding:
    m = memory_growth(samples, s.from_s, s.to_s)
    if isinstance(m, str):
        return Finding("memory", s.name, None, None, m)
    mib, share = m.grown_bytes / 1024**2, 100 * m.grown_bytes / m.quarters[0]
    words = f"resident memory {mib:+.1f} MiB ({share:+.1f} %) over the stage"
    words += f", {mib / m.length_s * 3600:.0f} MiB an hour, and still growing" if m.leaks else "; steady from 1 % on"
    return Finding("memory", s.name, None, m.leaks, words, mib, "MiB")


def _host(s: StageWindow, samples: pl.DataFrame, of: int) -> Finding:
    """``of`` so many processors. What is taken is nobody's fault, but the stage's latencies are a slower machine's."""
    seen = samples.filter(pl.col("t_s").is_between(s.from_s, s.to_s)).select("t_s", "stolen_s").drop_nulls()
    if seen.height < 2:
        return Finding("host", s.name, None, None, "too few samples of what the host took")
    length_s, taken_s = (float(seen[column][-1] - seen[column][0]) for column in seen.columns)
    percent, most = 100 * taken_s / (length_s * of), 100 * MOST_SHARE
    words = f"the host took {percent:.1f} % of the processors' time"
    words += "; the latencies are those of a slower machine" if percent > most else f", below {most:.0f} %"
    return Finding("host", s.name, None, percent > most, words, percent, "%", detectable=most)


def _blocks(b: Blocks | str) -> Finding:
    if isinstance(b, str):
        return Finding("blocks", None, None, None, b)
    words = f"{b.after} KV blocks in use when idle after the load, {b.before} before it"
    return Finding("blocks", None, None, b.leaked > 0, words, float(b.leaked), "blocks", detectable=1.0)


def _client(client: ClientHealth) -> Finding:
    if client.void_reason:
        return Finding("client", None, None, True, client.void_reason, client.lag_p99_ms, "ms")
    lag = client.lag_p99_ms
    words = f"lag P99 {lag or 0:.1f} ms, limit {client.lag_limit_ms or 0:.1f} ms"
    return Finding("client", None, None, False, words, lag, "ms", detectable=client.lag_limit_ms)
