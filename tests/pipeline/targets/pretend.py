"""A server with known gaps: as a function, behind an httpx transport, and as a program.

    python pretend.py PORT '{"lacks": [...], "key": "..."}'

With a key it refuses whoever has none, and says it wherever a careless server might: in errors, in /info, in what it
prints.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

MOST_BY_ITSELF = 3  # tokens of an answer that is not told to go on
EVERY_THIRD = 7  # of the requests for so many tokens is refused by a server with a key


class Pretend:
    """``lacks``: capabilities, and ``params`` (a parameter that it does not know is refused, not passed over)."""

    def __init__(self, lacks: tuple[str, ...] = (), key: str | None = None) -> None:
        self.lacks, self.key = set(lacks), key
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self._repeated: dict[str, int] = {}

    def answer(self, method: str, path: str, bearer: str | None, body: dict[str, Any]) -> tuple[int, str, bytes]:
        """(status, content type, body)."""
        if self.key is not None and bearer != f"Bearer {self.key}" and path != "/health":
            return self._json(401, {"error": {"message": f"no: {bearer}; I wanted {self.key}"}})
        if method == "GET":
            return self._get(path)
        self.asked.append((path, body))
        third = body.get("max_tokens") == EVERY_THIRD and len(self.asked) % 3 == 0
        if self.key is not None and (third or "refuse me" in json.dumps(body)):
            return self._json(400, {"error": {"message": f"I will not, whatever {self.key} may be"}})
        if unknown := "params" in self.lacks and {"ignore_eos", "min_tokens"} & body.keys():
            return self._json(400, {"error": {"message": f"unknown parameter: {unknown}"}})
        if path == "/v1/completions":
            return self._completion(body)
        text, tokens, finish = self._said(body)
        if body.get("stream"):
            return 200, "text/event-stream", self._stream(text, finish, body)
        message = {"role": "assistant", "content": text}
        return self._json(200, {"choices": [{"index": 0, "message": message, "finish_reason": finish}],
                                "usage": {"prompt_tokens": 5, "completion_tokens": tokens}})  # fmt: skip

    def _get(self, path: str) -> tuple[int, str, bytes]:
        if path == "/v1/models":
            return self._json(200, {"data": [{"id": "m", "owned_by": "tests", "created": time.time()}]})
        if path == "/version":
            return self._json(200, {"version": "1.2.3"})
        if path == "/health":
            return self._json(200, {})
        if path == "/info" and self.key is not None:
            return self._json(200, {"argv": ["--api-key", self.key]})
        if path == "/metrics" and "metrics" not in self.lacks:
            return 200, "text/plain", b'# TYPE x gauge\nvllm:num_requests_running{a="b"} 1\n'
        return self._json(404, {"error": {"message": f"no {path}"}})

    def _json(self, status: int, value: Any) -> tuple[int, str, bytes]:
        return status, "application/json", json.dumps(value).encode()

    def _completion(self, body: dict[str, Any]) -> tuple[int, str, bytes]:
        prompts = body["prompt"] if isinstance(body["prompt"], list) else [body["prompt"]]
        if all(isinstance(p, int) for p in prompts):
            if "token_ids" in self.lacks:
                return self._json(422, {"error": {"message": "a prompt is a text"}})
            prompts = ["ids"]
        choices = []
        for i, prompt in enumerate(prompts):
            words = prompt.replace(" ", "\0 ").split("\0")
            offsets = [sum(map(len, words[:k])) for k in range(len(words))]
            scored = {"tokens": words, "token_logprobs": [None, *[-1.0] * (len(words) - 1)], "text_offset": offsets}
            echoed = body.get("echo") and "prompt_logprobs" not in self.lacks
            start = 0 if "prompt_logprobs_from" in self.lacks else body.get("prompt_logprobs_from", 0)
            skipped = sum(offset < start for offset in offsets)
            scored = {name: values[skipped:] for name, values in scored.items()}
            text, found = (prompt[start:], scored) if echoed else ("x", None)
            choices.append({"index": i, "text": text, "logprobs": found, "finish_reason": "length"})
        return self._json(200, {"choices": choices, "usage": {"prompt_tokens": 5, "completion_tokens": 0}})

    def _said(self, body: dict[str, Any]) -> tuple[str, int, str]:
        asked = body["messages"][-1]["content"]
        count = self._repeated[asked] = self._repeated.get(asked, 0) + 1
        wanted = MOST_BY_ITSELF
        if body.get("ignore_eos") and "ignore_eos" not in self.lacks:
            wanted = body["max_tokens"]
        if body.get("min_tokens") and "min_tokens" not in self.lacks:
            wanted = body["min_tokens"]
        tokens = min(wanted, body["max_tokens"])
        strays = {"deterministic": 2, "deterministic_in_company": 3}
        stray = any(count == at and name in self.lacks for name, at in strays.items())
        text = " ".join(["oh" if stray else "word"] * tokens)
        return text, tokens, "stop" if tokens < body["max_tokens"] else "length"

    def _stream(self, text: str, finish: str, body: dict[str, Any]) -> bytes:
        options, events = body.get("stream_options") or {}, []
        running = options.get("continuous_usage_stats") and "running_usage" not in self.lacks
        words = text.split(" ")
        for i, word in enumerate(words):
            ended = finish if i == len(words) - 1 else None
            chunk: dict[str, Any] = {"id": "c", "choices": [{"index": 0, "delta": {"content": f"{word} "},
                                                             "finish_reason": ended}]}  # fmt: skip
            if running:
                chunk["usage"] = {"prompt_tokens": 5, "completion_tokens": i + 1}
            events.append(json.dumps(chunk))
        if options.get("include_usage") and "stream_usage" not in self.lacks:
            events.append(json.dumps({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": len(words)}}))
        return "".join(f"data: {e}\n\n" for e in [*events, "[DONE]"]).encode()


def serve(pretend: Pretend, port: int) -> ThreadingHTTPServer:
    """Listens on ``port`` of the loopback interface (0: any); the caller runs and closes it."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: Any) -> None:
            pass

        def _serve(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else {}
            found = pretend.answer(self.command, self.path, self.headers.get("Authorization"), body)
            status, kind, data = found
            self.send_response(status)
            for name, value in {"Content-Type": kind, "Content-Length": str(len(data))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = _serve

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 64

        def handle_error(self, request: Any, client_address: Any) -> None:
            pass  # clients that went away

    return Server(("127.0.0.1", port), Handler)


def main(port: int, how: dict[str, Any]) -> None:
    """``how``: ``lacks``; ``key_from``, a variable of the environment; ``child``: start one that outlives its parent;
    ``die``: end at once with that code; ``deaf``: never listen.
    """
    key = os.environ[how["key_from"]] if "key_from" in how else None
    print(f"about to serve, my key is {key}", flush=True)
    if "child" in how:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
        Path(how["child"]).write_text(str(child.pid))
    if "die" in how:
        print("last words", flush=True)
        raise SystemExit(how["die"])
    if how.get("deaf"):
        time.sleep(600)
    serve(Pretend(tuple(how.get("lacks", ())), key), port).serve_forever(0.05)


if __name__ == "__main__":
    main(int(sys.argv[1]), json.loads(sys.argv[2]))
