"""Of a server without logs: its metrics name a cause with its figure, or what they lack is named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pipeline.diagnosis.inputs import Run
from pipeline.diagnosis.told import throughput_causes
from pipeline.diagnosis.walk import named, text, walk
from pipeline.load.samples import stage_latencies
from pipeline.load.server_metrics import FIGURES
from tests.pipeline.diagnosis.simulated import Engine, run


def _told(**figures: Any) -> dict[str, Any]:
    """Figures of one stage, all of them unless told otherwise; a key that is None is not exported."""
    stage: dict[str, Any] = {
        "samples": 20, "family": "vllm", "running_mean": 6.0, "running_peak": 8.0, "waiting_mean": 0.0,
        "waiting_peak": 0.0, "waiting_share": 0.0, "kv_usage_share_mean": 0.3, "kv_usage_share_peak": 0.5,
        "preemptions": 0.0, "queue_s": 0.001, "prefill_s": 0.02, "decode_s": 0.1, "ttft_s": 0.021, "itl_s": 0.004,
        "prefix_hit_share": 0.0,
    }  # fmt: skip
    stage |= figures
    absent = [k for k in FIGURES if stage.get(k, 0) is None or stage.get(f"{k}_peak", 0) is None]
    return stage | {"missing": {k: f"{FIGURES[k].words}: no vllm:{k}" for k in absent}}


def _foreign(engine: Engine, name: str = "mine", burst: int = 4, reason: str | None = None, **figures: Any) -> Run:
    """A simulated engine's run as a foreign server leaves it."""
    whole = run(engine, name, burst=burst)
    stages = {} if reason else {"s": _told(**figures)}
    block = {"family": "vllm", "reason": reason, "stages": stages, "restarts": []}
    return replace(whole, steps=None, requests=None, server=None, load={**(whole.load or {}), "server_metrics": block})


def _mean_s(r: Run, metric: str) -> float:
    assert r.records is not None
    values: list[float] = getattr(stage_latencies(r.records, "s"), metric)
    return sum(values) / len(values) / 1000


CLEAN, QUEUED = Engine(), Engine(slots=2, admits=2)


def test_the_parts_are_the_servers_and_the_rest_is_outside() -> None:
    ttft, itl = walk(_foreign(Engine(http_s=0.4), queue_s=0.01, prefill_s=0.03, itl_s=1.0), None)[:2]
    assert (ttft.state, ttft.causes[0].code) == ("measured", "outside_engine")
    assert "means of the server's own metrics (vllm)" in ttft.figure
    assert itl.causes[0].code == "decode_steps"
    mean = 1000 * _mean_s(_foreign(Engine(http_s=0.4)), "ttft_ms")
    assert ttft.causes[0].figure == f"{mean - 40:.1f} of {mean:.1f} ms of a mean time to first token"


@pytest.mark.parametrize(
    ("figures", "cause", "words"),
    [
        ({}, "queue", " of "),
        ({"kv_usage_share_peak": 0.99}, "kv_limit", "the KV pool was 99% full at most"),
        ({"preemptions": 12.0}, "kv_limit", "12 preemptions"),
    ],
)
def test_waiting_for_memory_is_told_from_waiting_for_a_place(figures: dict[str, Any], cause: str, words: str) -> None:
    queued = _mean_s(_foreign(QUEUED), "ttft_ms") - 0.02
    first = walk(_foreign(QUEUED, queue_s=queued, waiting_share=0.7, **figures), None)[0].causes[0]
    assert first.code == cause
    assert words in first.figure


def test_against_another_run_what_grew_is_named_in_the_fixed_order() -> None:
    then = _foreign(CLEAN, "clean")
    queued = _mean_s(_foreign(QUEUED), "ttft_ms") - 0.02
    findings = walk(_foreign(QUEUED, queue_s=queued), then)
    assert [f.symptom for f in findings][1:3] == ["P99 time to first token", "inter-token latency"]
    assert [c.code for c in named(findings)][:1] == ["queue"], text(findings)
    assert findings[1].causes[0].figure.startswith("1.0 -> ")
    same = walk(_foreign(CLEAN, "again"), then)
    assert [f.state for f in same[1:4]] == ["as before"] * 3
    assert named(same) == []


def test_a_cold_cache_is_prefill_that_a_warm_one_would_not_need() -> None:
    warm = _foreign(CLEAN, "warm", prefix_hit_share=0.8, prefill_s=0.02)
    slow = Engine(token_s=0.002)
    cold = _foreign(slow, "cold", prefix_hit_share=0.0, prefill_s=_mean_s(_foreign(slow), "ttft_ms"))
    first = walk(cold, warm)[1].causes[0]
    assert (first.code, first.figure) == ("cold_cache", "hits 80% -> 0% of prompt tokens")


def test_prefill_that_is_not_told_is_what_the_server_took_beyond_its_queue() -> None:
    slow = _foreign(CLEAN, prefill_s=None, queue_s=0.001, ttft_s=1.0)
    assert walk(slow, None)[0].causes[0].code == "prefill_phase"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"reason": "the server exports no /metrics"}, "and the server exports no /metrics"),
        (
            {"queue_s": None, "prefill_s": None, "ttft_s": None},
            "and its metrics do not tell time in the queue: no vllm:queue_s; time from the first step to the first "
            "token: no vllm:prefill_s; time to first token, in the server: no vllm:ttft_s",
        ),
    ],
)
def test_what_cannot_be_explained_names_what_is_missing(given: dict[str, Any], words: str) -> None:
    slow = _foreign(QUEUED, **given)
    finding = walk(slow, _foreign(CLEAN, "clean"))[1]
    assert (finding.state, finding.causes) == ("worse", ())
    assert words in finding.figure
    assert "not explained" in text([finding])


@pytest.mark.parametrize(
    ("figures", "cause"),
    [
        ({"waiting_share": 0.02}, "offered_load"),
        ({"waiting_share": 0.5}, "batch_full"),
        ({"waiting_share": 0.5, "kv_usage_share_peak": 0.96}, "kv_limit"),
    ],
)
def test_what_bounds_the_throughput(figures: dict[str, Any], cause: str) -> None:
    (found,), said = throughput_causes(_foreign(CLEAN, **figures))
    assert found.code == cause
    assert said in found.figure


def test_a_full_batch_is_not_claimed_where_the_pool_is_not_told() -> None:
    causes, said = throughput_causes(_foreign(CLEAN, waiting_share=0.5, kv_usage_share_peak=None))
    assert causes == ()
    assert "a full batch cannot be told from a full pool" in said
    causes, said = throughput_causes(_foreign(CLEAN, waiting_share=None))
    assert causes == ()
    assert "do not tell waiting" in said


def test_a_restart_comes_before_what_failed_for_it() -> None:
    broken = _foreign(Engine(fails=True))
    assert broken.load is not None
    broken.load["server_metrics"]["restarts"] = [{"words": "the server began anew in the middle of s"}]
    finding = walk(broken, None)[2]
    assert [c.code for c in finding.causes[:2]] == ["restarted", "failing"]
    assert finding.causes[0].figure == "the server began anew in the middle of s"


def test_a_run_with_logs_is_held_against_one_without_by_their_metrics() -> None:
    logged = run(QUEUED, "logged", burst=4)
    assert logged.load is not None
    queued = _mean_s(logged, "ttft_ms") - 0.02
    logged.load["server_metrics"] = {"stages": {"s": _told(queue_s=queued, family="seatrial")}}
    first = walk(logged, _foreign(CLEAN, "clean"))[1]
    assert first.causes[0].code == "queue"
    assert first.causes[0].figure.endswith("of the mean")
