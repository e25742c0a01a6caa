"""Whether the load client itself can be believed: its lag and its own CPU use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from loadtests.client import Exchange
from loadtests.quantiles import min_samples, nearest_rank
from loadtests.records import ClientHealth

LAG_FLOOR_MS = 5.0
LAG_SHARE_OF_TTFT = 0.1
CPU_SATURATED = 0.85  # of one core: the client is one thread


class StageCpu(NamedTuple):
    """CPU time of the client's process in a stage, and how long that was."""

    cpu_s: float
    wall_s: float


def client_health(
    exchanges: Sequence[Exchange], loop_lag_s: Mapping[str, Sequence[float]], cpu: Mapping[str, StageCpu]
) -> ClientHealth:
    """Judges a run by its measured requests.

    The lag of a request is sent - due; its limit, by stage, is max(5 ms, 10 % of the median TTFT). Under closed-loop
    arrivals that alone would miss a client too busy to notice that an answer has come, so how late its loop woke from
    short sleeps (``loop_lag_s``, by stage) is judged too: that is the error of a stamp, and at the P99 it may be a
    tenth of the P99 TTFT. The stage nearest to its limit is reported, and the one that took most of a core: an idle
    stage does not make up for a busy one.
    """
    shares = {stage: c.cpu_s / c.wall_s for stage, c in cpu.items() if c.wall_s > 0}
    busiest = max(shares, key=lambda stage: shares[stage], default=None)
    cpu_share = None if busiest is None else shares[busiest]
    worst: tuple[float, float, float] | None = None  # lag / limit, lag, limit
    worst_loop: tuple[float, float] | None = None  # lag / limit, lag
    reasons = []
    for stage in sorted({e.stage for e in exchanges}):
        measured = [e for e in exchanges if e.stage == stage and e.phase == "measured"]
        lags = sorted((e.sent_s - e.due_s) * 1000 for e in measured if e.sent_s is not None)
        ttfts = sorted((e.token_times_s[0] - e.due_s) * 1000 for e in measured if e.status == "ok" and e.token_times_s)
        if not lags:
            continue
        limit = max(LAG_FLOOR_MS, LAG_SHARE_OF_TTFT * nearest_rank(ttfts, 0.5) if ttfts else 0.0)
        lag = nearest_rank(lags, 0.99)
        worst = max(worst or (0.0, 0.0, limit), (lag / limit, lag, limit))
        if lag > limit:
            reasons.append(
                f"in stage {stage} the client sent requests late: lag P99 {lag:.1f} ms, limit {limit:.1f} ms"
            )
        probed = sorted(loop_lag_s.get(stage, ()))
        if len(probed) >= min_samples(0.99):
            lag = nearest_rank(probed, 0.99) * 1000
            limit = max(LAG_FLOOR_MS, LAG_SHARE_OF_TTFT * nearest_rank(ttfts, 0.99) if ttfts else 0.0)
            worst_loop = max(worst_loop or (0.0, 0.0), (lag / limit, lag))
            if lag > limit:
                reasons.append(f"in stage {stage} the client's loop woke late: P99 {lag:.1f} ms, limit {limit:.1f} ms")
    if worst is None:
        reasons.append("no measured request was sent")
    if cpu_share is not None and cpu_share > CPU_SATURATED:
        reasons.append(
            f"in stage {busiest} the client used {cpu_share:.0%} of a core, so it was itself saturated; spread it over "
            "processes (load.workers, or locust --master and --worker)"
        )
    return ClientHealth(
        lag_p99_ms=worst[1] if worst else None,
        lag_limit_ms=worst[2] if worst else None,
        loop_lag_p99_ms=worst_loop[1] if worst_loop else None,
        cpu_share=cpu_share,
        void=bool(reasons),
        void_reason="; ".join(reasons) or None,
    )
