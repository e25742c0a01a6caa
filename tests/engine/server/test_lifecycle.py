"""How a server begins and ends: ports, artifacts, signals, and either process dying."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import threading
import time
from pathlib import Path

import httpx
import polars as pl
import pytest

from engine.server.__main__ import bind, main
from tests.engine.server.booted import ENDLESS, MODEL, Booted, boot, command, events, gone, halted, refused, until

LASTING = {"max_model_len": 32_768}  # room for ENDLESS


def draining(server: Booted) -> bool:
    """It takes nothing any more, or has ended already."""
    try:
        return server.http.get("/health").status_code == 503
    except httpx.TransportError:
        return True


def test_port_taken(artifact: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        message = refused([*command(artifact), "--port", str(port)])
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in message


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("port", "99999", "expected at most 65535"), ("port", "-1", "expected 0 or more"),
        ("host", "", "--host is empty"), ("idle-timeout-s", "inf", "not without end"),
        ("header-timeout-s", "nan", "expected more than 0"), ("header-timeout-s", "0", "expected more than 0"),
        ("max-connections", "0", "expected more than 0"),
        ("grace-s", "nan", "expected 0 or more"), ("grace-s", "-1", "expected 0 or more"),
        ("heartbeat-timeout-s", "0.5", "expected more than 0.5"), ("log-max-mib", "0", "expected more than 0"),
        ("reference-limit-gib", "inf", "not without end"),
    ],
)  # fmt: skip
def test_options_out_of_range(
    artifact: Path, option: str, value: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--artifact", str(artifact), f"--{option}={value}"]) == 3
    message = capsys.readouterr().err
    assert f"--{option} is " in message
    assert words in message


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
            lines = response.iter_lines()  # kept: one that is dropped closes the connection
            next(lines)
            server.process.kill()  # in the middle of a step
            until(lambda: gone(core))


def test_frozen_core(artifact: Path) -> None:
    with boot(artifact, "--heartbeat-timeout-s", "2") as server:
        with halted(server):
            until(lambda: server.http.get("/health").status_code == 503)
            assert "not been heard of" in server.http.get("/health").json()["reason"]
            assert server.complete("x").status_code == 503
        until(lambda: server.http.get("/health").status_code == 200)


def test_dead_core(endless: Path) -> None:
    with boot(endless, **LASTING) as server:
        body = {"model": MODEL, "prompt": "x", "stream": True, **ENDLESS}
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
        memory = server.http.get("/info").json()["memory"]
        assert [memory[f"{part}rss_bytes"] for part in ("", "core_", "core_peak_")] == [None] * 3


@pytest.mark.parametrize(("grace", "tokens", "reason"), [("200", 3000, "length"), ("0", 30_000, "abort")])
def test_sigterm(endless: Path, grace: str, tokens: int, reason: str) -> None:
    with boot(endless, "--grace-s", grace, **LASTING) as server:
        found: list[list[dict[str, object]]] = []
        begun = threading.Event()

        def read() -> None:
            body = {"model": MODEL, "prompt": "x", "max_tokens": tokens, "stream": True, "ignore_eos": True}
            with httpx.stream("POST", f"http://127.0.0.1:{server.port}/v1/completions", json=body, timeout=240) as r:
                begun.set()
                found.append(events(r))

        thread = threading.Thread(target=read)
        thread.start()
        assert begun.wait(240)
        health = server.http.get("/health")
        assert health.status_code == 200
        if reason == "length":
            with halted(server):  # so that the answer does not end before the questions are asked
                server.process.send_signal(signal.SIGTERM)
                until(lambda: draining(server))
                assert not thread.is_alive() or server.complete("x").status_code == 503
        else:
            server.process.send_signal(signal.SIGTERM)
        thread.join(240)
        (last,) = [c for c in found[0] if c["choices"][0]["finish_reason"]]  # type: ignore[index]
        assert last["choices"][0]["finish_reason"] == reason  # type: ignore[index]
        if reason == "abort":
            assert last["choices"][0]["stop_reason"] == "the server is shutting down"  # type: ignore[index]
        assert server.process.wait(240) == 0
        until(lambda: gone(server.core_pid))


def test_an_answer_that_a_shutdown_cuts_off_is_no_success(endless: Path) -> None:
    """One whole answer has begun; another, and a stream, have not."""
    with boot(endless, "--grace-s", "0", **LASTING) as server:
        found: list[httpx.Response] = []

        def ask(n: int, stream: bool) -> None:
            body = {"model": MODEL, "prompt": "x", "n": n, "stream": stream, **ENDLESS}
            found.append(httpx.post(f"http://127.0.0.1:{server.port}/v1/completions", json=body, timeout=240))

        threads = [threading.Thread(target=ask, args=about) for about in ((2, False), (1, False), (1, True))]
        threads[0].start()
        until(lambda: server.metric("generation_tokens_total") > 0)
        with halted(server):
            for thread in threads[1:]:
                thread.start()
            until(lambda: server.metric("connections") == 4)  # with this test's own
            time.sleep(0.2)  # for the last two to be handed over, though nothing depends on it
            server.process.send_signal(signal.SIGTERM)
            until(lambda: draining(server))
        for thread in threads:
            thread.join(240)
        assert [r.status_code for r in found] == [503] * 3
        assert all("the server is shutting down" in r.json()["error"]["message"] for r in found)


def test_a_second_signal_waits_for_nobody(endless: Path) -> None:
    with boot(endless, "--grace-s", "600", **LASTING) as server:
        body = {"model": MODEL, "prompt": "x", "stream": True, **ENDLESS}
        with httpx.stream("POST", f"http://127.0.0.1:{server.port}/v1/completions", json=body, timeout=240) as r:
            lines = r.iter_lines()  # kept: one that is dropped closes the connection
            next(lines)
            os.kill(server.core_pid, signal.SIGSTOP)  # so that the request cannot come to its end
            server.process.send_signal(signal.SIGTERM)
            until(lambda: server.http.get("/health").status_code == 503)
            assert server.process.poll() is None
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(240) == 0
        until(lambda: gone(server.core_pid))


def test_whoever_waits_for_a_core_that_stands_still_is_told_at_the_end(endless: Path) -> None:
    with boot(endless, "--grace-s", "0", **LASTING) as server:
        found: list[httpx.Response] = []
        thread = threading.Thread(target=lambda: found.append(server.complete("x", **ENDLESS)))
        thread.start()
        until(lambda: server.metric("num_requests_running") == 1)  # it is with the core
        os.kill(server.core_pid, signal.SIGSTOP)
        server.process.send_signal(signal.SIGTERM)
        thread.join(240)
        assert found[0].status_code == 503
        assert "has not ended this request in time" in found[0].json()["error"]["message"]
        assert server.process.wait(240) == 0
        until(lambda: gone(server.core_pid))


def test_logs_of_all_that_happened(endless: Path, tmp_path: Path) -> None:
    """Steps and requests on one clock; refused, cut off and abandoned requests have rows as well."""
    with boot(endless, "--log-dir", str(tmp_path / "logs"), **LASTING) as server:
        origin = server.http.get("/steps").json()["origin_at"]
        server.complete("done" * 10, max_tokens=5, n=2)
        server.complete("A", max_tokens=50, logit_bias={"65": 100}, stop="AAA")
        server.http.post("/v1/completions", content=b"{")
        server.complete("y" * 40_000)
        body = {"model": MODEL, "prompt": "left", "stream": True, **ENDLESS}
        with server.http.stream("POST", "/v1/completions", json=body) as response:
            lines = response.iter_lines()  # kept: one that is dropped closes the connection
            next(lines)
            with halted(server):
                server.complete("z", n=20)  # with it, more than there is room for
        until(lambda: server.metric("num_requests_running") == 0)
        kept = server.http.get("/steps").json()["rows"]
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(240) == 0
    steps, requests = (pl.read_parquet(tmp_path / "logs" / f"{kind}-00000.parquet") for kind in ("steps", "requests"))
    assert steps.to_dicts() == kept
    assert pl.read_parquet_metadata(tmp_path / "logs" / "requests-00000.parquet")["origin_at"] == origin
    by_arrival = requests.sort("received_s", "choice")  # they are written as they end
    first, second, stopped, broken, long, left, crowd = by_arrival.to_dicts()
    for row in (first, second):
        assert (row["finish_reason"], row["http_status"], row["prompt_tokens"], row["n"]) == ("length", 200, 40, 2)
        assert (row["output_tokens"], row["num_preemptions"], row["stream"]) == (5, 0, False)
        assert 0 < row["gap_mean_s"] <= row["gap_max_s"] < row["ended_s"] - row["received_s"]
        assert row["queued_s"] + row["prefill_s"] + row["decode_s"] < row["ended_s"] - row["received_s"]
    assert first["id"] == second["id"]
    assert (stopped["finish_reason"], stopped["output_tokens"]) == ("stop", 3)
    assert stopped["decode_s"] > 0  # the core goes on until it hears of the stop
    assert (broken["http_status"], broken["refusal"], broken["choice"], broken["ttft_s"]) == (
        400,
        "invalid",
        None,
        None,
    )
    assert (long["http_status"], long["refusal"], long["prompt_tokens"]) == (400, "too_long", 40_000)
    assert (crowd["http_status"], crowd["refusal"]) == (429, "queue_full")
    assert (left["finish_reason"], left["http_status"], left["stream"]) == ("abort", 200, True)
    assert 0 < left["output_tokens"] < 30_000
    assert left["decode_s"] > 0
    during = steps.filter(pl.col("start_s").is_between(first["received_s"], first["ended_s"]))
    assert during["prefill_tokens"].sum() == 40  # the clocks agree
    assert abs(requests["received_at"].dt.epoch("s")[0] - time.time()) < 3600


def test_a_log_directory_that_cannot_be(artifact: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "cannot write logs to" in refused([*command(artifact), "--log-dir", str(tmp_path / "file" / "logs")])


def test_end_of_stdin_ends_both(artifact: Path) -> None:
    with boot(artifact) as server:
        assert isinstance(server, Booted)
        assert server.process.stdin is not None
        server.process.stdin.close()
        assert server.process.wait(240) == 0
        until(lambda: gone(server.core_pid))


def test_what_is_streamed_is_not_held_back() -> None:
    """Each connection of the listening socket sends small pieces at once, not when the one before is acknowledged."""

    async def accepted() -> int:
        found: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        async def look(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connection = writer.get_extra_info("socket")
            found.set_result(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        with bind("127.0.0.1", 0) as sock:
            async with await asyncio.start_server(look, sock=sock):
                _, writer = await asyncio.open_connection(*sock.getsockname())
                value = await found
                writer.close()
        return value

    assert asyncio.run(accepted()) == 1
