from __future__ import annotations

from array import array

from loadtests.client import Exchange
from loadtests.health import StageCpu, client_health

LITTLE = {"s": StageCpu(1.0, 10.0)}


def exchanges(lag_s: float, ttft_s: float, n: int = 200, stage: str = "s", late: int = 0) -> list[Exchange]:
    """``late`` of the n requests were sent after ``lag_s``, the others at once."""
    out = []
    for i in range(n):
        e = Exchange(f"{stage}-{i}", stage, "measured", 0, float(i), 4)
        e.sent_s, e.status = i + (lag_s if i < late else 0.0), "ok"
        e.token_times_s = array("d", [i + ttft_s])
        out.append(e)
    return out


def test_a_client_on_time_is_believed() -> None:
    health = client_health(exchanges(0.0, 0.2), {"s": [0.001] * 100}, LITTLE)
    assert not health.void
    assert health.void_reason is None
    assert (health.lag_p99_ms, health.cpu_share) == (0.0, 0.1)


def test_the_limit_is_a_tenth_of_the_median_ttft_but_at_least_5_ms() -> None:
    assert client_health(exchanges(0, 0.01), {}, {}).lag_limit_ms == 5.0
    limit = client_health(exchanges(0, 2.0), {}, {}).lag_limit_ms
    assert limit is not None
    assert abs(limit - 200) < 1e-6


def test_lag_voids_the_run() -> None:
    assert not client_health(exchanges(0.030, 0.2, late=2), {}, LITTLE).void  # 1 % of 200 is not beyond the P99
    health = client_health(exchanges(0.030, 0.2, late=3), {}, LITTLE)
    assert health.void
    assert "stage s the client sent requests late: lag P99 30.0 ms, limit 20.0 ms" in (health.void_reason or "")


def test_one_late_stage_is_enough_and_is_named() -> None:
    both = exchanges(0.0, 2.0, stage="slow") + exchanges(0.03, 0.1, stage="fast", late=100)
    health = client_health(both, {}, LITTLE)
    assert health.void
    assert "stage fast" in (health.void_reason or "")


def test_a_loop_that_wakes_late_voids_the_run() -> None:
    health = client_health(exchanges(0.0, 0.1), {"s": [0.5] * 100}, LITTLE)
    assert "stage s the client's loop woke late: P99 500.0 ms, limit 10.0 ms" in (health.void_reason or "")
    assert health.loop_lag_p99_ms == 500.0
    slow_tail = exchanges(0.0, 0.1)
    for e in slow_tail[-3:]:
        e.token_times_s = array("d", [e.due_s + 6.0])
    assert not client_health(slow_tail, {"s": [0.5] * 100}, LITTLE).void  # a tenth of a P99 of 6 s is 600 ms
    assert not client_health(exchanges(0.0, 0.1), {"other": [0.5] * 100}, LITTLE).void
    assert not client_health(exchanges(0.0, 0.1), {"s": [0.5] * 10}, LITTLE).void  # too few for a P99


def test_saturation_voids_the_run() -> None:
    health = client_health(exchanges(0.0, 0.2), {}, {"idle": StageCpu(0.1, 10.0), "s": StageCpu(9.5, 10.0)})
    assert "in stage s the client used 95% of a core" in (health.void_reason or "")


def test_nothing_sent_is_void() -> None:
    assert client_health([], {}, {}).void
    warm = exchanges(0.0, 0.2)
    for e in warm:
        e.phase = "warmup"
    assert "no measured request" in (client_health(warm, {}, LITTLE).void_reason or "")
