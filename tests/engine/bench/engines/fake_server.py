"""An OpenAI-compatible server of the standard library, as a script: ``fake_server.py PORT [HABIT ...]``.

It streams one event a token, every STEP_S, and knows how long it was asked to be. Habits: ``strict`` refuses what the
API does not have, by name; ``silent`` sends no usage; ``caches`` says that it found the prompt; ``pairs`` sends two
tokens an event; ``ids`` gives token ids; ``breaks`` ends a stream after its first event; ``stops`` ends early.
"""

from __future__ import annotations

import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

STEP_S = 0.01
EXTRA = ("ignore_eos", "cache_prompt", "return_token_ids")


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    habits: tuple[str, ...] = ()

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            self.answer(200, {"data": [{"id": "fake-model", "owned_by": "nobody"}]})
        else:
            self.answer(404, {})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        unknown = [name for name in EXTRA if name in body]
        if "strict" in self.habits and unknown:
            self.answer(400, {"error": {"message": f"parameter {unknown[0]!r} is not supported"}})
            return
        self.send_response(200)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        count = body["max_tokens"] - (1 if "stops" in self.habits else 0)
        at_once = 2 if "pairs" in self.habits else 1
        for first in range(0, count, at_once):
            time.sleep(STEP_S)
            choice: dict[str, Any] = {"text": "x" * at_once, "finish_reason": None}
            if "ids" in self.habits:
                choice["token_ids"] = [7] * min(at_once, count - first)
            self.event({"choices": [choice]})
            if "breaks" in self.habits and body["max_tokens"] > 2:  # not the first question, which is of two tokens
                self.close_connection = True
                return
        self.event({"choices": [{"text": "", "finish_reason": "length"}]})
        if "silent" not in self.habits:
            usage: dict[str, Any] = {"prompt_tokens": len(body["prompt"]), "completion_tokens": count}
            if "caches" in self.habits:
                usage["prompt_tokens_details"] = {"cached_tokens": 5}
            self.event({"choices": [], "usage": usage})
        self.chunk(b"data: [DONE]\n\n")
        self.chunk(b"")

    def event(self, data: dict[str, Any]) -> None:
        self.chunk(b"data: " + json.dumps(data).encode() + b"\n\n")

    def chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def answer(self, status: int, data: dict[str, Any]) -> None:
        body = json.dumps(data).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


if __name__ == "__main__":
    Handler.habits = tuple(sys.argv[2:])
    if "refuses" in sys.argv:
        sys.exit("no such model: fake")
    ThreadingHTTPServer.request_queue_size = 64
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
