"""An OpenAI-compatible server with known answers and planted faults, in this process or as one of its own.

As a script it speaks the bundled server's start-up protocol (one ready line, ends when standard input closes).
Tokens of an echo are words with the space before them. The likeliest choice is the one with "right" in it.
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

FAULTS = ("no_usage", "no_logprobs", "short_logprobs", "shifted", "other_echo", "not_json", "abort", "cut")


class Fake:
    """``answers``: last user message -> text; ``fault``: one of FAULTS; ``script``: statuses to answer first."""

    def __init__(self, answers: dict[str, str] | None = None, fault: str | None = None, die_after: int | None = None):
        assert fault is None or fault in FAULTS
        self.answers, self.fault, self.die_after = answers or {}, fault, die_after
        self.script: list[tuple[int, dict[str, str]]] = []
        self.refuse: set[str] = set()  # last user messages that are answered with 400
        self.drop: set[str] = set()  # last user messages at which the connection is cut
        self.requests: list[dict[str, Any]] = []
        self.running, self.most_running, self._lock = 0, 0, threading.Lock()
        self.gate: threading.Event | None = None  # holds answers back until set
        self.base_url = ""
        self.started_unix_s: float | None = None  # what /metrics says of the process; None: there are none
        self.restarts_at: str | None = None  # last user message at which another process seems to take its place

    def metrics(self) -> str | None:
        if self.started_unix_s is None:
            return None
        asked = [r["messages"][-1]["content"] for r in list(self.requests) if "messages" in r]
        again = self.restarts_at in asked
        name = "process_start_time_seconds"
        return f"# TYPE {name} gauge\n{name} {self.started_unix_s * (1 + again)}\n"

    def reply(self, body: dict[str, Any]) -> dict[str, Any]:
        if body.get("echo"):
            choices = [
                self._echo(i, text, body.get("prompt_logprobs_from", 0)) for i, text in enumerate(body["prompt"])
            ]
            return self._with_usage(
                {"choices": choices[::-1]}, prompt=7, output=0
            )  # the order is the index's, not ours
        finish = {"abort": "abort", "cut": "length"}.get(self.fault or "", "stop")
        asked = body["messages"][-1]["content"] if "messages" in body else body["prompt"]
        text = self.answers.get(asked, f"answer to {asked}")
        entry: dict[str, Any] = {"index": 0, "finish_reason": finish}
        entry |= {"message": {"role": "assistant", "content": text}} if "messages" in body else {"text": text}
        return self._with_usage({"choices": [entry]}, prompt=5, output=3)

    def _with_usage(self, payload: dict[str, Any], prompt: int, output: int) -> dict[str, Any]:
        if self.fault != "no_usage":
            payload["usage"] = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}
        return payload

    def _echo(self, index: int, text: str, start: int) -> dict[str, Any]:
        """Words are tokens; from the one on that begins at ``start``, or has it in the middle."""
        found = list(re.finditer(r"\s?\S+|\s+", text))
        values: list[float | None] = [-0.25 if "right" in m.group() else -1.0 for m in found]
        values[0] = None
        shift = 1 if self.fault == "shifted" else 0
        kept = [i for i, m in enumerate(found) if m.end() > start]
        found, values = [found[i] for i in kept], [values[i] for i in kept]
        logprobs: dict[str, Any] | None = {
            "tokens": [m.group() for m in found],
            "token_logprobs": values[:-1] if self.fault == "short_logprobs" else values,
            "text_offset": [m.start() + shift for m in found],
            "top_logprobs": None,
        }
        if self.fault == "no_logprobs":
            logprobs = None
        text = "?" if self.fault == "other_echo" else text[found[0].start() :]
        return {"index": index, "text": text, "logprobs": logprobs,
                "finish_reason": "length"}  # fmt: skip


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    fake: Fake

    def log_message(self, *args: Any) -> None:
        pass

    def _send(self, status: int, payload: Any, headers: dict[str, str] | None = None) -> None:
        data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        self.send_response(status)
        for name, value in {
            "Content-Type": "application/json",
            "Content-Length": str(len(data)),
            **(headers or {}),
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            self._send(200, {"data": [{"id": "m", "owned_by": "tests", "created": 1}]})
        elif self.path == "/info":
            self._send(200, {"model": "m", "derived": {"compute_dtype": "float32"}})
        elif self.path == "/metrics":
            told = self.fake.metrics()
            self._send(404 if told is None else 200, (told or "none").encode())
        else:
            self._send(200, {"status": "ok"})

    def do_POST(self) -> None:
        fake = self.fake
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with fake._lock:
            fake.requests.append({"path": self.path, **body})
            number = len(fake.requests)
            fake.running += 1
            fake.most_running = max(fake.most_running, fake.running)
            scripted = fake.script.pop(0) if fake.script else None
        try:
            if fake.die_after is not None and number > fake.die_after:
                print("fake: out of luck, ending", file=sys.stderr, flush=True)
                os._exit(7)
            if fake.gate is not None:
                fake.gate.wait(240)
            asked = body["messages"][-1]["content"] if "messages" in body else ""
            if scripted:
                self._send(scripted[0], {"error": {"message": f"scripted {scripted[0]}"}}, scripted[1])
            elif asked in fake.refuse:
                self._send(400, {"error": {"message": "prompt too long", "type": "invalid", "code": None}})
            elif asked in fake.drop:
                self.close_connection = True
                self.connection.close()
            elif fake.fault == "not_json":
                self._send(200, b"<html>hello</html>")
            else:
                self._send(200, fake.reply(body))
        finally:
            with fake._lock:
                fake.running -= 1


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # clients that went away, and connections that a fault cut


@contextmanager
def serving(fake: Fake) -> Iterator[Fake]:
    """Serves on a free port of the loopback interface."""
    server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"fake": fake}))
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    fake.base_url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    with serving(Fake(**given)) as it:
        print(json.dumps({"event": "ready", "port": int(it.base_url.rpartition(":")[2])}), flush=True)
        sys.stdin.read()
