"""A server as a process of its own, for tests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil

MODEL = "tiny"
LIMIT_S = 240  # of anything that is waited for: no machine is so slow, and what hangs still ends
TRIES = 20
ENDLESS: dict[str, Any] = {"max_tokens": 30_000, "ignore_eos": True}  # half a minute of a tiny model
CONFIG = {"compute_dtype": "float32", "max_model_len": 512, "max_num_seqs": 16, "max_queue": 4, "threads": 1}


class Booted:
    def __init__(self, process: subprocess.Popen[str], port: int, key: str | None = None) -> None:
        self.process, self.port = process, port
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=LIMIT_S, headers=headers)
        self.core_pid = int(self.http.get("/info").json()["processes"]["core"])

    def complete(self, prompt: Any, **parameters: Any) -> httpx.Response:
        body = {"model": MODEL, "prompt": prompt, "temperature": 0, "ignore_eos": True, **parameters}
        return self.http.post("/v1/completions", json=body)

    def stream(self, path: str, **body: Any) -> list[Any]:
        with self.http.stream("POST", path, json={"model": MODEL, "stream": True, **body}) as response:
            assert response.status_code == 200, response.read()
            assert response.headers["content-type"].startswith("text/event-stream")
            return events(response)

    def metric(self, name: str) -> float:
        for line in self.http.get("/metrics").text.splitlines():
            if line.startswith(f"seatrial_{name} "):
                return float(line.split()[-1])
        raise AssertionError(f"no metric {name}")


def events(response: httpx.Response) -> list[Any]:
    data = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert data[-1] == "[DONE]"
    return [json.loads(d) for d in data[:-1]]


def until(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not what():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


@contextmanager
def halted(server: Booted) -> Iterator[None]:
    """The core stands still meanwhile: what it has, it keeps, and what comes waits for it."""
    os.kill(server.core_pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.core_pid, signal.SIGCONT)


def idle(server: Booted) -> None:
    until(lambda: server.metric("num_requests_running") + server.metric("num_requests_waiting") == 0)


def choices_ended(server: Booted, *reasons: str) -> float:
    """Choices that came to an end of one of ``reasons`` so far; of any without."""
    reasons = reasons or ("abort", "length", "stop")
    return sum(server.metric(f'request_success_total{{finished_reason="{r}"}}') for r in reasons)


def cut_short(server: Booted, leave: Callable[[], object], choices: int, tokens: int) -> None:
    """``leave`` asks for ``choices`` of ``tokens`` each and goes away: the server must not make them all.

    A paused machine may let a request of a tiny model, half a second's work, end before its client has gone. That says
    nothing of the server and is tried again; a server that never notices fails.
    """
    for _ in range(TRIES):
        idle(server)
        made, ended = server.metric("generation_tokens_total"), choices_ended(server)
        aborted = choices_ended(server, "abort")
        leave()
        until(lambda n=ended: choices_ended(server) >= n + choices)  # type: ignore[misc]
        idle(server)
        assert server.metric("kv_blocks_used") == 0
        if choices_ended(server, "abort") > aborted:
            assert server.metric("generation_tokens_total") - made < choices * tokens
            return
    raise AssertionError(f"none of {TRIES} requests was aborted when its client had gone")


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def command(artifact: Path, *extra: str, **config: Any) -> list[str]:
    return [
        sys.executable, "-m", "engine.server", "--artifact", str(artifact), "--port", "0",
        "--served-model-name", MODEL, "--config-json", json.dumps({**CONFIG, **config}), *extra,
    ]  # fmt: skip


def refused(arguments: list[str]) -> str:
    """What a server that does not start says on standard error."""
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=LIMIT_S, stdin=subprocess.DEVNULL)
    assert done.returncode == 3
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    return done.stderr


@contextmanager
def boot(artifact: Path, *extra: str, key: str | None = None, **config: Any) -> Iterator[Booted]:
    """A server whose core may stand still for long, unless ``extra`` says otherwise: it is halted here, or starved."""
    process = subprocess.Popen(
        command(artifact, "--exit-with-stdin", "--heartbeat-timeout-s", str(LIMIT_S), *extra, **config),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    killer = threading.Timer(7200, process.kill)  # a session of tests on a busy machine
    killer.start()
    try:
        line = process.stdout.readline()
        assert line, f"no ready line, exit code {process.wait(LIMIT_S)}"
        ready = json.loads(line)
        assert ready["event"] == "ready"
        server = Booted(process, ready["port"], key)
        with closing(server.http):
            yield server
    finally:
        killer.cancel()
        process.stdin.close()
        process.stdout.close()
        try:
            process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
