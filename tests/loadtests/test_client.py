"""The client against a server whose truth is known."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from loadtests.client import Endpoint, Exchange, StreamClient, encoded, get_json
from tests.loadtests.mock_server import MockServer, Reply, mock_server


@pytest.fixture
def clients() -> Iterator[list[StreamClient]]:
    made: list[StreamClient] = []
    yield made
    for client in made:
        client.close()


def send(server: MockServer, clients: list[StreamClient], *, timeout_s: float = 240, max_tokens: int = 4) -> Exchange:
    client = StreamClient(Endpoint(server.url), timeout_s)
    clients.append(client)
    return send_with(client, max_tokens)


def send_with(client: StreamClient, max_tokens: int = 4) -> Exchange:
    exchange = Exchange("r", "s", "measured", 0, time.monotonic(), max_tokens)
    client.send(exchange, encoded({"model": "mock", "messages": [], "max_tokens": max_tokens, "stream": True}))
    return exchange


def ordered(e: Exchange) -> None:
    times = [e.due_s, e.sent_s, e.first_byte_s, *e.token_times_s, e.end_s]
    assert times == sorted(times, key=lambda t: t or 0.0)
    assert None not in times


def test_times_follow_the_servers_own(clients: list[StreamClient]) -> None:
    with mock_server(Reply(first_s=0.05, gap_s=0.02)) as server:
        e = send(server, clients, max_tokens=5)
        truth = server.seen[0].sent_s
    ordered(e)
    assert (e.status, e.reason, e.http_status, e.finish_reason) == ("ok", None, 200, "length")
    assert (e.prompt_tokens, e.output_tokens, e.cached_tokens) == (7, 5, 0)
    assert len(e.token_times_s) == len(truth) == 5
    # One clock on one machine: a token cannot arrive before it was sent, nor after the next but the last was.
    assert all(mine >= theirs for mine, theirs in zip(e.token_times_s, truth, strict=True))
    assert e.token_times_s[0] - e.due_s >= 0.05


@pytest.mark.parametrize("piece", [1, 2, 3, 5, 7, 64])
def test_characters_split_over_reads(clients: list[StreamClient], piece: int) -> None:
    chunks = [("größer ", 1), ("漢", 1), ("🙂👩‍👩‍👧", 3)]
    with mock_server(Reply(chunks=chunks, piece=piece, newline="\r\n")) as server:
        e = send(server, clients)
    assert (e.status, e.reason, len(e.token_times_s)) == ("ok", None, 5)


def test_cut_mid_stream_is_an_error_with_the_tokens_so_far(clients: list[StreamClient]) -> None:
    with mock_server(Reply(cut_after=2)) as server:
        e = send(server, clients)
    assert e.status == "error"
    assert e.reason
    assert len(e.token_times_s) == 2
    assert e.end_s is not None


def test_error_event_mid_stream(clients: list[StreamClient]) -> None:
    with mock_server(Reply(error_after=1)) as server:
        e = send(server, clients)
    assert e.status == "error"
    assert "engine is gone" in (e.reason or "")


def test_429_is_refused_and_says_when_to_come_back(clients: list[StreamClient]) -> None:
    with mock_server(Reply(status=429, message="queue is full", headers={"Retry-After": "3"})) as server:
        e = send(server, clients)
    assert (e.status, e.http_status, e.retry_after_s) == ("refused", 429, 3.0)
    assert "queue is full" in (e.reason or "")
    assert not e.token_times_s


def test_400_is_an_error_with_its_message(clients: list[StreamClient]) -> None:
    with mock_server(Reply(status=400, message="too long")) as server:
        e = send(server, clients)
    assert (e.status, e.http_status) == ("error", 400)
    assert "too long" in (e.reason or "")


def test_missing_usage_is_marked(clients: list[StreamClient]) -> None:
    with mock_server(Reply(usage="none")) as server:
        e = send(server, clients)
    assert (e.status, e.usage_missing) == ("error", True)


def test_abort_by_the_server_is_not_ok(clients: list[StreamClient]) -> None:
    with mock_server(Reply(finish_reason="abort")) as server:
        e = send(server, clients)
    assert (e.status, e.finish_reason) == ("error", "abort")


def test_timeout(clients: list[StreamClient]) -> None:
    with mock_server(Reply(first_s=5)) as server:
        e = send(server, clients, timeout_s=0.2)
    assert e.status == "timeout"
    assert "0.2 s" in (e.reason or "")


def test_timeout_is_for_the_whole_request_not_for_one_read(clients: list[StreamClient]) -> None:
    with mock_server(Reply(gap_s=0.1)) as server:
        e = send(server, clients, timeout_s=1.0, max_tokens=100)
    assert e.status == "timeout"
    assert len(e.token_times_s) < 100


def test_nobody_listens(clients: list[StreamClient]) -> None:
    with socket.socket() as taken:  # by one that does not listen, so that nobody else can
        taken.bind(("127.0.0.1", 0))
        client = StreamClient(Endpoint(f"http://127.0.0.1:{taken.getsockname()[1]}"), 240)
        clients.append(client)
        e = send_with(client)
    assert e.status == "error"
    assert "refused" in (e.reason or "").lower()


def test_a_connection_is_kept(clients: list[StreamClient]) -> None:
    with mock_server() as server:
        client = StreamClient(Endpoint(server.url), 240)
        clients.append(client)
        assert send_with(client).status == "ok"
        kept = client._socket
        assert kept is not None
        assert send_with(client).status == "ok"
        assert client._socket is kept


def test_a_kept_connection_that_the_server_closed_is_replaced(clients: list[StreamClient]) -> None:
    with mock_server() as server:
        client = StreamClient(Endpoint(server.url), 240)
        clients.append(client)
        assert send_with(client).status == "ok"
        client.abort()  # as if the peer had gone
        assert send_with(client).status == "ok"
        assert len(server.seen) == 2


def test_abort_from_another_thread(clients: list[StreamClient]) -> None:
    with mock_server(Reply(first_s=5)) as server:
        client = StreamClient(Endpoint(server.url), 240)
        clients.append(client)
        found: list[Exchange] = []
        t = threading.Thread(target=lambda: found.append(send_with(client)))
        t.start()
        while not server.seen:
            time.sleep(0.01)
        client.abort()
        t.join(240)
    assert found
    assert found[0].status == "error"


@pytest.mark.parametrize("body", [b"[1]", b"nonsense", b'{"choices": [{"delta": 3}]}', b'"x"', b"\xff\xfe"])
def test_a_stream_of_something_else_is_an_error(clients: list[StreamClient], body: bytes) -> None:
    class Odd(MockServer):
        pass

    def reply(_: dict[str, Any]) -> Reply:
        return Reply()

    with Odd(reply) as server:
        server._http.RequestHandlerClass._write = (  # type: ignore[attr-defined]
            lambda self, data, piece: self.wfile.write(b"%x\r\ndata: %s\n\n\r\n" % (len(body) + 8, body))
        )
        e = send(server, clients)
    assert e.status == "error"
    assert "unreadable answer" in (e.reason or "")


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://x", "http://", ""])
def test_a_url_that_is_none(url: str) -> None:
    with pytest.raises(ValueError, match="expected http"):
        Endpoint(url)


def test_a_base_url_may_end_in_v1() -> None:
    with mock_server() as server:
        assert get_json(Endpoint(server.url + "/v1/"), "/v1/models")["data"][0]["id"] == "mock"


def test_bearer_token_is_sent() -> None:
    assert Endpoint("http://h", "secret").headers["Authorization"] == "Bearer secret"
    assert "Authorization" not in Endpoint("http://h").headers
