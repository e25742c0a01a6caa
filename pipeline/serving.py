"""Starts the bundled engine as a process, waits until it answers, and makes sure that it ends.

The server reads its standard input and ends when that closes, so it cannot outlive this process, however it dies.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from engine.config import EngineConfig
from pipeline.errors import SeatrialError
from pipeline.processes import tail

START_TIMEOUTS_S = {"cpu": 180.0, "cuda": 900.0}  # by backend; on a GPU the first boot compiles every kernel


class ServerEnded(SeatrialError):
    """The server's process has ended by itself."""


class Server:
    """A running server. ``model`` is the name to put into requests."""

    def __init__(self, process: subprocess.Popen[str], base_url: str, model: str, log: Path) -> None:
        self.process, self.base_url, self.model, self.log = process, base_url, model, log

    def check(self) -> None:
        """
        Raises:
            ServerEnded: it has died; with the end of its log.
        """
        if self.process.poll() is not None:
            raise ServerEnded(
                f"the server of {self.model} ended with exit code {self.process.returncode} while it was needed; "
                f"the end of {self.log}:\n{tail(self.log)}"
            )

    def info(self) -> dict[str, Any]:
        """``GET /info``: requested config, what was derived from it, memory.

        Raises:
            SeatrialError: the server is gone or does not answer.
        """
        self.check()
        try:
            answer = httpx.get(f"{self.base_url}/info", timeout=30)
            answer.raise_for_status()
        except httpx.HTTPError as e:
            self.check()
            raise SeatrialError(f"{self.base_url}/info: {e}; see {self.log}") from e
        return dict(answer.json())


@contextmanager
def bundled_server(
    artifact: Path,
    config: EngineConfig | dict[str, Any],
    log: Path,
    *,
    model: str | None = None,
    start_timeout_s: float | None = None,
    options: Sequence[str] = (),
    root: Path | None = None,
    python: Path | str = sys.executable,
) -> Iterator[Server]:
    """Boots ``artifact`` on a free port of the loopback interface and shuts it down at the end.

    Args:
        config: settings; a plain mapping for an engine of another revision, whose settings are its own.
        start_timeout_s: None: as START_TIMEOUTS_S has it.
        options: further options of ``python -m engine.server``.
        root: the source tree whose ``engine`` is started, by ``python``; default: this one, by this interpreter.

    Raises:
        SeatrialError: it did not come up; with the end of its log.
    """
    model = model or artifact.name
    log.parent.mkdir(parents=True, exist_ok=True)
    timeout_s = start_timeout_of(config) if start_timeout_s is None else start_timeout_s
    settings = config.model_dump_json() if isinstance(config, EngineConfig) else json.dumps(config)
    command = [
        str(python), "-m", "engine.server", "--artifact", str(artifact.absolute()), "--host", "127.0.0.1",
        "--port", "0", "--served-model-name", model, "--config-json", settings, "--exit-with-stdin", *options,
    ]  # fmt: skip
    with log.open("w", encoding="utf-8") as err:  # python -m looks for the engine in the working directory first
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=err, text=True, cwd=root
        )
    try:
        yield Server(process, f"http://127.0.0.1:{_wait_ready(process, model, log, timeout_s)}", model, log)
    finally:
        _end(process)


def start_timeout_of(config: EngineConfig | dict[str, Any]) -> float:
    """Seconds in which an engine with these settings must be ready."""
    given = config.model_dump() if isinstance(config, EngineConfig) else config
    return START_TIMEOUTS_S.get(str(given.get("backend", given.get("device"))), START_TIMEOUTS_S["cpu"])


def _wait_ready(process: subprocess.Popen[str], model: str, log: Path, timeout_s: float) -> int:
    """The port, from the line ``{"event": "ready", "port": N}`` that the server prints once it can serve."""
    import threading

    assert process.stdout is not None
    found: list[int] = []

    def read() -> None:
        assert process.stdout is not None
        with process.stdout as lines:  # read to the end, so that the server never waits for a reader; then closed
            for line in lines:
                try:
                    event = json.loads(line)
                except json.JSONDecodeError:
                    continue
                if event.get("event") == "ready":
                    found.append(int(event["port"]))

    threading.Thread(target=read, daemon=True).start()
    deadline = time.monotonic() + timeout_s
    while not found:
        if process.poll() is not None:
            raise ServerEnded(
                f"the server of {model} ended with exit code {process.returncode} before it was ready; "
                f"the end of {log}:\n{tail(log)}"
            )
        if time.monotonic() > deadline:
            raise SeatrialError(
                f"the server of {model} was not ready after {timeout_s:.0f} s; the end of {log}:\n{tail(log)}"
            )
        time.sleep(0.05)
    return found[0]


def _end(process: subprocess.Popen[str]) -> None:
    if process.stdin:
        process.stdin.close()
    process.terminate()
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
