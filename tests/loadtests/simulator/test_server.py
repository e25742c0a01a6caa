"""The server as a process, asked by a client that is not ours (httpx); planned times come from the scenario alone."""

from __future__ import annotations

import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from loadtests.simulator.process import Simulated, simulator
from loadtests.simulator.scenario import Scenario
from loadtests.simulator.truth import Truth

# One for all: each new one reads the certificates of the machine first. It keeps no connection to an ended server.
HTTP = httpx.Client(limits=httpx.Limits(max_keepalive_connections=0))


def body(tokens: int = 5, prompt: str = "one two") -> dict[str, Any]:
    options = {"include_usage": True}
    messages = [{"role": "user", "content": prompt}]
    return {"messages": messages, "max_tokens": tokens, "stream": True, "stream_options": options}


def chat(sim: Simulated, tokens: int = 5, prompt: str = "one two") -> httpx.Response:
    headers = {"X-Request-Id": f"mine-{prompt}"}
    return HTTP.post(f"{sim.url}/v1/chat/completions", json=body(tokens, prompt), headers=headers, timeout=240)


def ended(sim: Simulated, count: int) -> list[Truth]:
    """The truths once ``count`` requests have ended: the line of a request is written after its last byte."""
    while len(found := sim.truth()) < count:
        time.sleep(0.01)
    return found


def test_truth_says_what_was_planned_and_what_was_sent(tmp_path: Path) -> None:
    with simulator(Scenario(ttft_ms=20, gaps_ms=(10, 30)), tmp_path) as sim:
        assert chat(sim).text.endswith("data: [DONE]\n\n")
        (t,) = ended(sim, 1)
    assert (t.number, t.request_id, t.end, t.output_tokens, t.prompt_tokens) == (0, "mine-one two", "done", 5, 2)
    planned = [p for p, _, _ in t.sent]
    assert t.started_s is not None
    assert [round((b - a) * 1000, 6) for a, b in zip([t.started_s, *planned], planned, strict=False)] == [
        20, 10, 30, 10, 30,
    ]  # fmt: skip
    assert all(sent >= plan for plan, sent, _ in t.sent)  # asyncio never wakes early by more than its clock resolves
    assert t.received_s <= t.started_s <= (t.head_s or 0)
    assert t.ended_s is not None
    assert t.ended_s >= t.sent[-1][1]


def test_slots_queue_and_refusal(tmp_path: Path) -> None:
    scenario = Scenario(ttft_ms=3000, slots=1, queue=1)  # all three are there before the first is answered
    with simulator(scenario, tmp_path) as sim, ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(lambda i: chat(sim, 2, f"p{i}"), range(3)))
        truths = ended(sim, 3)
    assert sorted(a.status_code for a in answers) == [200, 200, 429]
    refused = next(a for a in answers if a.status_code == 429)
    assert refused.headers["Retry-After"] == "1"
    first, second = sorted((t for t in truths if t.status == 200), key=lambda t: t.started_s or 0)
    assert (second.started_s or 0) >= (first.ended_s or 1e9)


def test_what_it_says_of_itself(tmp_path: Path) -> None:
    scenario = Scenario.model_validate(
        {"ttft_ms": 0, "itl_ms": 0, "cached": "repeats", "faults": [{"kind": "leak", "blocks": 3, "memory_bytes": 10}]}
    )
    with simulator(scenario, tmp_path) as sim:
        for _ in range(3):
            chat(sim)
        metrics = HTTP.get(f"{sim.url}/metrics").text
        assert HTTP.get(f"{sim.url}/v1/models").json()["data"][0]["id"] == "sim"
        assert HTTP.get(f"{sim.url}/nothing").status_code == 404
        assert HTTP.post(f"{sim.url}/v1/chat/completions", json={"messages": []}).status_code == 400
        truths = ended(sim, 4)
    assert "seatrial_kv_blocks_used 6\n" in metrics  # the first request is spared by default
    assert "seatrial_generation_tokens_total 15\n" in metrics
    assert [t.cached_tokens for t in truths] == [0, 1, 1, None]


@pytest.mark.parametrize("how", ["reset", "close"])
def test_broken_streams(tmp_path: Path, how: str) -> None:
    fault = {"kind": "break", "how": how, "after_tokens": 2, "when": {"first": 0}}
    with simulator(Scenario.model_validate({"faults": [fault]}), tmp_path) as sim:
        with pytest.raises(httpx.TransportError):
            chat(sim)
        (t,) = ended(sim, 1)
    assert (t.end, len(t.token_times_s)) == (how, 2)


def test_refusals_and_slow_heads(tmp_path: Path) -> None:
    faults = [
        {"kind": "refusal", "status": 503, "retry_after": "2", "when": {"first": 1, "every": 2}},
        {"kind": "slow_head", "delay_ms": 80, "when": {"first": 2}},
    ]
    with simulator(Scenario.model_validate({"ttft_ms": 10, "faults": faults}), tmp_path) as sim:
        codes = [chat(sim).status_code for _ in range(3)]
        truths = ended(sim, 3)
    assert codes == [200, 503, 200]
    slow = truths[2]
    assert (slow.head_s or 0) - (slow.started_s or 0) >= 0.08
    assert slow.sent[0][0] >= (slow.started_s or 0) + 0.08 - 1e-9  # no token before the head


def test_a_client_that_leaves_is_noticed(tmp_path: Path) -> None:
    with simulator(Scenario(itl_ms=20), tmp_path) as sim:
        with HTTP.stream("POST", f"{sim.url}/v1/chat/completions", json=body(500)) as answer:
            next(answer.iter_raw())
        found = ended(sim, 1)
    assert (found[0].end, found[0].output_tokens) == ("client_gone", 500)
    assert len(found[0].sent) < 500
    assert json.loads((tmp_path / "scenario.json").read_text())["itl_ms"] == 20


def test_a_restart_resets_what_is_open_and_begins_the_books_anew(tmp_path: Path) -> None:
    scenario = Scenario.model_validate(
        {"ttft_ms": 0, "itl_ms": 0, "exports": "vllm", "faults": [{"kind": "restart", "at_request": 2}]}
    )
    with simulator(scenario, tmp_path) as sim:
        told = []
        for _ in range(2):
            chat(sim)
        told.append(HTTP.get(f"{sim.url}/metrics").text)
        with pytest.raises(httpx.TransportError):
            chat(sim)
        told.append(HTTP.get(f"{sim.url}/metrics").text)
        chat(sim)
        truths = ended(sim, 4)
    assert [t.end for t in truths] == ["done", "done", "reset", "done"]
    before, after = ({m.group(1): float(m.group(2)) for m in re.finditer(r"^(\S+) (\S+)$", t, re.M)} for t in told)
    assert after["process_start_time_seconds"] > before["process_start_time_seconds"]
    tokens = 'vllm:generation_tokens_total{engine="0",model_name="sim"}'
    assert (before[tokens], after[tokens]) == (10, 0)


def test_streams_that_are_open_at_a_restart_break(tmp_path: Path) -> None:
    scenario = Scenario.model_validate({"itl_ms": 20, "faults": [{"kind": "restart", "at_request": 1}]})
    with simulator(scenario, tmp_path) as sim:
        with HTTP.stream("POST", f"{sim.url}/v1/chat/completions", json=body(5000)) as answer:
            parts = answer.iter_raw()
            next(parts)
            with pytest.raises(httpx.TransportError):
                chat(sim)
            with pytest.raises(httpx.TransportError):
                list(parts)
        truths = ended(sim, 2)
    assert [(t.number, t.end) for t in truths] == [(0, "reset"), (1, "reset")]


@pytest.mark.parametrize(
    ("exports", "name"),
    [
        ("seatrial", "seatrial_request_queue_time_seconds_count 3"),
        ("vllm", 'vllm:request_queue_time_seconds_count{engine="0",model_name="sim"} 3'),
        ("sglang", 'sglang:queue_time_seconds_count{model_name="sim",pp_rank="0",tp_rank="0"} 3'),
    ],
)
def test_the_same_books_under_several_names(exports: str, name: str, tmp_path: Path) -> None:
    scenario = Scenario.model_validate({"ttft_ms": 0, "itl_ms": 0, "exports": exports})
    with simulator(scenario, tmp_path) as sim:
        for _ in range(3):
            chat(sim)
        found = HTTP.get(f"{sim.url}/metrics").text
    assert f"\n{name}\n" in found
    # Read by Prometheus's own parser.
    families = {f.name: f for f in text_string_to_metric_families(found)}
    prefix = {"seatrial": "seatrial_"}.get(exports, f"{exports}:")
    tokens = families[f"{prefix}generation_tokens"]
    assert (tokens.type, tokens.samples[0].value) == ("counter", 15)
    assert families[f"{prefix}time_to_first_token_seconds"].type == "histogram"


def test_a_server_may_have_no_metrics(tmp_path: Path) -> None:
    with simulator(Scenario(exports="none"), tmp_path) as sim:
        assert HTTP.get(f"{sim.url}/metrics").status_code == 404
