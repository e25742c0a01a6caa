"""Locust's own master and workers, as processes, against the simulator."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from engine.ports import free_port
from loadtests.output import read_run
from loadtests.simulator.process import simulator
from loadtests.simulator.scenario import Scenario

LOCUST = [sys.executable, "-m", "locust", "-f", str(Path(__file__).with_name("patient_locustfile.py"))]


def profile(tmp_path: Path, duration_s: float) -> Path:
    stage = {
        "warmup_s": 0.2,
        "duration_s": duration_s,
        "prompt_tokens": {"kind": "fixed", "tokens": 30},
        "output_tokens": {"kind": "fixed", "tokens": 4},
    }
    arrivals = [{"kind": "closed", "concurrency": 5}, {"kind": "poisson", "rate_per_s": 40}]
    path = tmp_path / "profile.yaml"
    stages = [{**stage, "name": a["kind"], "arrivals": a} for a in arrivals]
    value = {"name": "t", "kind": "smoke", "drain_s": 60, "output": {"fixed_by": "ignore_eos"}, "stages": stages}
    path.write_text(yaml.safe_dump(value))
    return path


@contextmanager
def run(tmp_path: Path, url: str, duration_s: float) -> Iterator[tuple[subprocess.Popen[bytes], list[Any]]]:
    port = str(free_port())
    options = ["--headless", "--only-summary", "--master-bind-host", "127.0.0.1", "--master-bind-port", port]
    options += ["--expect-workers", "2", "--host", url, "--out", str(tmp_path / "out")]
    options += ["--profile", str(profile(tmp_path, duration_s)), "--exit-code-on-error", "0"]
    with (tmp_path / "master.log").open("wb") as log:
        started = [subprocess.Popen([*LOCUST, "--master", *options], stdin=subprocess.DEVNULL, stdout=log, stderr=log)]
    try:
        for _ in range(2):
            line = [*LOCUST, "--worker", "--master-host", "127.0.0.1", "--master-port", port]
            quiet = subprocess.DEVNULL
            started.append(subprocess.Popen(line, stdin=quiet, stdout=quiet, stderr=quiet))
        yield started[0], started[1:]
    finally:
        for p in started:
            p.kill()
            p.wait()


def test_two_workers_leave_one_run(tmp_path: Path) -> None:
    with simulator(Scenario(ttft_ms=20, itl_ms=5), tmp_path / "sim") as sim:
        with run(tmp_path, sim.url, 1.0) as (master, workers):
            assert master.wait(240) == 0, (tmp_path / "master.log").read_text()
            assert [w.wait(240) for w in workers] == [0, 0]
        served = {t.request_id for t in sim.truth()} - {"preflight"}
    records, info = read_run(tmp_path / "out")
    assert set(records["request_id"]) == served
    assert records["request_id"].is_unique().all()
    assert set(records["worker"]) == {0, 1}
    assert set(records["status"]) == {"ok"}
    assert [w.same_clock for w in info.workers] == [True, True]
    assert [s["name"] for s in info.stages] == ["closed", "poisson"]
    assert sum(s["requests"] for s in info.stages) == records.height
    log = (tmp_path / "master.log").read_text()
    assert "TTFT P99 (ms)" in log  # the live figures of both workers
    row = next(line for line in log.splitlines() if line.strip().startswith("poisson"))
    assert int(row.split()[1]) == info.stages[1]["requests"]


def test_a_worker_that_dies_voids_the_run(tmp_path: Path) -> None:
    with (
        simulator(Scenario(ttft_ms=50), tmp_path / "sim") as sim,
        run(tmp_path, sim.url, 600.0) as (master, workers),
    ):
        while len(sim.truth()) < 20:
            assert master.poll() is None
            time.sleep(0.1)
        os.kill(workers[1].pid, signal.SIGKILL)
        assert master.wait(240) == 0, (tmp_path / "master.log").read_text()
    records, info = read_run(tmp_path / "out")
    assert records.height > 0
    assert info.client.void
    (lost,) = [w for w in info.workers if w.lost]
    assert f"process {workers[1].pid}" in lost.name
    assert f"worker {lost.worker} ({lost.name}) was lost: it sent no heartbeat any more" in info.client.void_reason
