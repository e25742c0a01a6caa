"""What is planted in the simulated server is found and named with its size; where nothing is, nothing is found."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
import pytest

from loadtests.records import ClientHealth
from loadtests.simulator.scenario import Drift, Fault, Scenario, Spikes, Stall
from pipeline.load.analysis.findings import Finding, StageWindow, findings
from pipeline.load.analysis.signals import ttft_signal
from tests.pipeline.load.analysis.planted import frame, request, simulated

SPAN_S = 600.0
CLIENT = ClientHealth(lag_p99_ms=1.0, lag_limit_ms=20.0, cpu_share=0.1, void=False, void_reason=None)
NOBODY = pl.DataFrame(schema={"t_s": pl.Float64, "rss_bytes": pl.Int64, "stolen_s": pl.Float64})


def look(
    faults: Sequence[Fault] = (),
    client: ClientHealth = CLIENT,
    leaked: int = 0,
    seed: int = 1,
    samples: pl.DataFrame = NOBODY,
) -> dict[tuple[str, str | None], Finding]:
    """Findings of a ten minute stage, 4 requests a second, by kind and metric."""
    rng = np.random.default_rng(seed)
    scenario = Scenario(ttft_ms=200, itl_ms=40, faults=tuple(faults))
    records = simulated(scenario, np.sort(rng.uniform(0, SPAN_S, round(4 * SPAN_S))), rng)
    idle = {"seatrial_kv_blocks_used": 2.0, "seatrial_num_requests_running": 0.0}
    metrics = (idle, idle | {"seatrial_kv_blocks_used": 2.0 + leaked})
    found = findings(records, [StageWindow("s", 0.0, SPAN_S, closed=False)], samples, metrics, client)
    return {(f.kind, f.metric): f for f in found}


def seen(found: dict[tuple[str, str | None], Finding]) -> set[str]:
    return {f.kind for f in found.values() if f.found}


def test_a_quiet_stage_is_stable_with_the_evidence_for_it() -> None:
    found = look()
    assert seen(found) == set()
    drift = found["trend", "TTFT P50"]
    assert drift.found is False
    assert drift.interval is not None
    assert drift.interval[0] < 0 < drift.interval[1]
    assert drift.detectable is not None
    assert 0 < drift.detectable < 5
    assert f"a drift of {drift.detectable:.1f} % would have been seen 4 times in 5" in drift.words
    assert "would have been seen" in found["spikes", "TTFT"].words
    assert found["memory", None].found is None
    assert found["host", None].found is None
    json.dumps([f.json() for f in found.values()], allow_nan=False)


@pytest.mark.parametrize(("percent", "found"), [(0.0, False), (4.9, False), (5.1, True), (41.0, True)])
def test_what_the_host_takes_of_the_processors_is_told(
    monkeypatch: pytest.MonkeyPatch, percent: float, found: bool
) -> None:
    """Of two processors; what it took before the stage does not count."""
    monkeypatch.setattr("pipeline.load.stolen.os.cpu_count", lambda: 2)
    t_s = np.arange(-10.0, SPAN_S + 10)
    taken_s = 1000 + np.where(t_s < 0, 9 * t_s, 2 * percent / 100 * t_s)
    samples = pl.DataFrame({"t_s": t_s, "rss_bytes": [10**9] * len(t_s), "stolen_s": taken_s})
    (seen,) = [f for f in look(samples=samples).values() if f.kind == "host"]
    assert seen.found is found
    assert seen.size == pytest.approx(percent)
    assert f"{percent:.1f} % of the processors' time" in seen.words
    assert ("slower machine" in seen.words) is found


def test_a_slow_drift_of_five_percent() -> None:
    found = look([Drift(kind="drift", share=0.05, over_s=SPAN_S)])
    assert seen(found) == {"trend"}
    for metric in ("TTFT P50", "ITL P50"):
        assert found["trend", metric].found
        assert found["trend", metric].size == pytest.approx(5, abs=2)


def test_periodic_spikes_with_period_and_height() -> None:
    """Every 20 s nothing goes out for half a second: whoever is due or waits for a token then waits up to 500 ms."""
    found = look([Spikes(kind="spikes", every_s=20.0, for_s=0.5, first_s=7.0)])
    assert seen(found) == {"spikes"}
    itl = found["spikes", "ITL"]
    assert itl.period_s == pytest.approx(20, rel=0.01)
    assert itl.size == pytest.approx(500, rel=0.2)
    assert found["spikes", "TTFT"].period_s == pytest.approx(20, rel=0.01)


def test_a_stall_of_thirty_seconds_with_its_length_place_and_recovery() -> None:
    found = look([Stall(kind="stall", at_s=300.0, for_s=30.0)])
    assert "stall" in seen(found)
    stall = found["stall", None]
    assert stall.size == pytest.approx(30, abs=0.3)
    assert stall.at_s == pytest.approx(300, abs=0.3)
    assert "TTFT was back to what it was before" in stall.words
    assert not seen(found) & {"trend", "spikes", "blocks"}


def test_a_sudden_change_is_a_step_and_no_drift() -> None:
    found = look([Drift(kind="drift", share=0.2, from_s=400.0, over_s=0.001)])
    assert seen(found) == {"step"}
    assert found["step", "TTFT P50"].size == pytest.approx(20, abs=4)
    assert found["step", "TTFT P50"].at_s == pytest.approx(400, abs=20)


def test_a_leak_of_blocks() -> None:
    found = look(leaked=37)
    assert seen(found) == {"blocks"}
    assert found["blocks", None].size == 37
    assert found["blocks", None].words == "39 KV blocks in use when idle after the load, 2 before it"


def test_a_late_client() -> None:
    late = CLIENT.model_copy(update={"lag_p99_ms": 80.0, "void": True, "void_reason": "lag P99 80.0 ms, limit 20.0 ms"})
    found = look(client=late)
    assert seen(found) == {"client"}
    assert found["client", None].size == 80.0


def test_quiet_runs_are_called_unstable_in_one_of_twenty_at_most() -> None:
    """Over all looks of a run together: of ten quiet runs two would speak in one case of twelve."""
    assert sum(bool(seen(look(seed=seed))) for seed in range(20, 30)) <= 1


def rising(closed: bool) -> dict[str, Any]:
    """Users grow from about 20 to 120 over a stage, and with them latency; prompts of 20 to 400 tokens."""
    rng = np.random.default_rng(4)
    rows = []
    for i, due in enumerate(np.sort(rng.uniform(0, SPAN_S, 1500))):
        users = round(20 * 6 ** (due / SPAN_S) * float(np.exp(0.4 * rng.standard_normal())))
        prompt = int(rng.integers(20, 400))
        ttft = 0.002 * users * (1 + prompt / 200) * float(np.exp(0.1 * rng.standard_normal()))
        rows.append(request(i, float(due), ttft, [0.02], concurrency=users, prompt_tokens=prompt))
    found = findings(frame(rows), [StageWindow("s", 0.0, SPAN_S, closed=closed)], NOBODY, (None, None), CLIENT)
    return {f"{f.kind} {f.metric}": f for f in found}


def test_more_users_are_the_traffics_doing_only_where_the_schedule_sets_them() -> None:
    assert rising(closed=False)["trend TTFT P50"].found
    assert not rising(closed=True)["trend TTFT P50"].found


def test_long_prompts_are_taken_out_of_the_signal() -> None:
    rng = np.random.default_rng(7)
    rows = [
        request(i, i * 0.5, 0.05 * (1 + p / 50), [0.02], prompt_tokens=int(p))
        for i, p in enumerate(rng.integers(20, 800, 600))
    ]
    signal = ttft_signal(frame(rows), "s", 0.0, 300.0, closed=False)
    raw = np.array([(r["first_token_s"] - r["due_s"]) * 1000 for r in rows])
    assert np.log(signal.v_ms).std() < 0.4 * np.log(raw).std()
