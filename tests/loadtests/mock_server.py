"""An OpenAI-compatible server that emits tokens on a known schedule and notes what it sent when: the tests' truth.

Run as a process (``python -m tests.loadtests.mock_server``) it serves a default reply until its input closes.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

Usage = Literal["continuous", "final", "none"]


@dataclass
class Reply:
    """What the server does with one request. ``chunks``: (text, tokens); None: ``max_tokens`` words of one token."""

    chunks: list[tuple[str, int]] | None = None
    first_s: float = 0.0
    gap_s: float = 0.0
    usage: Usage = "continuous"
    role: Literal["first_token", "own_chunk", "none"] = "first_token"
    extra_token_at_end: bool = False  # usage counts an end-of-sequence token that had no chunk of its own
    finish_reason: str = "length"
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    message: str = "no"
    cut_after: int | None = None  # close the connection after so many chunks
    error_after: int | None = None  # send an error event after so many chunks
    claim: int | None = None  # a completion_tokens to lie with
    piece: int | None = None  # bytes per write; None: an event a write
    newline: str = "\n"
    cached_tokens: int | None = 0
    prompt_tokens: int = 7


@dataclass
class Seen:
    """One request as the server saw it. Times are ``time.monotonic()``."""

    body: dict[str, Any]
    received_s: float
    sent_s: list[float] = field(default_factory=list)  # just before each chunk with tokens was written
    broken: bool = False  # the client went away
    request_id: str | None = None


class MockServer:
    def __init__(self, reply: Callable[[dict[str, Any]], Reply], port: int = 0) -> None:
        self.seen: list[Seen] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def log_message(self, *args: object) -> None:
                pass

            def do_GET(self) -> None:
                if self.path == "/v1/models":
                    self._json(200, {"object": "list", "data": [{"id": "mock", "object": "model"}]})
                elif self.path == "/metrics":
                    self._send(200, outer.metrics().encode(), "text/plain")
                elif self.path == "/info":
                    self._json(200, {"model": "mock", "derived": {"compute_dtype": "float32"}, "memory": {}})
                else:
                    self._json(404, {"error": {"message": f"no {self.path}"}})

            def _json(self, status: int, value: Any, headers: dict[str, str] | None = None) -> None:
                self._send(status, json.dumps(value).encode(), "application/json", headers)

            def _send(self, status: int, body: bytes, kind: str, headers: dict[str, str] | None = None) -> None:
                self.send_response(status)
                for k, v in {"Content-Type": kind, "Content-Length": str(len(body)), **(headers or {})}.items():
                    self.send_header(k, v)
                self.end_headers()
                self.wfile.write(body)

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                seen = Seen(body, time.monotonic(), request_id=self.headers["X-Request-Id"])
                outer.seen.append(seen)
                plan = reply(body)
                if plan.status != 200:
                    return self._json(plan.status, {"error": {"message": plan.message}}, plan.headers)
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                try:
                    self._stream(plan, body, seen)
                except OSError:
                    seen.broken, self.close_connection = True, True

            def _write(self, data: bytes, piece: int | None) -> None:
                for i in range(0, len(data), piece or len(data)):
                    part = data[i : i + (piece or len(data))]
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))

            def _stream(self, plan: Reply, body: dict[str, Any], seen: Seen) -> None:
                for chunk, is_token in events(plan, body):
                    if is_token:
                        time.sleep(plan.gap_s if seen.sent_s else plan.first_s)
                    n = len(seen.sent_s)
                    if n == plan.cut_after:
                        self.close_connection = True
                        return
                    if is_token:
                        seen.sent_s.append(time.monotonic())
                    text = chunk if isinstance(chunk, str) else json.dumps(chunk, ensure_ascii=False)
                    self._write(f"data: {text}{plan.newline}{plan.newline}".encode(), plan.piece)
                self.wfile.write(b"0\r\n\r\n")

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 256

            def handle_error(self, request: Any, client_address: Any) -> None:
                pass

        self._http = Server(("127.0.0.1", port), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)

    def metrics(self) -> str:
        return f"# TYPE seatrial_num_requests_running gauge\nseatrial_num_requests_running {len(self.seen) % 5}\n"

    def __enter__(self) -> MockServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()


def events(plan: Reply, body: dict[str, Any]) -> Iterator[tuple[dict[str, Any] | str, bool]]:
    """(chunk, holds tokens) of one stream, in the form that ``plan`` asks for."""
    chunks = plan.chunks if plan.chunks is not None else [(f" w{i}", 1) for i in range(body["max_tokens"])]
    details = {} if plan.cached_tokens is None else {"prompt_tokens_details": {"cached_tokens": plan.cached_tokens}}
    count = 0

    def usage() -> dict[str, Any]:
        return {"prompt_tokens": plan.prompt_tokens, "completion_tokens": count, **details}

    def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        running = {"usage": usage()} if plan.usage == "continuous" else {}
        return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **running}

    if plan.role == "own_chunk":
        yield chunk({"role": "assistant", "content": ""}), False
    for i, (text, tokens) in enumerate(chunks):
        if i == plan.error_after:
            yield {"error": {"message": "engine is gone", "type": "server_error"}}, False
            return
        count += tokens
        role = {"role": "assistant"} if i == 0 and plan.role == "first_token" else {}
        yield chunk({**role, "content": text}), True
    count += plan.extra_token_at_end
    yield chunk({}, plan.finish_reason), False
    if plan.usage != "none":
        final = usage()
        if plan.claim is not None:
            final["completion_tokens"] = plan.claim
        yield {"choices": [], "usage": final}, False
    yield "[DONE]", False


@contextmanager
def mock_server(reply: Reply | Callable[[dict[str, Any]], Reply] | None = None) -> Iterator[MockServer]:
    """A server in this process that answers every request with ``reply``."""
    fixed = reply if isinstance(reply, Reply) else Reply()
    with MockServer(reply if callable(reply) else lambda body: fixed) as server:
        yield server


if __name__ == "__main__":
    with MockServer(lambda body: Reply(first_s=0.005, gap_s=0.002)) as _server:
        print(json.dumps({"event": "ready", "port": int(_server.url.rsplit(":", 1)[1])}), flush=True)
        sys.stdin.read()
