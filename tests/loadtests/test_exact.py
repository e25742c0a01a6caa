"""The client on a scripted socket and a scripted clock: every figure equals the script's own, exactly.

The oracle is the list of (moment, bytes, tokens) from which the script was made; it never sees the client's parsers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.client import Endpoint, Exchange, StreamClient

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
FINISH = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}


@dataclass
class Script:
    """A server's side of one connection: at a moment, these bytes, holding the ends of so many tokens."""

    steps: list[tuple[float, bytes, int]]
    now_s: float = 0.0
    waits: list[float] = field(default_factory=list)

    def clock(self) -> float:
        return self.now_s

    def token_times(self) -> list[float]:
        return [at_s for at_s, _, tokens in self.steps for _ in range(tokens)]

    # --- a socket, as far as the client uses one ---

    def settimeout(self, wait_s: float) -> None:
        self.waits.append(wait_s)

    def sendall(self, data: bytes) -> None:
        assert data.startswith(b"POST /v1/chat/completions HTTP/1.1\r\n")

    def recv(self, size: int) -> bytes:
        if not self.steps:
            return b""
        at_s, data, _ = self.steps[0]
        if at_s > self.now_s + self.waits[-1]:
            self.now_s += self.waits[-1]
            raise TimeoutError
        self.steps.pop(0)
        self.now_s = max(self.now_s, at_s)
        return data

    def close(self) -> None:
        pass


class Scripted(Endpoint):
    def __init__(self, script: Script) -> None:
        super().__init__("http://scripted")
        self.script = script

    def connect(self, timeout_s: float) -> Any:
        return self.script


def event(chunk: dict[str, Any] | str, newline: str = "\n") -> bytes:
    text = chunk if isinstance(chunk, str) else json.dumps(chunk, ensure_ascii=False)
    return f"data: {text}{newline}{newline}".encode()


def framed(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def said(text: str, count: int | None = None, **delta: Any) -> dict[str, Any]:
    usage = {} if count is None else {"usage": {"prompt_tokens": 7, "completion_tokens": count}}
    return {"choices": [{"index": 0, "delta": {"content": text, **delta}, "finish_reason": None}], **usage}


def closing(tokens: int) -> list[bytes]:
    final = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": tokens}}
    return [framed(event(FINISH)), framed(event(final)), framed(event("[DONE]")), b"0\r\n\r\n"]


def sent(script: Script, timeout_s: float = 60, leave_after_s: float | None = None) -> Exchange:
    exchange = Exchange("r", "s", "measured", 0, 0.0, 8, leave_after_s=leave_after_s)
    StreamClient(Scripted(script), timeout_s, script.clock).send(exchange, b"{}")
    return exchange


def script(steps: Iterable[tuple[float, bytes, int]], tokens: int, end_s: float) -> Script:
    return Script([(0.25, HEAD, 0), *steps, *((end_s, data, 0) for data in closing(tokens))])


def test_stamps_are_the_moments_of_the_reads() -> None:
    steps = [
        (0.5, framed(event(said("a"))), 1),
        (0.75, framed(event(said("b"))), 1),
        (7.0, framed(event(said("c"))), 1),
    ]
    s = script(steps, 3, 7.5)
    truth = s.token_times()
    e = sent(s)
    assert (e.status, e.sent_s, e.first_byte_s, e.end_s) == ("ok", 0.0, 0.25, 7.5)
    assert e.token_times_s.tolist() == truth == [0.5, 0.75, 7.0]
    assert (e.text, e.output_tokens, e.prompt_tokens) == ("abc", 3, 7)


@pytest.mark.parametrize("running", [True, False])
def test_a_role_chunk_is_no_token(running: bool) -> None:
    steps = [
        (0.3, framed(event(said("", 0 if running else None, role="assistant"))), 0),
        (1.5, framed(event(said("a", 1 if running else None))), 1),
    ]
    e = sent(script(steps, 1, 2.0))
    assert e.token_times_s.tolist() == [1.5]


def test_tokens_of_one_chunk_share_its_moment() -> None:
    steps = [(0.5, framed(event(said("a b c", 3))), 3), (0.9, framed(event(said("d e", 5))), 2)]
    assert sent(script(steps, 5, 1.0)).token_times_s.tolist() == [0.5, 0.5, 0.5, 0.9, 0.9]


def test_several_events_in_one_read_share_its_moment() -> None:
    together = framed(event(said("a"))) + framed(event(said("b")))
    steps = [(0.5, together, 2), (0.75, framed(event(said("c"))), 1)]
    assert sent(script(steps, 3, 1.0)).token_times_s.tolist() == [0.5, 0.5, 0.75]


def test_a_token_has_arrived_when_its_last_byte_has() -> None:
    data = framed(event(said("größe 漢🙂")))
    steps = [(0.5 + i / 1000, data[i : i + 1], int(i == len(data) - 3)) for i in range(len(data))]
    s = script(steps, 1, 2.0)  # the chunk's own CRLF comes after the event
    truth = s.token_times()
    e = sent(s)
    assert e.token_times_s.tolist() == truth
    assert e.text == "größe 漢🙂"


def test_usage_only_in_the_last_chunk_with_a_choice_is_a_final_one() -> None:
    last = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": {"completion_tokens": 2}}
    steps = [(0.5, framed(event(said("a"))), 1), (0.75, framed(event(said("b"))), 1)]
    s = Script([(0.25, HEAD, 0), *steps, (1.0, framed(event(last)) + framed(event("[DONE]")) + b"0\r\n\r\n", 0)])
    assert sent(s).token_times_s.tolist() == [0.5, 0.75]


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_comments_and_data_over_several_lines(newline: str) -> None:
    chunk = json.dumps(said("a")).replace(", ", f",{newline}data: ", 1)
    steps = [
        (0.3, framed(f": keep-alive{newline}{newline}".encode()), 0),
        (0.5, framed(event(chunk, newline)), 1),
        (0.6, framed(f":{newline}{newline}event: message{newline}".encode() + event(said("b"), newline)), 1),
    ]
    e = sent(script(steps, 2, 1.0))
    assert (e.status, e.reason, e.token_times_s.tolist()) == ("ok", None, [0.5, 0.6])


def test_without_done_the_end_of_the_body_is_the_end() -> None:
    s = script([(0.5, framed(event(said("a"))), 1)], 1, 1.0)
    del s.steps[-2]
    e = sent(s)
    assert (e.status, e.end_s) == ("ok", 1.0)


def test_done_is_the_end_whatever_the_connection_does_after_it() -> None:
    s = script([(0.5, framed(event(said("a"))), 1)], 1, 1.0)
    s.steps[-1] = (50.0, b"0\r\n\r\n", 0)
    e = sent(s)
    assert (e.status, e.end_s) == ("ok", 1.0)


def test_a_connection_that_cannot_be_kept_is_not_waited_for() -> None:
    """A user's next request is due at the end of the answer, whenever the server comes round to closing."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
    final = event(FINISH) + event({"choices": [], "usage": {"completion_tokens": 1}}) + event("[DONE]")
    s = Script([(0.25, head, 0), (0.5, event(said("a")), 1), (1.0, final, 0), (50.0, b"", 0)])
    e = sent(s)
    assert (e.status, e.end_s, e.token_times_s.tolist()) == ("ok", 1.0, [0.5])
    assert s.now_s == 1.0


@pytest.mark.parametrize(
    "chunk",
    [
        {"error": {"message": "engine is gone"}},
        {"object": "error", "message": "engine is gone", "code": 500},
        {"error": "engine is gone"},
    ],
)
def test_an_error_in_the_stream(chunk: dict[str, Any]) -> None:
    e = sent(Script([(0.25, HEAD, 0), (0.5, framed(event(said("a"))), 1), (0.8, framed(event(chunk)), 0)]))
    assert (e.status, e.token_times_s.tolist(), e.end_s) == ("error", [0.5], 0.8)
    assert "engine is gone" in (e.reason or "")


def test_a_timeout_is_counted_from_when_it_was_sent() -> None:
    steps = [(i / 2, framed(event(said("a"))), 1) for i in range(1, 20)]
    e = sent(Script([(0.25, HEAD, 0), *steps]), timeout_s=2.25)
    assert (e.status, e.end_s, e.token_times_s.tolist()) == ("timeout", 2.25, [0.5, 1.0, 1.5, 2.0])


def test_a_user_who_leaves_keeps_what_came() -> None:
    steps = [(i / 2, framed(event(said("a"))), 1) for i in range(1, 20)]
    e = sent(Script([(0.25, HEAD, 0), *steps]), leave_after_s=1.25)
    assert (e.status, e.end_s, e.token_times_s.tolist()) == ("abandoned", 1.25, [0.5, 1.0])
    assert e.reason == "its user left 1.25 s after sending"


def test_a_user_with_more_patience_than_the_answer_takes_stays() -> None:
    assert sent(script([(0.5, framed(event(said("a"))), 1)], 1, 1.0), leave_after_s=1.25).status == "ok"


@given(
    tokens=st.lists(
        st.tuples(st.floats(0.001, 2), st.integers(1, 4), st.sampled_from(["a", "ß", "漢字", "🙂"])), min_size=1
    ),
    running=st.booleans(),
    cut=st.integers(0, 10**6),
)
def test_any_schedule_is_measured_as_it_was(tokens: list[tuple[float, int, str]], running: bool, cut: int) -> None:
    """``running`` usage tells chunks of several tokens apart; without it each holds one."""
    at_s, count, steps = 0.25, 0, []
    for gap_s, size, text in tokens:
        at_s += gap_s
        n = size if running else 1
        count += n
        steps.append((at_s, framed(event(said(text * n, count if running else None))), n))
    which = cut % len(steps)
    at, data, n = steps[which]
    half = 1 + cut % (len(data) - 3)  # the event is whole before the CRLF of its chunk
    first = (at - 0.0005, data[:half], n if half >= len(data) - 2 else 0)
    steps[which : which + 1] = [first, (at, data[half:], 0 if first[2] else n)]
    s = script(steps, count, at_s + 1)
    truth = s.token_times()
    e = sent(s)
    assert (e.status, e.reason) == ("ok", None)
    assert e.token_times_s.tolist() == truth
    assert e.output_tokens == count


def test_half_a_surrogate_pair_is_read() -> None:
    """A server that cuts its text between tokens may escape half a character; the answer stands all the same."""
    halves = [b"data: " + json.dumps(said(half)).encode() + b"\n\n" for half in ("\ud83d", "\ude42")]
    steps = [(0.5, framed(halves[0]), 1), (0.6, framed(halves[1]), 1)]
    s = script(steps, 2, 0.7)
    truth = s.token_times()
    exchange = sent(s)
    assert exchange.status == "ok", exchange.reason
    assert exchange.token_times_s.tolist() == truth
    assert exchange.text == "\ud83d\ude42"
