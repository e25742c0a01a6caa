"""The locustfile as a process: headless as the pipeline runs it, in the web UI as a person does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import loadtests
from engine.ports import free_port
from loadtests.output import read_run
from tests.loadtests.mock_server import Reply, mock_server

LOCUSTFILE = Path(loadtests.__file__).with_name("locustfile.py")


@pytest.fixture
def short(tmp_path: Path) -> Path:
    stage = {
        "warmup_s": 0.2,
        "duration_s": 0.8,
        "prompt_tokens": {"kind": "fixed", "tokens": 12},
        "output_tokens": {"kind": "fixed", "tokens": 3},
    }
    arrivals = [{"kind": "closed", "concurrency": 2}, {"kind": "poisson", "rate_per_s": 30}]
    path = tmp_path / "short.yaml"
    path.write_text(
        yaml.safe_dump(
            {
                "name": "short",
                "kind": "smoke",
                "drain_s": 60,
                "output": {"fixed_by": "ignore_eos"},
                "stages": [{**stage, "name": a["kind"], "arrivals": a} for a in arrivals],
            }
        )
    )
    return path


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), *map(str, arguments)]


def headless(*arguments: object) -> subprocess.CompletedProcess[str]:
    line = command("--headless", "--only-summary", *arguments)
    return subprocess.run(line, capture_output=True, text=True, timeout=240, stdin=subprocess.DEVNULL)


def test_headless_leaves_records_and_live_rows(short: Path, tmp_path: Path) -> None:
    with mock_server(Reply(first_s=0.005, gap_s=0.002)) as server:
        done = headless("--host", server.url, "--profile", short, "--out", tmp_path / "out", "--seed", 5)
        served = len(server.seen) - 1  # the first was the preflight
    assert done.returncode == 0, done.stderr
    records, info = read_run(tmp_path / "out")
    assert records.height == served
    assert set(records["stage"]) == {"closed", "poisson"}
    assert set(records["status"]) == {"ok"}
    assert set(records["seed"]) == {5}
    assert (info.profile, info.model) == ("short", "mock")
    assert info.client.cpu_share is not None
    said = done.stdout + done.stderr
    assert "chat     closed" in said
    assert "TTFT P99 (ms)" in said
    for stage in ("closed", "poisson"):  # our table: requests and tokens by stage
        row = next(line.split() for line in said.splitlines() if line.strip().startswith(stage))
        mine = records.filter(records["stage"] == stage)
        assert [int(row[1]), int(row[3])] == [mine.height, mine["output_tokens"].sum()]


@pytest.mark.parametrize(
    ("reply", "profile", "message"),
    [
        (Reply(usage="none"), None, "without usage"),
        (Reply(), "nope", "no load profile 'nope'"),
    ],
)
def test_a_run_worth_nothing_says_why(
    short: Path, tmp_path: Path, reply: Reply, profile: str | None, message: str
) -> None:
    with mock_server(reply) as server:
        done = headless("--host", server.url, "--profile", profile or short, "--out", tmp_path / "out")
    assert done.returncode == 2
    assert message in done.stdout + done.stderr
    assert not (tmp_path / "out").exists()


def test_turns_need_somebody_who_gives_them(short: Path) -> None:
    with mock_server() as server:
        done = headless("--host", server.url, "--profile", short, "--turn-s", 1)
    assert done.returncode == 2
    assert "--turn-s is 1, --turns-fd -1; expected both or neither" in done.stdout + done.stderr


def test_ctrl_c_leaves_what_was_measured(short: Path, tmp_path: Path) -> None:
    value = yaml.safe_load(short.read_text())
    value["stages"][0]["duration_s"] = 60
    short.write_text(yaml.safe_dump(value))
    with mock_server(Reply(first_s=0.05)) as server:
        line = command("--headless", "--host", server.url, "--profile", short, "--out", tmp_path / "out")
        child = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            while len(server.seen) < 10:
                assert child.poll() is None
                time.sleep(0.05)
            child.send_signal(signal.SIGINT)
            child.wait(240)
        finally:
            child.kill()
            child.wait()
    records, _ = read_run(tmp_path / "out")
    assert records.height >= 7
    assert set(records["status"]) <= {"ok", "censored"}


def test_it_ends_when_the_parent_that_it_was_told_of_is_gone(short: Path) -> None:
    with mock_server() as server:
        line = command("--headless", "--host", server.url, "--profile", short, "--end-with-pid", os.getpid() + 1)
        child = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, timeout=240)
    assert child.returncode == 2
    assert len(server.seen) < 5


@pytest.fixture
def web(short: Path) -> Iterator[tuple[str, Any]]:
    port = free_port()
    with mock_server(Reply(gap_s=0.001)) as server:
        line = command("--web-host", "127.0.0.1", "--web-port", port, "--host", server.url, "--profile", short)
        child = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            yield f"http://127.0.0.1:{port}", server
        finally:
            child.kill()
            child.wait()


def ask(url: str, form: dict[str, Any] | None = None) -> str:
    data = urllib.parse.urlencode(form).encode() if form else None
    deadline = time.monotonic() + 240
    while True:
        try:
            with urllib.request.urlopen(url, data, timeout=60) as answer:
                return str(answer.read().decode())
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def test_the_web_ui_runs_a_profile_and_shows_ttft_and_itl(web: tuple[str, Any], short: Path) -> None:
    url, server = web
    assert "model" in ask(url + "/")
    form = {"host": server.url, "profile": str(short), "seed": 9}
    assert json.loads(ask(url + "/swarm", form))["success"]
    deadline = time.monotonic() + 240
    while (stats := json.loads(ask(url + "/stats/requests")))["state"] != "stopped":
        assert time.monotonic() < deadline, stats
        time.sleep(0.2)
    rows = {(r["method"], r["name"]) for r in stats["stats"] if r["num_requests"]}
    assert {("chat", "closed"), ("chat", "poisson")} <= rows
    (tokens,) = stats["extended_stats"]
    assert tokens["key"] == "tokens"
    for row in tokens["data"]:  # TTFT and ITL are columns, not requests of their own
        assert row["name"] in ("closed", "poisson")
        assert 0 < row["ttft_p50"] <= row["ttft_p95"] <= row["ttft_p99"]
        assert 0 < row["itl_p50"] <= row["itl_max"]
    page = ask(url + "/")
    assert all(word in page for word in ("extended_tables", "TTFT P95 (ms)", "ITL P95 (ms)"))
    assert len(server.seen) > 10
