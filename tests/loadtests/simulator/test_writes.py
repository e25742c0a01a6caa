"""What goes to the socket in one write: each costs the client a wake-up, and with hundreds of streams they tell."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from loadtests.simulator.scenario import Scenario
from loadtests.simulator.server import Connection, Simulator

TOKENS = 5
BODY = {
    "messages": [{"role": "user", "content": "one two"}], "max_tokens": TOKENS, "stream": True,
    "stream_options": {"include_usage": True},
}  # fmt: skip


class Socket:
    """A transport that keeps what it is given."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.closed = False

    def get_extra_info(self, name: str) -> Any:
        return self

    def setsockopt(self, *_: Any) -> None:
        pass

    def write(self, data: bytes) -> None:
        assert not self.closed
        self.writes.append(data)

    def close(self) -> None:
        self.closed = True


async def answered(scenario: dict[str, Any]) -> tuple[Socket, Simulator]:
    simulator, sock = Simulator(Scenario.model_validate({"ttft_ms": 0, "itl_ms": 0} | scenario)), Socket()
    connection = Connection(simulator)
    connection.connection_made(sock)  # type: ignore[arg-type]
    body = json.dumps(BODY).encode()
    connection.data_received(b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    while not simulator.truths:
        await asyncio.sleep(0)
    return sock, simulator


async def test_the_end_of_a_stream_is_one_write() -> None:
    sock, simulator = await answered({})
    head, *tokens = sock.writes
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert head.endswith(b"\r\n\r\n")
    assert len(tokens) == TOKENS
    assert all(t.count(b'"content"') == 1 for t in tokens)
    for part in (b'"finish_reason":"length"', b'"completion_tokens":5', b"[DONE]"):
        assert [part in t for t in tokens] == [False] * (TOKENS - 1) + [True]
    assert tokens[-1].endswith(b"[DONE]\n\n\r\n0\r\n\r\n")
    assert [n for *_, n in simulator.truths[0].sent] == [1] * TOKENS
    assert simulator.truths[0].end == "done"


async def test_the_role_goes_out_with_the_head() -> None:
    sock, _ = await answered({"form": {"role": "own_chunk"}})
    assert b'"role":"assistant"' in sock.writes[0]
    assert len(sock.writes) == 1 + TOKENS


async def test_an_end_token_is_a_token_with_a_moment_of_its_own() -> None:
    sock, simulator = await answered({"form": {"eos": True}})
    assert len(sock.writes) == 1 + TOKENS
    assert b'"finish_reason":"length"' in sock.writes[-1]
    assert b'"content"' not in sock.writes[-1]
    assert sum(n for *_, n in simulator.truths[0].sent) == TOKENS


@pytest.mark.parametrize(("how", "closed"), [("close", True), ("error_event", False)])
async def test_a_broken_stream_ends_as_it_is_told_to(how: str, closed: bool) -> None:
    fault = {"kind": "break", "how": how, "after_tokens": 2, "when": {"first": 0}}
    sock, simulator = await answered({"faults": [fault]})
    assert sock.closed is closed
    assert sock.writes[-1].endswith(b"0\r\n\r\n") is not closed
    assert (b"broken by the scenario" in sock.writes[-1]) is not closed
    assert (simulator.truths[0].end, len(simulator.truths[0].sent)) == (how, 2)


async def test_without_framing_the_connection_is_the_end() -> None:
    sock, _ = await answered({"form": {"framing": "until_close"}})
    assert sock.closed
    assert sock.writes[-1].endswith(b"data: [DONE]\n\n")


async def test_pieces_stay_pieces() -> None:
    sock, _ = await answered({"form": {"piece_bytes": 7}})
    assert all(len(w) <= 7 + len(b"7\r\n\r\n") for w in sock.writes[1:])
    assert sock.writes[-1] == b"0\r\n\r\n"
