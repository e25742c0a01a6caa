from __future__ import annotations

import numpy as np
import pytest

from loadtests.quantiles import nearest_rank
from pipeline.load.analysis.signals import ttft_signal
from pipeline.load.analysis.stall import burst, longest_silence, recovery_s
from pipeline.load.samples import stage_latencies
from tests.pipeline.load.analysis.planted import frame, request, served

SPAN_S = 600.0
STALL = (200.0, 230.0)


def test_thirty_seconds_show_in_the_open_loops_p99_and_not_in_the_closed_loops() -> None:
    """The same server, the same stall. Open loop: 3 requests a second go on arriving, and all that were due meanwhile
    are late. Closed loop: each of two users waits once, and nobody else ever asks.
    """
    rng = np.random.default_rng(1)
    due = np.cumsum(rng.exponential(1 / 3, size=1800))
    due = due[due < SPAN_S]
    service = np.full(12_000, 0.1)
    open_loop = served(due, service, STALL)
    closed = served(np.array([SPAN_S]), service, STALL, users=2)
    p99 = {}
    for name, records in (("open", open_loop), ("closed", closed)):
        p99[name] = nearest_rank(sorted(stage_latencies(records, "s").ttft_ms), 0.99)
        silence = longest_silence(records, "s", 0.0, SPAN_S)
        assert silence is not None
        assert silence.stalled
        assert silence.length_s == pytest.approx(30, abs=0.2)
        assert silence.from_s == pytest.approx(200, abs=0.2)
    assert p99["open"] > 25_000
    assert p99["closed"] < 250


def test_latency_comes_back_when_the_backlog_is_served() -> None:
    """30 s at 3 a second are 90 requests; a server of 5 a second serves them while 3 more come: 45 s."""
    records = served(np.arange(0, SPAN_S, 1 / 3), np.full(2000, 0.2), STALL)
    ttft = ttft_signal(records, "s", 0.0, SPAN_S, closed=False)
    assert recovery_s(ttft, *STALL) == pytest.approx(45, abs=2)
    assert recovery_s(ttft, 0.5, 1.0) is None  # no before to compare with


def test_an_even_stage_has_no_stall() -> None:
    records = served(np.arange(0, 60, 0.4), np.random.default_rng(0).exponential(0.2, 2000))
    silence = longest_silence(records, "s", 0.0, 60.0)
    assert silence is not None
    assert not silence.stalled


def test_idle_times_are_no_silence() -> None:
    """Two requests an hour apart: nothing was in flight between them."""
    records = frame([request(0, 0.0, 0.1, [0.1] * 5), request(1, 3600.0, 0.1, [0.1] * 5)])
    silence = longest_silence(records, "s", 0.0, 3601.0)
    assert silence is not None
    assert silence.length_s == pytest.approx(0.1)


def test_a_burst_is_found_with_its_rate() -> None:
    rng = np.random.default_rng(2)
    calm = np.sort(rng.uniform(0, 400, 800))
    assert burst(calm, 400.0) is None
    extra = rng.uniform(200, 220, 200)
    found = burst(np.sort(np.concatenate([calm, extra])), 400.0)
    assert found is not None
    assert found[0] == pytest.approx(200, abs=10)
    assert found[1] == pytest.approx(220, abs=10)
    assert found[2] == pytest.approx(6, abs=1.5)
