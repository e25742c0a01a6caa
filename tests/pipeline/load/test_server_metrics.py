"""What vLLM, SGLang and others export becomes the same figures of a stage; what they do not tell is named."""

from __future__ import annotations

import pytest

from pipeline.load.metrics import Scrape, parse_metrics
from pipeline.load.server_metrics import FAMILIES, FIGURES, family_of, gauge, of_span, read


def _vllm(at_s: float, running: int, waiting: int, kv: float, queued: tuple[float, int], preempted: int) -> Scrape:
    text = f"""\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="m"}} {running}
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{{engine="0",model_name="m"}} {waiting}
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{{engine="0",model_name="m"}} {kv}
vllm:kv_cache_usage_perc{{engine="1",model_name="m"}} 0.2
# TYPE vllm:num_preemptions_total counter
vllm:num_preemptions_total{{engine="0",model_name="m"}} {preempted}
# TYPE vllm:prefix_cache_queries_total counter
vllm:prefix_cache_queries_total{{engine="0",model_name="m"}} {100 * queued[1]}
# TYPE vllm:prefix_cache_hits_total counter
vllm:prefix_cache_hits_total{{engine="0",model_name="m"}} {25 * queued[1]}
# TYPE vllm:request_queue_time_seconds histogram
vllm:request_queue_time_seconds_bucket{{engine="0",le="+Inf",model_name="m"}} {queued[1]}
vllm:request_queue_time_seconds_count{{engine="0",model_name="m"}} {queued[1]}
vllm:request_queue_time_seconds_sum{{engine="0",model_name="m"}} {queued[0]}
"""
    return Scrape(at_s, parse_metrics(text))


LOOKS = [
    _vllm(0, 0, 0, 0.0, (5.0, 10), 3),  # of before the stage
    _vllm(10, 4, 0, 0.5, (5.0, 10), 3),
    _vllm(11, 8, 6, 0.97, (6.0, 12), 4),
    _vllm(12, 8, 2, 0.9, (9.0, 20), 5),
    _vllm(20, 0, 0, 0.1, (11.0, 30), 5),  # the first after it
]


def test_a_stage_is_what_was_seen_of_it_and_what_grew_over_it() -> None:
    found = of_span(LOOKS, 10, 12.5, "vllm")
    assert (found["samples"], found["family"]) == (3, "vllm")
    assert found["waiting_share"] == pytest.approx(2 / 3)
    assert (found["running_mean"], found["running_peak"]) == (pytest.approx(20 / 3), 8)
    assert found["kv_usage_share_peak"] == 0.97  # of the fullest replica, never a sum
    assert found["preemptions"] == 2
    assert found["queue_s"] == pytest.approx((11.0 - 5.0) / (30 - 10))
    assert found["prefix_hit_share"] == 0.25
    assert found["prefill_s"] is None
    assert found["missing"]["prefill_s"].endswith("no vllm:request_prefill_time_seconds")
    assert "queue_s" not in found["missing"]


def test_a_stage_between_two_looks_still_has_its_counters() -> None:
    found = of_span(LOOKS, 13, 14, "vllm")
    assert found["samples"] == 0
    assert found["running_mean"] is found["waiting_share"] is None
    assert found["queue_s"] == pytest.approx(2.0 / 10)


def test_a_counter_that_went_down_has_no_difference() -> None:
    again = _vllm(20, 0, 0, 0.1, (0.5, 1), 0)
    found = of_span([*LOOKS[:4], again], 10, 12.5, "vllm")
    assert found["queue_s"] is found["preemptions"] is None
    assert "queue_s" not in found["missing"]  # it is exported: what is missing is a difference


def test_ranks_of_a_replica_are_one_and_a_total_stands_for_its_parts() -> None:
    values = {
        'sglang:num_queue_reqs{dp_rank="0",priority="",tp_rank="0"}': 7.0,
        'sglang:num_queue_reqs{dp_rank="0",priority="",tp_rank="1"}': 7.0,
        'sglang:num_queue_reqs{dp_rank="0",priority="1",tp_rank="0"}': 4.0,
        'sglang:num_queue_reqs{dp_rank="1",priority="",tp_rank="0"}': 2.0,
        'sglang:cached_tokens_total{cache_source="device"}': 10.0,
        'sglang:cached_tokens_total{cache_source="host"}': 5.0,
        "sglang:num_queue_reqs_of_another": 99.0,
    }
    assert read(values, "sglang:num_queue_reqs") == 9
    assert gauge(values, "waiting") == 9
    assert read(values, "sglang:cached_tokens_total", "counter") == 15
    assert read(values, "sglang:num_running_reqs") is None


def test_a_cache_without_a_hit_yet_is_cold_and_not_unknown() -> None:
    looks = [Scrape(t, {"sglang:prompt_tokens_total": 100.0 * t}) for t in (0.0, 10.0, 20.0)]
    assert of_span(looks, 0, 20, "sglang")["prefix_hit_share"] == 0


@pytest.mark.parametrize(
    ("name", "family"),
    [("vllm:num_requests_running", "vllm"), ("seatrial_kv_blocks_used", "seatrial"), ("llamacpp:x", "llama.cpp"),
     ('sglang:token_usage{tp_rank="0"}', "sglang"), ("http_requests_total", None)],
)  # fmt: skip
def test_the_engine_is_known_by_its_names(name: str, family: str | None) -> None:
    assert family_of({name: 1.0}) == family


def test_the_table_has_no_figure_that_is_not_defined() -> None:
    assert {key for names in FAMILIES.values() for key in names} <= FIGURES.keys()
