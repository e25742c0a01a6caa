"""A server with a known schedule: what the client times and counts, and what it says it could not."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from engine.bench.engines.engine import EngineError
from engine.bench.engines.served import ServedEngine
from engine.bench.engines.workloads import Job, Workload
from tests.engine.bench.engines.fake_server import STEP_S

SERVER = Path(__file__).with_name("fake_server.py")
WORKLOAD = Workload("W", [Job([1, 2, 3], 6), Job([1], 4)])


def served(*habits: str) -> ServedEngine:
    return ServedEngine("fake", "server", [sys.executable, str(SERVER), "{port}", *habits])


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> Iterator[ServedEngine]:
    made = served(*getattr(request, "param", "").split())
    facts = made.start(240)
    assert (facts.engine, facts.weights) == ("nobody", "fake-model")
    yield made
    made.stop()


def test_a_stream_is_timed(engine: ServedEngine) -> None:
    run = engine.run(WORKLOAD, 240)
    assert [len(t) for t in run.token_s] == [6, 4]
    assert run.output_tokens == 10
    assert run.tokens is None
    assert run.notes == []
    for times in run.token_s:
        assert times[0] >= STEP_S
        assert all(a <= b for a, b in pairwise(times))
        assert times[-1] >= len(times) * STEP_S  # a lower bound that the server's own pauses guarantee
    assert run.peak_bytes is not None


@pytest.mark.parametrize("engine", ["strict ids"], indirect=True)
def test_what_a_strict_server_refuses_is_taken_back(engine: ServedEngine) -> None:
    run = engine.run(WORKLOAD, 240)
    assert run.tokens == [[7] * 6, [7] * 4]
    assert run.notes == []


@pytest.mark.parametrize(
    ("engine", "note"),
    [
        ("silent", "sends no usage: tokens are counted by events"),
        ("caches", "W: 10 prompt tokens came from its cache: TTFT is not comparable"),
        ("pairs", "W: 5 events for 10 tokens; gaps are between events"),
        ("stops", "W: 8 tokens came of 10: it ended requests early"),
    ],
    indirect=["engine"],
)
def test_what_could_not_be_measured_is_said(engine: ServedEngine, note: str) -> None:
    assert note in engine.run(WORKLOAD, 240).notes


@pytest.mark.parametrize("engine", ["breaks"], indirect=True)
def test_a_connection_that_breaks(engine: ServedEngine) -> None:
    with pytest.raises(EngineError, match="W, request 0: the connection ended"):
        engine.run(WORKLOAD, 240)


def test_a_run_that_takes_too_long() -> None:
    engine = served()
    try:
        engine.start(240)
        engine.run(WORKLOAD, 240)
        with pytest.raises(EngineError, match=r"no answer to long after 0\.3 s"):
            engine.run(Workload("long", [Job([1], 1000)]), 0.3)
    finally:
        engine.stop()


def test_a_server_that_runs_already_and_one_that_does_not(engine: ServedEngine) -> None:
    by_url = ServedEngine("url", "server", engine.url + "/v1")
    assert by_url.start(240).weights == "fake-model"
    run = by_url.run(WORKLOAD, 240)
    assert (run.output_tokens, run.peak_bytes) == (10, None)
    assert by_url.cpu_s() is None
    by_url.stop()
    engine.stop()
    with pytest.raises(EngineError, match=r"http://127\.0\.0\.1:\d+ does not answer"):
        ServedEngine("gone", "server", engine.url).start(240)


def test_a_server_that_cannot_start() -> None:
    engine = served("refuses")
    try:
        with pytest.raises(EngineError, match="not ready: ended with code 1; its last words: no such model: fake"):
            engine.start(240)
    finally:
        engine.stop()
