from __future__ import annotations

import os
import time

import httpx
import pytest

from pipeline.load.metrics import Sampler, gauge, parse_metrics, read_metrics, tree_rss_bytes
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


def test_parse() -> None:
    found = parse_metrics(TEXT)
    assert found["seatrial_num_requests_running"] == 3
    assert found['seatrial_requests_total{status="ok"}'] == 12
    assert "odd" not in found


def test_columns_are_found_under_the_names_of_several_servers() -> None:
    found = parse_metrics(TEXT)
    assert gauge(found, "requests_running") == 3
    assert gauge(found, "requests_waiting") == 7
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
