"""How a server begins and ends: ports, artifacts, signals, and either process dying."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
from pathlib import Path

import httpx
import pytest

from tests.engine.server.booted import MODEL, Booted, boot, command, events, gone, until


def refused(arguments: list[str]) -> str:
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    assert done.returncode == 3
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    return done.stderr


def test_port_taken(artifact: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        message = refused([*command(artifact), "--port", str(port)])
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in message


def test_no_artifact(tmp_path: Path) -> None:
    assert "has no seatrial.json" in refused(command(tmp_path))


def test_config_that_is_not_valid(artifact: Path) -> None:
    assert "prefill_chunk_tokens is 256" in refused(command(artifact, max_num_batched_tokens=8))


def test_pool_too_small_is_said_by_the_core(artifact: Path) -> None:
    assert "the KV pool has room for" in refused(command(artifact, kv_pool_bytes=1000))


def test_killed_server_leaves_no_core(artifact: Path) -> None:
    with boot(artifact) as server:
        core = server.core_pid
        body = {"model": MODEL, "prompt": "x", "max_tokens": 500, "stream": True, "ignore_eos": True}
        with server.http.stream("POST", "/v1/completions", json=body) as response:
            next(response.iter_lines())
            server.process.kill()  # in the middle of a step
            until(lambda: gone(core))


def test_frozen_and_dead_core(artifact: Path) -> None:
    with boot(artifact, "--heartbeat-timeout-s", "2") as server:
        os.kill(server.core_pid, signal.SIGSTOP)
        until(lambda: server.http.get("/health").status_code == 503)
        assert "not been heard of" in server.http.get("/health").json()["reason"]
        assert server.complete("x").status_code == 503
        os.kill(server.core_pid, signal.SIGCONT)
        until(lambda: server.http.get("/health").status_code == 200)
        body = {"model": MODEL, "prompt": "x", "max_tokens": 500, "stream": True, "ignore_eos": True}
        with server.http.stream("POST", "/v1/completions", json=body) as response:
            lines = response.iter_lines()
            next(lines)
            os.kill(server.core_pid, signal.SIGKILL)
            rest = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        assert "the engine core ended" in rest[-1]["error"]["message"]
        until(lambda: server.http.get("/health").status_code == 503)
        assert "exit code -9" in server.http.get("/health").json()["reason"]
        assert server.complete("x").status_code == 503
        assert server.http.get("/metrics").status_code == 200
        assert server.http.get("/info").json()["memory"]["rss_bytes"] is None


@pytest.mark.parametrize(("grace", "reason"), [("60", "length"), ("0", "abort")])
def test_sigterm(artifact: Path, grace: str, reason: str) -> None:
    with boot(artifact, "--grace-s", grace) as server:
        found: list[list[dict[str, object]]] = []
        begun = threading.Event()

        def read() -> None:
            body = {"model": MODEL, "prompt": "x", "max_tokens": 400, "stream": True, "ignore_eos": True}
            with httpx.stream("POST", f"http://127.0.0.1:{server.port}/v1/completions", json=body, timeout=60) as r:
                begun.set()
                found.append(events(r))

        thread = threading.Thread(target=read)
        thread.start()
        assert begun.wait(30)
        health = server.http.get("/health")
        assert health.status_code == 200
        server.process.send_signal(signal.SIGTERM)
        if reason == "length":
            until(lambda: server.http.get("/health").status_code == 503)
            assert server.complete("x").status_code == 503
        thread.join(60)
        (last,) = [c for c in found[0] if c["choices"][0]["finish_reason"]]  # type: ignore[index]
        assert last["choices"][0]["finish_reason"] == reason  # type: ignore[index]
        if reason == "abort":
            assert last["choices"][0]["stop_reason"] == "the server is shutting down"  # type: ignore[index]
        assert server.process.wait(30) == 0
        until(lambda: gone(server.core_pid))


def test_end_of_stdin_ends_both(artifact: Path) -> None:
    with boot(artifact) as server:
        assert isinstance(server, Booted)
        assert server.process.stdin is not None
        server.process.stdin.close()
        assert server.process.wait(15) == 0
        until(lambda: gone(server.core_pid))
