"""What several load clients measured, as one run: every time on the master's clock.

A worker's rows are seconds of its own monotonic clock since its first stage began there (``clock_zero_s``). They are
moved to the master's clock by the offset that was measured between the two, then counted from the master's beginning.
How far off they may then be stands with each worker in ``run.json``; where that is more than the client may lag, the
run is void.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from loadtests.clocks import Offset
from loadtests.health import LAG_FLOOR_MS
from loadtests.records import SCHEMA, ClientHealth, RunInfo, WorkerInfo

TIMES = ("due_s", "sent_s", "first_byte_s", "first_token_s", "end_s")

Shift = Callable[[pl.Series], pl.Series]


@dataclass
class Part:
    """What one worker handed over, or what is known of one that did not. ``info`` is None for those."""

    worker: int
    name: str
    offset: Offset
    info: RunInfo | None
    rows: list[pl.DataFrame] = field(default_factory=list)
    lost: str | None = None

    def shift(self, zero_s: float) -> Shift:
        """From seconds since this worker's zero to seconds since the master's."""
        own_s = self.info.clock_zero_s if self.info is not None else None
        if own_s is None:
            raise ValueError(f"worker {self.worker} ({self.name}) did not say when its clock began")

        def shift(column: pl.Series) -> pl.Series:
            if self.offset.same and own_s == zero_s:
                return column  # bit by bit as it was measured
            moved = self.offset.to_ours(column.to_numpy().astype(np.float64) + own_s) - zero_s
            return pl.Series(column.name, moved, pl.Float64, nan_to_null=True)

        return shift

    def health(self) -> WorkerInfo:
        return WorkerInfo(
            worker=self.worker,
            name=self.name,
            requests=sum(part.height for part in self.rows) if self.info else 0,
            same_clock=self.offset.same,
            clock_offset_s=self.offset.value_s,
            clock_error_s=self.offset.error_s,
            clock_moved_s=self.offset.moved_s,
            lost=self.lost,
            client=self.info.client if self.info else None,
        )


def merge(parts: Sequence[Part], begins_s: Sequence[float], started_at: str) -> tuple[pl.DataFrame, RunInfo] | None:
    """The records of all workers in order of due time, and the run; None: no worker handed over anything.

    Args:
        begins_s: when each stage began, on the master's clock; the first is the run's zero.
        started_at: the same moment in UTC, by the master's calendar.
    """
    whole = [(p, p.info) for p in parts if p.info is not None]
    if not whole or not begins_s:
        return None
    zero_s = begins_s[0]
    records, shifts = [pl.DataFrame(schema=SCHEMA)], [p.shift(zero_s) for p, _ in whole]
    for (part, _), shift in zip(whole, shifts, strict=True):
        records += [_moved(rows, shift) for rows in part.rows]
    longest = max((info for _, info in whole), key=lambda info: len(info.stages))
    stages = []
    for i, stage in enumerate(longest.stages):
        same = [(info.stages[i], shift) for (_, info), shift in zip(whole, shifts, strict=True) if len(info.stages) > i]
        start_s = begins_s[i] - zero_s
        stages.append(
            {
                **stage,
                "start_s": start_s,
                "end_s": start_s + (stage["end_s"] - stage["start_s"]),
                "drained_s": max(_one(shift, s["drained_s"]) for s, shift in same),
                "requests": sum(s["requests"] for s, _ in same),
            }
        )
    workers = [p.health() for p in parts]
    run = {
        "started_at": started_at,
        "stages": stages,
        "duration_s": max(_one(shift, info.duration_s) for (_, info), shift in zip(whole, shifts, strict=True)),
        "clock_zero_s": zero_s,
        "client": worst(workers),
        "workers": workers,
    }
    return pl.concat(records).sort("due_s"), longest.model_copy(update=run)


def _one(shift: Shift, value_s: float) -> float:
    return float(shift(pl.Series([value_s], dtype=pl.Float64))[0])


def _moved(rows: pl.DataFrame, shift: Shift) -> pl.DataFrame:
    tokens = [shift(times).to_list() for times in rows["token_times_s"]]
    column = pl.Series("token_times_s", tokens, pl.List(pl.Float64))
    return rows.with_columns(*(shift(rows[name]) for name in TIMES), column)


def worst(workers: Sequence[WorkerInfo]) -> ClientHealth:
    """The health of a run by several clients: of each figure the worst.

    Void if one is, if one is lost, or if the clock of one is known less well than a client may lag: its times may then
    be as wrong as those of a client that lags.
    """
    known = [w.client for w in workers if w.client is not None]
    late = max(known, key=lambda c: (c.lag_p99_ms or 0.0) / (c.lag_limit_ms or 1.0))
    reasons = [f"worker {w.worker} ({w.name}) was lost: {w.lost}" for w in workers if w.lost]
    for w in workers:
        if w.client is None:
            continue
        if w.client.void_reason:
            reasons.append(f"worker {w.worker} ({w.name}): {w.client.void_reason}")
        limit_ms = w.client.lag_limit_ms or LAG_FLOOR_MS
        if w.clock_error_s * 1000 > limit_ms:
            reasons.append(
                f"worker {w.worker} ({w.name}): its clock is known to {w.clock_error_s * 1000:.1f} ms only, limit "
                f"{limit_ms:.1f} ms, so its times may be as far off; give it a quieter way to the master, or a clock "
                "that drifts less"
            )
    return ClientHealth(
        lag_p99_ms=late.lag_p99_ms,
        lag_limit_ms=late.lag_limit_ms,
        loop_lag_p99_ms=max((c.loop_lag_p99_ms for c in known if c.loop_lag_p99_ms is not None), default=None),
        short_slices=all(c.short_slices for c in known),
        cpu_share=max((c.cpu_share for c in known if c.cpu_share is not None), default=None),
        void=bool(reasons),
        void_reason="; ".join(reasons) or None,
    )
