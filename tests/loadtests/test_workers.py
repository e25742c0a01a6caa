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

import polars as pl
import yaml

from engine.ports import free_port
from loadtests.output import read_run
from loadtests.records import RunInfo
from loadtests.schedule import due_times
from loadtests.simulator.process import simulator
from loadtests.simulator.scenario import Scenario
from loadtests.simulator.truth import Truth
from loadtests.workload import load_profile

LOCUST = [sys.executable, "-m", "locust", "-f"]
PATIENT, SKEWED = (str(Path(__file__).with_name(f"{name}_locustfile.py")) for name in ("patient", "skewed"))


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
def run(
    tmp_path: Path, url: str, duration_s: float, skews_s: tuple[float | None, float | None] = (None, None)
) -> Iterator[tuple[subprocess.Popen[bytes], list[Any]]]:
    """A master and two workers; ``skews_s``: how far the workers' clocks are ahead, None: the machine's own."""
    port = str(free_port())
    options = ["--headless", "--only-summary", "--master-bind-host", "127.0.0.1", "--master-bind-port", port]
    options += ["--expect-workers", "2", "--host", url, "--out", str(tmp_path / "out")]
    options += ["--profile", str(profile(tmp_path, duration_s)), "--exit-code-on-error", "0"]
    with (tmp_path / "master.log").open("wb") as log:
        started = [
            subprocess.Popen([*LOCUST, PATIENT, "--master", *options], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        ]
    try:
        for skew_s in skews_s:
            file = PATIENT if skew_s is None else SKEWED
            line = [*LOCUST, file, "--worker", "--master-host", "127.0.0.1", "--master-port", port]
            env, quiet = os.environ | {"SKEW_S": str(skew_s)}, subprocess.DEVNULL
            started.append(subprocess.Popen(line, stdin=quiet, stdout=quiet, stderr=quiet, env=env))
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


def holds(records: pl.DataFrame, info: RunInfo, truth: list[Truth], profile_file: Path) -> None:
    """On the master's clock, which is the simulator's too, every row agrees with the truth within the stated error.

    Nothing was sent after it came and no token came before it was sent; open-loop requests were due when they would
    have been due to one client.
    """
    assert info.clock_zero_s is not None
    errors = {w.worker: w.clock_error_s + 1e-9 for w in info.workers}
    served = {t.request_id: t for t in truth}
    assert records.height == records["request_id"].n_unique()
    for row in records.iter_rows(named=True):
        told, error_s = served[row["request_id"]], errors[row["worker"]]
        assert row["status"] == "ok"
        assert info.clock_zero_s + row["sent_s"] <= told.received_s + error_s
        for mine_s, theirs_s in zip(row["token_times_s"], told.token_times_s, strict=True):
            assert info.clock_zero_s + mine_s >= theirs_s - error_s
    for spec, stage in zip(load_profile(str(profile_file)).stages, info.stages, strict=True):
        mine = records.filter(stage=spec.name)
        assert mine.height == stage["requests"]
        if spec.name == "poisson":
            due = dict(due_times(spec, mine["seed"][0]))
            assert set(mine["arrival"]) == set(due)
            for arrival, due_s, worker in mine.select("arrival", "due_s", "worker").iter_rows():
                assert abs(due_s - stage["start_s"] - due[arrival]) <= errors[worker]


def test_workers_whose_clocks_differ_leave_the_run_of_one_client(tmp_path: Path) -> None:
    skews_s = (3.7, -120.0)
    with simulator(Scenario(ttft_ms=20, itl_ms=5), tmp_path / "sim") as sim:
        with run(tmp_path, sim.url, 1.0, skews_s) as (master, _):
            assert master.wait(240) == 0, (tmp_path / "master.log").read_text()
        truth = [t for t in sim.truth() if t.request_id != "preflight"]
    records, info = read_run(tmp_path / "out")
    assert {t.request_id for t in truth} == set(records["request_id"])
    holds(records, info, truth, tmp_path / "profile.yaml")
    assert [w.same_clock for w in info.workers] == [False, False]
    of = {w.worker: min(skews_s, key=lambda skew_s: abs(w.clock_offset_s - skew_s)) for w in info.workers}
    assert set(of.values()) == set(skews_s)  # which of the two came first is not said
    for w in info.workers:
        assert abs(w.clock_offset_s - of[w.worker]) <= w.clock_error_s
        late = w.client.lag_limit_ms if w.client and w.client.lag_limit_ms else 5.0
        assert (f"worker {w.worker} ({w.name}): its clock is known to" in (info.client.void_reason or "")) == (
            w.clock_error_s * 1000 > late
        )


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
