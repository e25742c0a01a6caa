from __future__ import annotations

import os
import time

import httpx
import pytest

from pipeline.load.metrics import (
    SAMPLE_SCHEMA,
    Sampler,
    look,
    parse_metrics,
    read_metrics,
    samples_frame,
    tree_rss_bytes,
)
from pipeline.load.server_metrics import gauge
from tests.loadtests.mock_server import mock_server

TEXT = """\
# HELP seatrial_num_requests_running Requests that are being computed.
# TYPE seatrial_num_requests_running gauge
seatrial_num_requests_running 3
# TYPE seatrial_requests counter
seatrial_requests_total{status="ok"} 12
seatrial_requests_total{status="error"} 1
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0"} 2
vllm:num_requests_waiting{engine="1"} 5
# TYPE odd gauge
odd NaN
"""


GROWING = """\
# TYPE vllm:request_success_total counter
vllm:request_success_total{engine="0",finished_reason="stop"} 12
vllm:request_success_total{engine="0",finished_reason="length"} 1
# TYPE vllm:request_queue_time_seconds histogram
vllm:request_queue_time_seconds_bucket{le="0.3"} 3
vllm:request_queue_time_seconds_bucket{le="+Inf"} 4
vllm:request_queue_time_seconds_count 4
vllm:request_queue_time_seconds_sum 1.5
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running 3
"""


def test_parse() -> None:
    found = parse_metrics(TEXT)
    assert found["seatrial_num_requests_running"] == 3
    assert found['seatrial_requests_total{status="ok"}'] == 12
    assert "odd" not in found


def test_columns_are_found_under_the_names_of_several_servers() -> None:
    found = parse_metrics(TEXT)
    assert gauge(found, "running") == 3
    assert gauge(found, "waiting") == 7
    assert gauge(found, "kv_blocks_used") is None


def test_a_server_without_metrics_is_none() -> None:
    with mock_server() as server, httpx.Client() as http:
        assert read_metrics(http, server.url) is not None
        assert read_metrics(http, server.url + "/elsewhere") is None
    with httpx.Client() as http:
        assert read_metrics(http, server.url) is None


def test_text_of_another_kind_is_an_error() -> None:
    with pytest.raises(ValueError):
        parse_metrics("<html>{ not metrics")


def test_a_look_tells_what_only_grows_and_whether_anybody_listens() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.host == "away":
            raise httpx.ConnectError("Connection refused", request=request)
        if request.url.host == "slow":
            raise httpx.ReadTimeout("timed out", request=request)
        return httpx.Response(404) if request.url.host == "bare" else httpx.Response(200, text=GROWING)

    with httpx.Client(transport=httpx.MockTransport(answer)) as http:
        seen = look(http, "http://here")
        assert seen.counters == {"vllm:request_success_total": 13, "vllm:request_queue_time_seconds_count": 4}
        assert seen.values == parse_metrics(GROWING)
        for host, refused in (("away", True), ("slow", False), ("bare", False)):
            found = look(http, f"http://{host}")
            assert (found.values, found.refused, found.counters) == (None, refused, {})


def test_samples_lie_on_the_clock_of_the_run_and_shares_stay_shares() -> None:
    row = dict.fromkeys(SAMPLE_SCHEMA) | {"at_unix_s": 1.5, "requests_running": 3.0, "kv_usage_share": 0.25}
    frame = samples_frame([row], "1970-01-01T00:00:01Z")
    assert frame.row(0, named=True) == dict.fromkeys(SAMPLE_SCHEMA) | {
        "t_s": 0.5, "requests_running": 3, "kv_usage_share": 0.25,
    }  # fmt: skip


def test_memory_of_a_process_tree() -> None:
    assert (tree_rss_bytes(os.getpid()) or 0) > 1 << 20
    assert tree_rss_bytes(2**22 + 1) is None


def test_the_sampler_takes_rows_while_it_runs() -> None:
    with mock_server() as server, Sampler(server.url, os.getpid()) as sampler:
        while not sampler.rows:
            time.sleep(0.01)
    assert not sampler.is_alive()
    assert sampler.rows[0]["requests_running"] is not None
    assert sampler.rows[0]["kv_blocks_used"] is None
    assert sampler.rows[0]["rss_bytes"] > 0
