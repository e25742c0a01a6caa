"""The server: HTTP/1.1 on asyncio, one timer for all open streams (``agenda``).

A connection carries one request at a time, in bytes and without a framework: with hundreds of streams the server must
not be what is measured. What goes out at one moment - the head and the role, the last chunk with usage, ``[DONE]`` and
the end of the body - is one write, so that it costs the client one wake-up.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from loadtests.simulator.agenda import Agenda, Call
from loadtests.simulator.exports import Books, rendered
from loadtests.simulator.scenario import Leak, Refusal, Restart, Scenario, SlowHead
from loadtests.simulator.script import Answer, Script, Write, answer_to, prompt_digest
from loadtests.simulator.timing import Timing
from loadtests.simulator.truth import Truth, TruthLog

_BLOCK_TOKENS = 16
_BODY_END = b"0\r\n\r\n"
_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 429: "Too Many Requests", 500: "Internal Server Error"}


class Simulator:
    """State that all connections share. ``truths``: requests that have ended, in order of their end."""

    def __init__(self, scenario: Scenario, log: TruthLog | None = None) -> None:
        self.scenario, self.timing, self._log = scenario, Timing(scenario), log
        self.agenda = Agenda()
        self.truths: list[Truth] = []
        self.zero_s: float | None = None
        self.number = 0
        self.open: set[Stream] = set()
        self.running: set[Stream] = set()
        self.waiting: deque[Stream] = deque()
        self._seen: set[bytes] = set()
        self._leaked_blocks = 0
        self._leaked: list[bytes] = []
        self.connections: set[Connection] = set()
        self._books = Books()

    def at(self, monotonic_s: float) -> float:
        """Seconds since the first chat request."""
        if self.zero_s is None:
            self.zero_s = monotonic_s
        return monotonic_s - self.zero_s

    def cached_tokens(self, body: dict[str, Any], prompt_tokens: int) -> int | None:
        if self.scenario.cached != "repeats":
            return self.scenario.cached
        digest = prompt_digest(body)
        known = digest in self._seen
        self._seen.add(digest)
        return prompt_tokens - 1 if known else 0

    def admit(self, stream: Stream) -> bool:
        """A slot, or a place in the queue; False: there is neither."""
        slots, queue = self.scenario.slots, self.scenario.queue
        if slots is None or len(self.running) < slots:
            self.running.add(stream)
            stream.begin(time.monotonic())
            return True
        if queue is not None and len(self.waiting) >= queue:
            return False
        self.waiting.append(stream)
        return True

    def ended(self, stream: Stream) -> None:
        truth = stream.truth
        self.open.discard(stream)
        self.running.discard(stream)
        with contextlib.suppress(ValueError):
            self.waiting.remove(stream)
        self._books.end(truth)
        for f in stream.active:
            if isinstance(f, Leak):
                self._leaked_blocks += f.blocks
                self._leaked.append(b"\x01" * f.memory_bytes)
        self.truths.append(truth)
        if self._log is not None:
            self._log.add(truth)
        while self.waiting and (self.scenario.slots is None or len(self.running) < self.scenario.slots):
            following = self.waiting.popleft()
            self.running.add(following)
            following.begin(time.monotonic())

    def restart(self, arrived: Truth) -> None:
        """Another process takes this one's place. Requests go on being numbered, and the truth log goes on."""
        for stream in list(self.open):
            stream.truth.end = "reset" if stream.truth.end == "running" else stream.truth.end
            stream.client_gone()
        self.turned_down(arrived, "reset")
        for connection in list(self.connections):
            connection.break_off(True)
        self._seen.clear()
        self._leaked_blocks, self._leaked = 0, []
        self._books = Books(max(time.time(), self._books.started_unix_s + 1))

    def turned_down(self, truth: Truth, end: str) -> None:
        """A request that got no stream."""
        truth.end, truth.ended_s = end, time.monotonic()
        self.truths.append(truth)
        if self._log is not None:
            self._log.add(truth)

    def metrics(self) -> str | None:
        """None: the scenario's server has none."""
        used = sum(s.blocks for s in self.running) + self._leaked_blocks
        total = self.scenario.blocks_total
        gauges = {"running": len(self.running), "waiting": len(self.waiting), "kv_used": min(used, total)}
        return rendered(self.scenario.exports, {**gauges, "kv_total": total}, self._books)


class Stream:
    """One chat request on its way."""

    def __init__(self, simulator: Simulator, connection: Connection, body: dict[str, Any], truth: Truth) -> None:
        self._simulator, self._connection, self.truth = simulator, connection, truth
        scenario = simulator.scenario
        at_s = simulator.at(truth.received_s)
        self.active = [
            f
            for f in scenario.faults
            if (when := getattr(f, "when", None)) and when.selects(truth.number, truth.open_requests, at_s)
        ]
        answer = answer_to(scenario, body, truth.number, self.active, None)
        cached = simulator.cached_tokens(body, answer.prompt_tokens)
        self._answer: Answer = replace(answer, cached_tokens=cached)
        self._script = Script(scenario, self._answer)
        self._writes: Iterator[Write] = self._script.writes()
        self._gap_at = 0
        self._due_s = 0.0
        self._write: Write | None = None
        self._pieces: deque[bytes] = deque()
        self._timer: int | None = None
        truth.prompt_tokens, truth.output_tokens = answer.prompt_tokens, answer.output_tokens
        truth.cached_tokens, truth.finish_reason = cached, answer.finish_reason
        truth.truncated = any(f.kind == "truncate" for f in self.active)

    @property
    def blocks(self) -> int:
        tokens = self._answer.prompt_tokens + sum(n for *_, n in self.truth.sent)
        return -(-tokens // _BLOCK_TOKENS)

    def begin(self, now_s: float) -> None:
        """It has a slot: its head and its first token are timed from here."""
        scenario, simulator = self._simulator.scenario, self._simulator
        self.truth.started_s = now_s
        slow_s = sum(f.delay_ms for f in self.active if isinstance(f, SlowHead)) / 1000
        first_ms = scenario.ttft_ms + scenario.prefill_ms_per_token * self._answer.prompt_tokens
        at_s = simulator.at(now_s)
        head_s = simulator.timing.after(at_s, slow_s)
        self._due_s = max(simulator.timing.after(at_s, first_ms / 1000), head_s)
        self._at(head_s, self._send_head)

    def _at(self, due_s: float, call: Call) -> None:
        self._timer = self._simulator.agenda.at((self._simulator.zero_s or 0.0) + due_s, call)

    def _send_head(self) -> None:
        self.truth.head_s = time.monotonic()
        self._connection.head(self._simulator.scenario.form.framing, self._script.role())
        self._write = next(self._writes, None)
        if self._write is None:
            return self._over()
        self._at(self._due_s, self._send)

    def _send(self) -> None:
        """Sends the write that is due and all that go out with it; then waits for the next."""
        write = self._write
        assert write is not None
        if not write.silent:
            zero = self._simulator.zero_s or 0.0
            self.truth.sent.append((zero + self._due_s, time.monotonic(), write.tokens))
        self._write = following = next(self._writes, None)
        together = [write.data]
        while following is not None and following.tokens == 0:
            together.append(following.data)
            self._write = following = next(self._writes, None)
        size = self._simulator.scenario.form.piece_bytes
        if size is not None:
            self._pieces.extend(d[i : i + size] for d in together for i in range(0, len(d), size))
            return self._send_piece()
        if following is None:
            return self._over(together)
        self._connection.data(together)
        self._wait(following)

    def _send_piece(self) -> None:
        while self._pieces:
            self._connection.data([self._pieces.popleft()])
            if gap_s := self._simulator.scenario.form.piece_gap_ms / 1000:
                now_s = self._simulator.at(time.monotonic())
                return self._at(now_s + gap_s, self._send_piece)
        if self._write is None:
            return self._over()
        self._wait(self._write)

    def _wait(self, following: Write) -> None:
        self._due_s = self._simulator.timing.after(self._due_s, self._gap_s(following.tokens))
        self._at(self._due_s, self._send)

    def _gap_s(self, tokens: int) -> float:
        """Between the last write and one of ``tokens``: the sum of the gaps between its tokens."""
        scenario = self._simulator.scenario
        if scenario.gaps_ms is None:
            others = max(len(self._simulator.running) - 1, 0)
            return tokens * (scenario.itl_ms + scenario.itl_per_request_ms * others) / 1000
        gaps = [scenario.gaps_ms[(self._gap_at + i) % len(scenario.gaps_ms)] for i in range(tokens)]
        self._gap_at += tokens
        return sum(gaps) / 1000

    def _over(self, last: list[bytes] | None = None) -> None:
        """``last``: what still goes out, with the end of the body behind it if that has one."""
        broken = self._answer.broken
        if broken is None or broken.how == "error_event":
            self._connection.data(last or [], over=True)
            return self._close("done" if broken is None else "error_event")
        if last:
            self._connection.data(last)
        if broken.how == "hang":
            self.truth.end = "hang"
        else:
            self._connection.break_off(broken.how == "reset")
            self._close(broken.how)

    def _close(self, how: str) -> None:
        self.truth.end, self.truth.ended_s = how, time.monotonic()
        self._connection.stream = None
        self._simulator.ended(self)
        self._connection.resume()

    def client_gone(self) -> None:
        if self._timer is not None:
            self._simulator.agenda.cancel(self._timer)
        self._connection.stream = None
        self.truth.ended_s = time.monotonic()
        if self.truth.end == "running":
            self.truth.end = "client_gone"
        self._simulator.ended(self)


class Connection(asyncio.Protocol):
    """HTTP/1.1 of one client."""

    def __init__(self, simulator: Simulator) -> None:
        self._simulator = simulator
        self._buffer = bytearray()
        self._transport: Any = None
        self._chunked = True
        self.stream: Stream | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        sock = self._transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._simulator.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._simulator.connections.discard(self)
        if self.stream is not None:
            stream, self.stream = self.stream, None
            stream.client_gone()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self.resume()

    def resume(self) -> None:
        """Takes the next request from the buffer, if it is whole and the last one is answered."""
        while self.stream is None and (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = bytes(self._buffer[:end]).decode("latin-1").split("\r\n")
            headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in head[1:])}
            length = int(headers.get("content-length", 0))
            if "transfer-encoding" in headers:
                self._buffer.clear()
                return self._refuse(400, "send a Content-Length; the simulator takes no chunked request", close=True)
            if len(self._buffer) < end + 4 + length:
                return
            body = bytes(self._buffer[end + 4 : end + 4 + length])
            del self._buffer[: end + 4 + length]
            method, path, *_ = head[0].split(" ")
            self._route(method, path.partition("?")[0], headers, body)

    def _route(self, method: str, path: str, headers: dict[str, str], body: bytes) -> None:
        scenario = self._simulator.scenario
        if method == "POST" and path == "/v1/chat/completions":
            return self._chat(headers, body)
        if path == "/v1/models":
            entry = {"id": scenario.model, "object": "model", "created": 0, "owned_by": "loadtests.simulator"}
            return self._json(200, {"object": "list", "data": [entry]})
        if path == "/health":
            return self._json(200, {"status": "ok"})
        if path == "/info":
            return self._json(200, {"model": scenario.model, "scenario": scenario.model_dump(mode="json")})
        if path == "/metrics" and (told := self._simulator.metrics()) is not None:
            return self._whole(200, told.encode(), "text/plain; version=0.0.4")
        self._refuse(404, f"no {method} {path}")

    def _chat(self, headers: dict[str, str], raw: bytes) -> None:
        now_s, simulator = time.monotonic(), self._simulator
        at_s, number = simulator.at(now_s), simulator.number
        simulator.number += 1
        open_requests = len(simulator.open) + 1
        truth = Truth(number, f"chatcmpl-{number}", headers.get("x-request-id"), now_s, open_requests)
        try:
            body = json.loads(raw)
            if not body.get("stream"):
                raise ValueError("the simulator streams only: send stream: true")
        except (ValueError, AttributeError) as e:
            return self._turn_down(truth, 400, str(e))
        for f in simulator.scenario.faults:
            if isinstance(f, Restart) and f.at_request == number:
                return simulator.restart(truth)
            if isinstance(f, Refusal) and f.when.selects(number, open_requests, at_s):
                return self._turn_down(truth, f.status, f.message, f.retry_after)
        stream = Stream(simulator, self, body, truth)
        self.stream = stream
        simulator.open.add(stream)
        if not simulator.admit(stream):
            self.stream = None
            simulator.open.discard(stream)
            self._turn_down(truth, 429, f"the queue is full: {len(simulator.waiting)} requests wait", "1")

    def _turn_down(self, truth: Truth, status: int, message: str, retry_after: str | None = None) -> None:
        truth.status = status
        self._simulator.turned_down(truth, "refused")
        self._refuse(status, message, retry_after)

    # --- writing -----------------------------------------------------------------------------------------------------

    def head(self, framing: str, role: bytes) -> None:
        """The response's head, and the chunk that comes with it, if any."""
        self._chunked = framing == "chunked"
        how = "Transfer-Encoding: chunked" if self._chunked else "Connection: close"
        kind = "Content-Type: text/event-stream; charset=utf-8"
        head = f"HTTP/1.1 200 OK\r\n{kind}\r\nCache-Control: no-store\r\n{how}\r\n\r\n".encode()
        self._transport.write(head + (self._framed(role) if role else b""))

    def data(self, together: list[bytes], *, over: bool = False) -> None:
        """One write. ``over``: the body ends behind it."""
        out = b"".join(map(self._framed, together))
        if over and self._chunked:
            out += _BODY_END
        if out:
            self._transport.write(out)
        if over and not self._chunked:
            self._transport.close()

    def _framed(self, data: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data

    def break_off(self, reset: bool) -> None:
        """Ends the connection in the middle: by a reset, or as if this were all."""
        if reset:
            linger = struct.pack("ii", 1, 0)
            self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self._transport.abort()
        else:
            self._transport.close()

    def _json(self, status: int, value: Any, extra: str = "") -> None:
        self._whole(status, json.dumps(value).encode(), "application/json", extra)

    def _whole(self, status: int, body: bytes, kind: str, extra: str = "") -> None:
        reason = _REASONS.get(status, "Error")
        head = f"HTTP/1.1 {status} {reason}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{extra}\r\n"
        self._transport.write(head.encode() + body)

    def _refuse(self, status: int, message: str, retry_after: str | None = None, *, close: bool = False) -> None:
        extra = f"Retry-After: {retry_after}\r\n" if retry_after is not None else ""
        self._json(status, {"error": {"message": message, "type": "simulated", "code": status}}, extra)
        if close:
            self._transport.close()


async def serve(simulator: Simulator, host: str, port: int) -> asyncio.Server:
    """Listens; the port is in the returned server's sockets."""
    return await asyncio.get_running_loop().create_server(lambda: Connection(simulator), host, port, backlog=2048)
