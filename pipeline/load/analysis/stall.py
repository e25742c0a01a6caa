"""Times when no token came although requests were waiting, and how long latency took to come back afterwards.

Under closed-loop arrivals a stall costs each user one slow request; under open-loop arrivals everything that was due
meanwhile is late by what was left of it, which is why latency counts from the due time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from scipy.stats import poisson

from loadtests.quantiles import nearest_rank
from pipeline.load.analysis.signals import Floats, Signal

LEAST_S = 1.0
TIMES_USUAL = 4.0  # a silence is a stall from so many times the P99 of the stage's silences on
BACK = 1.25  # latency is back when its median is within so many times that of before
_AFTER = 8  # requests whose median says so
_BURST_WINDOWS = 40
_BURST_TIMES, _BURST_P = 2.0, 1e-4


@dataclass(frozen=True)
class Silence:
    """The longest time without any token while at least one request was in flight. Seconds on the records' clock.

    ``usual_s``: P99 of all such times; ``seen_from_s``: length from which a silence counts as a stall.
    """

    from_s: float
    to_s: float
    usual_s: float

    @property
    def length_s(self) -> float:
        return self.to_s - self.from_s

    @property
    def seen_from_s(self) -> float:
        return max(LEAST_S, TIMES_USUAL * self.usual_s)

    @property
    def stalled(self) -> bool:
        return self.length_s > self.seen_from_s


def longest_silence(records: pl.DataFrame, stage: str, from_s: float, to_s: float) -> Silence | None:
    """Of the measured part ``from_s`` to ``to_s`` of a stage; None where nothing was in flight."""
    rows = records.filter((pl.col("stage") == stage) & pl.col("sent_s").is_not_null())
    sent = np.sort(rows["sent_s"].to_numpy().astype(np.float64))
    end = np.sort(rows.select(pl.col("end_s").fill_null(to_s))["end_s"].to_numpy().astype(np.float64))
    tokens = rows["token_times_s"].explode().drop_nulls().to_numpy().astype(np.float64)
    # Whenever a token comes, or the first request of a quiet spell is sent, the wait begins anew.
    idle = sent[np.searchsorted(end, sent, "right") >= np.searchsorted(sent, sent, "left")]
    marks = np.sort(np.concatenate([tokens, idle, end, [from_s, to_s]]))
    marks = marks[(marks >= from_s) & (marks <= to_s)]
    starts, ends = marks[:-1], marks[1:]
    flying = np.searchsorted(sent, starts, "right") > np.searchsorted(end, starts, "right")
    lengths = (ends - starts)[flying]
    if not len(lengths):
        return None
    at = int(np.argmax(lengths))
    usual = nearest_rank(np.sort(lengths).tolist(), 0.99)
    if len(lengths) < 100:  # the longest itself would be the P99
        usual = nearest_rank(np.sort(lengths).tolist(), 0.9)
    return Silence(float(starts[flying][at]), float(ends[flying][at]), usual)


def recovery_s(ttft: Signal, from_s: float, to_s: float) -> float | None:
    """Seconds from ``to_s``, the end of a disturbance that began at ``from_s``, until requests due then are again as
    quick as those before it; None: not within the stage, or there was no before to compare with. All times into the
    stage.
    """
    before = ttft.v_ms[ttft.t_s < from_s]
    if len(before) < _AFTER:
        return None
    limit = BACK * nearest_rank(np.sort(before).tolist(), 0.5)
    after = np.flatnonzero(ttft.t_s >= to_s)
    for i in after:
        following = ttft.v_ms[i : i + _AFTER]
        if len(following) < _AFTER:
            return None
        if following[0] <= limit and nearest_rank(np.sort(following).tolist(), 0.5) <= limit:
            return float(ttft.t_s[i] - to_s)
    return None


def burst(due_s: Floats, span_s: float) -> tuple[float, float, float] | None:
    """(from, to, times the usual rate) of the largest burst of open-loop arrivals; None: no window holds twice the
    usual number of arrivals and more than chance would give it.
    """
    counts = np.bincount(
        np.clip((due_s / span_s * _BURST_WINDOWS).astype(int), 0, _BURST_WINDOWS - 1), minlength=_BURST_WINDOWS
    )
    usual = float(np.median(counts))
    high = (counts >= _BURST_TIMES * usual) & (poisson.sf(counts - 1, max(usual, 1.0)) * _BURST_WINDOWS < _BURST_P)
    if usual <= 0 or not high.any():
        return None
    edges = np.flatnonzero(np.diff(np.concatenate([[0], high.astype(int), [0]])))
    runs = list(zip(edges[::2], edges[1::2], strict=True))
    first, last = max(runs, key=lambda r: int(counts[r[0] : r[1]].sum()))
    width = span_s / _BURST_WINDOWS
    return float(first) * width, float(last) * width, float(counts[first:last].mean()) / usual
