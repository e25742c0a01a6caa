"""What a connection may take, over raw sockets."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from engine.server.limits import Limits, limited_protocol
from engine.server.metrics import Metrics
from tests.engine.server.booted import (
    MODEL,
    Booted,
    boot,
    cut_short,
    halted,
    idle,
    until,
)

# As short as they may be where a paused test must not run into them before it has asked anything.
LIMITS = {"header-timeout-s": 2, "body-timeout-s": 0.5, "idle-timeout-s": 4, "write-timeout-s": 2}
HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture(scope="module")
def limited(artifact: Path) -> Iterator[Booted]:
    options = [x for name, value in LIMITS.items() for x in (f"--{name}", str(value))]
    with boot(artifact, *options, "--max-connections", "6") as running:
        yield running
        running.http.close()  # a test puts another in its place


def connect(server: Booted, *, receive_bytes: int | None = None) -> socket.socket:
    sock = socket.socket()
    if receive_bytes:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    sock.settimeout(240)
    sock.connect(("127.0.0.1", server.port))
    return sock


def ended(server: Booted, reason: str) -> float:
    return server.metric(f'connections_ended_total{{reason="{reason}"}}')


def rest(sock: socket.socket) -> bytes:
    """All that comes until the server closes."""
    found = b""
    try:
        while part := sock.recv(65536):
            found += part
    except ConnectionResetError:
        pass
    return found


def answer(raw: bytes) -> tuple[int, dict[str, Any]]:
    head, _, body = raw.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


def one_answer(sock: socket.socket) -> tuple[int, dict[str, Any]]:
    raw = b""
    while b"\r\n\r\n" not in raw or not raw.endswith(b"}"):
        part = sock.recv(65536)
        assert part, raw
        raw += part
    return answer(raw)


def post(body: bytes, **headers: str) -> bytes:
    lines = {"Host": "x", "Content-Length": str(len(body)), **headers}
    head = "".join(f"{k.replace('_', '-')}: {v}\r\n" for k, v in lines.items())
    return b"POST /v1/completions HTTP/1.1\r\n" + head.encode() + b"\r\n" + body


def ask(**parameters: Any) -> bytes:
    body = {"model": MODEL, "prompt": "abc", "max_tokens": 3, "temperature": 0, "ignore_eos": True, **parameters}
    return post(json.dumps(body).encode())


def test_headers_that_do_not_end(limited: Booted) -> None:
    before = ended(limited, "header_timeout")
    with connect(limited) as sock:
        sock.sendall(b"GET /health HTTP/1.1\r\n")
        for i in range(100):  # a byte now and then buys no time
            try:
                sock.sendall(f"X-{i}: y\r\n".encode())
            except OSError:
                break
            time.sleep(0.05)
        status, body = answer(rest(sock))
    assert (status, body["error"]["type"]) == (408, "timeout_error")
    assert "no complete headers after 2 s" in body["error"]["message"]
    assert ended(limited, "header_timeout") == before + 1


def test_a_connection_on_which_nothing_is_asked(limited: Booted) -> None:
    with connect(limited) as sock:
        assert rest(sock) == b""


def test_headers_that_do_not_end_on_the_second_request(limited: Booted) -> None:
    with connect(limited) as sock:
        sock.sendall(HEALTH + b"GET /hea")
        assert one_answer(sock)[0] == 200
        assert answer(rest(sock))[0] == 408


def test_idle_between_requests(limited: Booted) -> None:
    before = ended(limited, "idle_timeout")
    with connect(limited) as sock:
        for _ in range(3):
            sock.sendall(HEALTH)
            assert one_answer(sock) == (200, {"status": "ok"})
        assert rest(sock) == b""
    assert ended(limited, "idle_timeout") > before


def test_a_body_that_does_not_end(limited: Booted) -> None:
    before = limited.metric('requests_rejected_total{reason="timeout"}')
    with connect(limited) as sock:
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        status, body = answer(rest(sock))
    assert status == 408
    assert "1 bytes of the body came in 0.5 s" in body["error"]["message"]
    assert limited.metric('requests_rejected_total{reason="timeout"}') == before + 1


def test_a_body_that_is_not_awaited_and_does_not_end(limited: Booted) -> None:
    with connect(limited) as sock:
        sock.sendall(b"POST /nowhere HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        assert answer(rest(sock))[0] == 404


def test_a_body_that_is_not_awaited_does_not_end_the_connection(server: Booted) -> None:
    with connect(server) as sock:
        sock.sendall(b"POST /nowhere HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        assert one_answer(sock)[0] == 404
        sock.sendall(b" " * 99)
        sock.sendall(HEALTH)
        assert one_answer(sock)[0] == 200
        sock.shutdown(socket.SHUT_WR)
        assert rest(sock) == b""


@pytest.mark.parametrize(
    "garbage", [b"\x16\x03\x01\x02\x00\x01\x00", b"hello\r\n\r\n", b"GET /\x00 HTTP/1.1\r\n\r\n", b"A" * 100_000]
)
def test_what_is_no_http(server: Booted, garbage: bytes) -> None:
    with connect(server) as sock:
        sock.sendall(garbage + b"\r\n\r\n")
        status, body = answer(rest(sock))
    assert (status, body["error"]["type"]) == (400, "invalid_request_error")


def test_a_broken_chunk_in_a_body(server: Booted) -> None:
    with connect(server) as sock:
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\nzz\r\n")
        assert answer(rest(sock))[0] == 400


def test_requests_that_are_sent_ahead_are_answered_in_turn(server: Booted) -> None:
    with connect(server) as sock:
        sock.sendall(ask() + ask(prompt="abcd") + HEALTH + b"no http\r\n\r\n")
        raw = rest(sock)
    assert raw.count(b"HTTP/1.1 200") == 3
    assert raw.count(b"text_completion") == 2
    assert raw.count(b"HTTP/1.1 400") == 1


@pytest.mark.parametrize("used", [False, True])
def test_what_comes_in_the_last_moment_of_a_shutdown_is_answered(used: bool) -> None:
    """On a connection that is fresh, or between two requests; it is closed then."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 503, "headers": [(b"content-length", b"4")]})
        await send({"type": "http.response.body", "body": b"gone"})

    async def last_moment() -> bytes:
        config = uvicorn.Config(app, http=limited_protocol(Limits(), Metrics(dict)), lifespan="off", log_config=None)
        config.load()
        state = uvicorn.Server(config).server_state
        serving = await asyncio.get_running_loop().create_server(
            lambda: config.http_protocol_class(config=config, server_state=state, app_state={}), "127.0.0.1", 0
        )  # type: ignore[call-arg]
        async with serving:
            reader, writer = await asyncio.open_connection(*serving.sockets[0].getsockname())
            if used:
                writer.write(HEALTH)
                await reader.readuntil(b"gone")
            while not state.connections:
                await asyncio.sleep(0.01)
            for connection in state.connections:
                connection.shutdown()
            writer.write(HEALTH)
            found = await asyncio.wait_for(reader.read(), 240)
            writer.close()
            return found

    assert asyncio.run(last_moment()).startswith(b"HTTP/1.1 503")


def test_one_that_sends_ahead_and_leaves_is_noticed(server: Booted) -> None:
    def leave() -> None:
        with halted(server), connect(server) as sock:  # a quick core would have answered before
            sock.sendall(ask(max_tokens=500) + HEALTH)
            time.sleep(0.2)
            sock.sendall(HEALTH)
            sock.close()
            time.sleep(0.2)

    cut_short(server, leave, 1, 500)


def test_too_much_that_is_sent_ahead(server: Booted) -> None:
    before = ended(server, "pipelined")
    with halted(server), connect(server) as sock:
        sock.sendall(ask(max_tokens=500))
        assert server.http.get("/health").status_code == 200  # asked later, so that the first has been read
        with pytest.raises(OSError):
            sock.sendall(b"x" * 2**26)
    idle(server)
    assert ended(server, "pipelined") == before + 1


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_stops_reading(limited: Booted, stream: bool) -> None:
    before = ended(limited, "write_timeout")
    with connect(limited, receive_bytes=4096) as sock:
        sock.sendall(ask(max_tokens=500, n=16, logprobs=20, stream=stream, temperature=1))
        until(lambda: ended(limited, "write_timeout") == before + 1)
    until(lambda: limited.metric("num_requests_running") == 0)
    assert limited.metric("kv_blocks_used") == 0


def test_a_client_that_reads_slowly_gets_all(limited: Booted) -> None:
    before = ended(limited, "write_timeout")
    with connect(limited, receive_bytes=4096) as sock:
        sock.sendall(ask(max_tokens=200, n=16, logprobs=20, stream=True, temperature=1))
        found, began = b"", time.monotonic()
        while b"[DONE]" not in found:
            part = sock.recv(65536)
            assert part
            found += part
            if time.monotonic() - began < 1.5 * LIMITS["write-timeout-s"]:
                time.sleep(0.1)
    assert found.count(b'"finish_reason":"length"') == 16
    assert ended(limited, "write_timeout") == before


def test_idle_connections_make_place_and_others_are_told(limited: Booted) -> None:
    limited.http.close()  # its connection would be one more
    with halted(limited):  # no answer ends meanwhile
        between = connect(limited)
        between.sendall(HEALTH)
        assert one_answer(between)[0] == 200
        busy = [connect(limited) for _ in range(5)]
        for sock in busy:
            sock.sendall(ask(max_tokens=500, stream=True))
        late = connect(limited)
        late.sendall(HEALTH)
        assert one_answer(late)[0] == 200  # in the place of the idle one
        assert rest(between) == b""
        late.sendall(ask(max_tokens=500, stream=True))
        with connect(limited) as refused_one:
            raw = rest(refused_one)
    status, body = answer(raw)
    assert status == 503
    assert b"retry-after: 1" in raw.lower()
    assert "6 connections are open, the server takes 6" in body["error"]["message"]
    for sock in (*busy, late, between):
        sock.close()
    limited.http = type(limited.http)(base_url=f"http://127.0.0.1:{limited.port}", timeout=240)
    idle(limited)
    assert ended(limited, "too_many") == 1
    until(lambda: limited.metric("connections") == 1)
