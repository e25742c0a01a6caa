"""A driver with a known schedule, and what is said of drivers that misbehave."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from engine.bench.engines.engine import EngineError
from engine.bench.engines.piped import PipedEngine
from engine.bench.engines.workloads import Job, Workload

DRIVER = Path(__file__).with_name("fake_driver.py")
WORKLOAD = Workload("W", [Job([1, 2, 3], 4), Job([1], 6)])


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> Iterator[PipedEngine]:
    fault = getattr(request, "param", "")
    made = PipedEngine("fake", "peer, driver", [sys.executable, str(DRIVER), fault])
    yield made
    made.stop()


def test_a_driver_is_believed_about_its_times(engine: PipedEngine) -> None:
    facts = engine.start(240)
    assert (facts.engine, facts.version, facts.weights, facts.arithmetic) == ("fake", "1", "none", None)
    for _ in range(2):
        run = engine.run(WORKLOAD, 240)
        assert run.token_s == [pytest.approx([0.001 * (k + 1) for k in range(n)]) for n in (4, 6)]
        assert run.tokens == [[7] * 4, [7] * 6]
        assert run.output_tokens == 10
        assert run.seconds == pytest.approx(0.006)
        assert run.peak_bytes is not None
        assert run.peak_bytes > 2**20
    assert engine.cpu_s() is not None


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ("dies", "no answer to W: ended with code 1; its last words: out of luck"),
        ("hangs", "no answer to W after 0.5 s; it was ended"),
        ("garbage", "W: printed 'loading shards: 100 %'; expected {"),
        ("refuses", "W: reports: too long for me"),
        ("short", "W: request 0: 3 tokens; expected exactly 4"),
        ("backwards", "W: request 0: its times do not grow from above 0 on"),
        ("late", "W: request 0: its last token came after 3600.000 s, the answer after"),
        ("fewer", "W: answered 1 requests of 2"),
    ],
    indirect=["engine"],
)
def test_what_a_driver_does_wrong_is_said(engine: PipedEngine, message: str) -> None:
    engine.start(240)
    engine.run(WORKLOAD, 240)
    with pytest.raises(EngineError) as raised:
        engine.run(WORKLOAD, 0.5 if "after 0.5" in message else 240)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ("dies early", "not ready: ended with code 1; its last words: cannot find my model"),
        ("never ready", r"not ready after 0\.5 s"),
    ],
    indirect=["engine"],
)
def test_a_driver_that_does_not_start(engine: PipedEngine, message: str) -> None:
    with pytest.raises(EngineError, match=message):
        engine.start(0.5 if "after" in message else 240)


def test_no_such_command() -> None:
    with pytest.raises(EngineError, match="`nowhere/to/be/found` cannot be run: No such file"):
        PipedEngine("x", "peer", ["nowhere/to/be/found"]).start(1)


@pytest.mark.parametrize("engine", ["hangs"], indirect=True)
def test_nothing_outlives_the_end(engine: PipedEngine) -> None:
    engine.start(240)
    (child,) = [p for p in psutil.Process().children() if str(DRIVER) in p.cmdline()]
    engine.run(WORKLOAD, 240)
    with pytest.raises(EngineError):
        engine.run(WORKLOAD, 0.2)
    engine.stop()
    engine.stop()
    assert not child.is_running()  # it would go on for an hour


def test_work_larger_than_a_pipe_does_not_hold_up_the_limit() -> None:
    """More than the 64 KiB that a pipe takes, to a driver that reads nothing."""
    silent = 'import time; print(\'{"ready": true, "engine": "x"}\', flush=True); time.sleep(3600)'
    engine = PipedEngine("deaf", "peer", [sys.executable, "-c", silent])
    try:
        engine.start(240)
        with pytest.raises(EngineError, match=r"no answer to big after 0\.5 s"):
            engine.run(Workload("big", [Job([123456] * 50_000, 1)]), 0.5)
    finally:
        engine.stop()
