"""A server as a process of its own, for tests."""

from __future__ import annotations

import json
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
CONFIG = {"compute_dtype": "float32", "max_model_len": 512, "max_num_seqs": 16, "max_queue": 4, "threads": 1}


class Booted:
    def __init__(self, process: subprocess.Popen[str], port: int, key: str | None = None) -> None:
        self.process, self.port = process, port
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, headers=headers)
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


def until(what: Callable[[], bool], timeout_s: float = 30) -> None:
    deadline = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


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
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    assert done.returncode == 3
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    return done.stderr


@contextmanager
def boot(artifact: Path, *extra: str, key: str | None = None, **config: Any) -> Iterator[Booted]:
    process = subprocess.Popen(
        command(artifact, "--exit-with-stdin", *extra, **config),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    killer = threading.Timer(900, process.kill)  # a session of tests on a busy machine
    killer.start()
    try:
        line = process.stdout.readline()
        assert line, f"no ready line, exit code {process.wait(10)}"
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
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
